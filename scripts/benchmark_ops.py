"""Times the Toeplitz product, forward and backward, against plain torch.fft, interleaved in one run.

    python scripts/benchmark_ops.py --threads 1 --output-dir runs/benchmark-ops

Candidates:
  ours     hf_seqmix.toeplitz_matmul
  rfft     torch.fft.rfft of the last dimension, differentiated by autograd, length 2n
  strided  the same along dimension -2 of (batch, length, channels), as the original code does

Each is checked against float64 first; nothing is timed if a result is wrong. Each rival is timed against ours in a process
of their own, since the memory allocator remembers the largest buffers that anything before it asked for; with --together all
share one process and one rotation, where the strided form's buffers spare the plain one its page faults. Times are medians
over rounds in which every candidate runs once, in an order that rotates, so that none always meets a warm cache: thread CPU
time on one CPU thread, wall time on several, device events on a GPU. Writes benchmark_ops.json, a table and a plot.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_seqmix import toeplitz_matmul
from hf_seqmix.analysis import markdown_table, run_environment
from hf_seqmix.data import write_json


def rfft_product(x: Tensor, kernel: Tensor) -> Tensor:
    """The causal product by plain real transforms of x (batch, channels, length) and kernel (channels, length)."""
    length = x.shape[-1]
    spectrum = torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length]


def strided_product(x: Tensor, kernel: Tensor) -> Tensor:
    """The causal product along dimension -2 of x (batch, length, channels) and kernel (length, channels)."""
    length = x.shape[-2]
    spectrum = torch.fft.rfft(x, n=2 * length, dim=-2) * torch.fft.rfft(kernel, n=2 * length, dim=-2)
    return torch.fft.irfft(spectrum, n=2 * length, dim=-2)[..., :length, :]


CANDIDATES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "ours": (toeplitz_matmul, True),
    "rfft": (rfft_product, True),
    "strided": (strided_product, False),
}
"""Name -> the product, and whether channels come before positions."""


class Clock:
    """Seconds between two marks: thread CPU time, wall time, or device events."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    @property
    def kind(self) -> str:
        """What is measured."""
        if self.device.type == "cuda":
            return "device time"
        return "thread CPU time" if self.now is time.thread_time else "wall time"

    def mark(self) -> Any:
        """Take a mark."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return self.now()

    def between(self, first: Any, second: Any) -> float:
        """Return the seconds from one mark to another."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            return first.elapsed_time(second) / 1000
        return second - first


def make_inputs(arguments: argparse.Namespace, length: int, channels_first: bool) -> list[Tensor]:
    """Draw x, kernel and the upstream gradient, the same numbers in either layout."""
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.batch, arguments.channels, length)
    x, upstream = (torch.randn(shape, generator=generator) for _ in range(2))
    kernel = torch.randn(arguments.channels, length, generator=generator) / length**0.5
    if not channels_first:
        x, upstream, kernel = (t.transpose(-1, -2) for t in (x, upstream, kernel))
    dtype, device = getattr(torch, arguments.dtype), arguments.device
    x, upstream = (t.contiguous().to(device, dtype) for t in (x, upstream))
    kernel = kernel.contiguous().to(device)
    return [x.requires_grad_(), kernel.requires_grad_(), upstream]


def run(product: Callable[[Tensor, Tensor], Tensor], inputs: Sequence[Tensor], clock: Clock) -> tuple[float, float]:
    """Return the seconds of one forward, and of one forward and backward."""
    x, kernel, upstream = inputs
    x.grad = kernel.grad = None
    begin = clock.mark()
    y = product(x, kernel)
    middle = clock.mark()
    y.backward(upstream.to(y.dtype))
    end = clock.mark()
    return clock.between(begin, middle), clock.between(begin, end)


def check(arguments: argparse.Namespace, length: int, names: Sequence[str]) -> dict[str, float]:
    """Return each candidate's relative error, output and gradients together, against its own form in float64.

    Raises:
        RuntimeError: if one is wrong.
    """
    bound = 1e-5 if arguments.dtype == "float32" else 2e-2
    errors = {}
    for name in names:
        product, channels_first = CANDIDATES[name]
        inputs = make_inputs(arguments, length, channels_first)
        exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
        reference = rfft_product if channels_first else strided_product
        values = []
        for function, (x, kernel, upstream) in ((product, inputs), (reference, exact)):
            y = function(_supported(x, name), kernel)
            values.append([y, *torch.autograd.grad(y, (x, kernel), upstream.to(y.dtype))])
        errors[name] = max(
            ((a.double() - b).norm() / b.norm()).item() for a, b in zip(values[0], values[1], strict=True)
        )
        if not errors[name] < bound:
            raise RuntimeError(
                f"{name} is wrong at length {length}: relative error {errors[name]:.2g} (bound {bound})."
            )
    return errors


def _supported(x: Tensor, name: str) -> Tensor:
    """Plain transforms take no half precision, so their users cast."""
    return x if name == "ours" or x.dtype == torch.float64 else x.float()


def benchmark(arguments: argparse.Namespace, length: int, names: Sequence[str]) -> dict[str, Any]:
    """Time some candidates at one length, ours first among them, interleaved."""
    torch.set_num_threads(arguments.threads)
    errors = check(arguments, length, names)
    clock = Clock(torch.device(arguments.device))
    prepared = {
        name: (
            (lambda x, k, name=name: CANDIDATES[name][0](_supported(x, name), k)),
            make_inputs(arguments, length, CANDIDATES[name][1]),
        )
        for name in names
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(arguments.rounds + 2):
        first = turn % len(names)
        for name in [*names[first:], *names[:first]]:
            measured = run(*prepared[name], clock)
            if turn >= 2:  # the first rounds allocate and plan
                seconds[name].append(measured)
    row: dict[str, Any] = {"length": length, "clock": clock.kind, "errors": errors}
    for name in names:
        row[f"{name}_forward_ms"] = 1e3 * statistics.median(forward for forward, _ in seconds[name])
        row[f"{name}_ms"] = 1e3 * statistics.median(both for _, both in seconds[name])
    for name in names[1:]:
        row[f"forward_vs_{name}"] = row[f"{name}_forward_ms"] / row["ours_forward_ms"]
        row[f"vs_{name}"] = row[f"{name}_ms"] / row["ours_ms"]
    return row


def benchmark_all(arguments: argparse.Namespace, length: int) -> dict[str, Any]:
    """Time every candidate at one length, each rival with ours in a fresh process unless all are wanted together."""
    names = list(CANDIDATES)
    if arguments.together:
        return benchmark(arguments, length, names)
    row: dict[str, Any] = {}
    for rival in reversed(names[1:]):  # what remains under "ours" was measured beside the plain form
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            pair = fresh.submit(benchmark, arguments, length, ["ours", rival]).result()
        row = {**row, **pair, "errors": row.get("errors", {}) | pair["errors"]}
    return row


def plot(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw time and ratio against the length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    lengths = [row["length"] for row in rows]
    for name, marker in zip(CANDIDATES, "osD", strict=True):
        left.loglog(lengths, [row[f"{name}_ms"] for row in rows], marker=marker, label=name, base=2)
        if name != "ours":
            right.semilogx(lengths, [row[f"vs_{name}"] for row in rows], marker=marker, label=f"{name} / ours", base=2)
    left.set(xlabel="length", ylabel="forward and backward (ms)")
    right.axhline(1, color="black", linewidth=0.8)
    right.set(xlabel="length", ylabel="times faster", ylim=(0, None))
    for axes in (left, right):
        axes.set_xticks(lengths, [str(n) for n in lengths])
        axes.grid(color="#E5E5E5")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark and return its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--together", action="store_true", help="all candidates in one process and one rotation")
    parser.add_argument("--output-dir", default="runs/benchmark-ops")
    arguments = parser.parse_args(argv)
    if min(arguments.lengths) < 1 or arguments.rounds < 1 or arguments.batch < 1 or arguments.channels < 1:
        parser.error("lengths, rounds, batch and channels must be at least 1.")
    rows = []
    for length in arguments.lengths:
        rows.append(benchmark_all(arguments, length))
        print(f"length {length}: ours {rows[-1]['ours_ms']:.2f} ms", file=sys.stderr)
    columns = {
        "length": "length",
        "ours_ms": "ours ms:.2f",
        "rfft_ms": "rfft ms:.2f",
        "strided_ms": "strided ms:.2f",
        "vs_rfft": "vs rfft:.2f",
        "vs_strided": "vs strided:.2f",
        "forward_vs_rfft": "forward vs rfft:.2f",
    }
    environment = run_environment()
    where = f"batch {arguments.batch}, {arguments.channels} channels, {arguments.dtype}, {arguments.device}"
    where += ", all in one process" if arguments.together else ", each pair in its own process"
    title = f"Toeplitz product, forward and backward: {where}, {rows[0]['clock']}, torch {torch.__version__}"
    table = markdown_table(rows, columns)
    print(f"{title}\n\n{table}")
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "benchmark_ops.json", {"rows": rows, "arguments": vars(arguments), "environment": environment})
    (folder / "benchmark_ops.md").write_text(f"{title}\n\n{table}\n", encoding="utf-8")
    plot(rows, folder / "benchmark_ops.png", title)
    return rows


if __name__ == "__main__":
    main()
