"""Times the products of the Toeplitz families, forward and backward, against plain torch.fft, interleaved in one run.

    python scripts/benchmark_ops.py --ops toeplitz ski --threads 1 --output-dir runs/benchmark-ops

Candidates of `toeplitz`, the causal product:
  ours     hf_seqmix.toeplitz_matmul
  rfft     torch.fft.rfft of the last dimension, differentiated by autograd, length 2n
  strided  the same along dimension -2 of (batch, length, channels), as the original code does

Candidates of `ski`, the bidirectional product with --points inducing points and --taps taps of the short convolution:
  ours      sparse_low_rank_matmul(x, taps, kernel), with gradients of x, the taps and the inducing kernel; x, the output
            and the upstream gradient have channels contiguous in memory, as linear layers leave and take them
  rfft      as above with a bidirectional kernel, 2n - 1 lags in circular order; positions contiguous, its best layout
  toeplitz  toeplitz_matmul(x, kernel, causal=False); positions contiguous, its best layout

Each is checked against float64 first, SKI against dense matrices; nothing is timed if a result is wrong. Each rival is timed
against ours in a process of their own, since the memory allocator remembers the largest buffers that anything before it asked
for; with --together all share one process and one rotation, where the strided form's buffers spare the plain one its page
faults. Times are medians over rounds in which every candidate runs once, in an order that rotates, so that none always meets
a warm cache: thread CPU time on one CPU thread, wall time on several, device events on a GPU. Writes benchmark_ops.json,
tables and a plot.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _timing import Clock, forward_backward, in_fresh_process, interleave, medians_ms, relative_error, write_report
from torch import Tensor

from hf_seqmix import toeplitz_matmul
from hf_seqmix.analysis.figures import draw_grid, line
from hf_seqmix.ops.ski import InducingGrid, interpolation_matrix
from hf_seqmix.ops.sparse_low_rank import sparse_low_rank_matmul
from hf_seqmix.ops.toeplitz import toeplitz_matrix


def rfft_product(x: Tensor, kernel: Tensor) -> Tensor:
    """The causal product by plain real transforms of x (batch, channels, length) and kernel (channels, length).

    With a kernel (channels, 2 length) in circular order, lags 0 to length - 1, a free place, and lags -(length - 1) to -1, it
    is the bidirectional product.
    """
    length = x.shape[-1]
    spectrum = torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length]


def strided_product(x: Tensor, kernel: Tensor) -> Tensor:
    """The causal product along dimension -2 of x (batch, length, channels) and kernel (length, channels)."""
    length = x.shape[-2]
    spectrum = torch.fft.rfft(x, n=2 * length, dim=-2) * torch.fft.rfft(kernel, n=2 * length, dim=-2)
    return torch.fft.irfft(spectrum, n=2 * length, dim=-2)[..., :length, :]


def two_sided_product(x: Tensor, kernel: Tensor) -> Tensor:
    """The package's bidirectional product of x and kernel (channels, 2 length - 1)."""
    return toeplitz_matmul(x, kernel, causal=False)


def two_sided_reference(x: Tensor, kernel: Tensor) -> Tensor:
    """The same by plain transforms."""
    circular = torch.roll(torch.nn.functional.pad(kernel, (1, 0)), -x.shape[-1], dims=-1)
    return rfft_product(x, circular)


def ski_product(x: Tensor, taps: Tensor, kernel: Tensor) -> Tensor:
    """SKI's product of x (batch, channels, length) with taps (channels, taps) and kernel (channels, 2 points - 1)."""
    grid = InducingGrid(x.shape[-1], (kernel.shape[1] + 1) // 2)
    return sparse_low_rank_matmul(x, taps, kernel, grid)


def ski_reference(x: Tensor, taps: Tensor, kernel: Tensor) -> Tensor:
    """The same with dense W and A, and the convolution tap by tap."""
    length, width, points = x.shape[-1], taps.shape[1], (kernel.shape[1] + 1) // 2
    matrix = interpolation_matrix(length, InducingGrid(length, points), x.dtype).to(x.device)
    inducing = toeplitz_matrix(kernel, points, causal=False)
    smooth = torch.einsum("cpq,bcq->bcp", inducing, x @ matrix) @ matrix.mT
    padded = torch.nn.functional.pad(x, (width // 2, width // 2))
    return smooth + torch.stack([padded[..., q : q + length] * taps[:, q, None] for q in range(width)]).sum(dim=0)


def causal_taps(arguments: argparse.Namespace, length: int) -> list[int]:
    """Taps a channel of a causal kernel."""
    return [length]


def circular_taps(arguments: argparse.Namespace, length: int) -> list[int]:
    """Taps a channel of a bidirectional kernel in circular order."""
    return [2 * length]


def two_sided_taps(arguments: argparse.Namespace, length: int) -> list[int]:
    """Taps a channel of a bidirectional kernel."""
    return [2 * length - 1]


def ski_taps(arguments: argparse.Namespace, length: int) -> list[int]:
    """Taps a channel of the short convolution and of the kernel between at most `length` inducing points."""
    return [arguments.taps, 2 * min(arguments.points, length) - 1]


class Candidate(NamedTuple):
    """A product, what it is checked against, the taps of its kernels, and how it wants its inputs."""

    product: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    taps: Callable[[argparse.Namespace, int], list[int]]
    layout: str = "channels first"
    """"channels first"; "channels last" in memory only; or "transposed", channels last in shape, too."""
    takes_half: bool = False
    """Whether it takes half precision; plain transforms do not, so that their users cast."""


CANDIDATES: dict[str, dict[str, Candidate]] = {
    "toeplitz": {
        "ours": Candidate(toeplitz_matmul, rfft_product, causal_taps, takes_half=True),
        "rfft": Candidate(rfft_product, rfft_product, causal_taps),
        "strided": Candidate(strided_product, strided_product, causal_taps, "transposed"),
    },
    "ski": {
        "ours": Candidate(ski_product, ski_reference, ski_taps, "channels last", takes_half=True),
        "rfft": Candidate(rfft_product, rfft_product, circular_taps),
        "toeplitz": Candidate(two_sided_product, two_sided_reference, two_sided_taps, takes_half=True),
    },
}
"""Operation -> name -> what is timed; ours comes first."""

TITLES = {"toeplitz": "Toeplitz product", "ski": "SKI product"}


def make_inputs(arguments: argparse.Namespace, length: int, candidate: Candidate) -> list[Tensor]:
    """Draw x, the kernels and the upstream gradient, the same numbers in any layout."""
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.batch, arguments.channels, length)
    x, upstream = (torch.randn(shape, generator=generator) for _ in range(2))
    kernels = [
        torch.randn(arguments.channels, taps, generator=generator) / taps**0.5
        for taps in candidate.taps(arguments, length)
    ]
    if candidate.layout == "transposed":
        x, upstream, *kernels = (t.mT.contiguous() for t in (x, upstream, *kernels))
    elif candidate.layout == "channels last":
        x, upstream = (t.mT.contiguous().mT for t in (x, upstream))
    dtype, device = getattr(torch, arguments.dtype), arguments.device
    x, upstream = (t.to(device, dtype) for t in (x, upstream))
    return [x.requires_grad_(), *(kernel.to(device).requires_grad_() for kernel in kernels), upstream]


def supported(candidate: Candidate) -> Callable[..., Tensor]:
    """The product, with the cast of half precision that its users would write."""
    if candidate.takes_half:
        return candidate.product
    return lambda x, *kernels: candidate.product(x if x.dtype == torch.float64 else x.float(), *kernels)


def check(arguments: argparse.Namespace, op: str, length: int, names: Sequence[str]) -> dict[str, float]:
    """Return each candidate's largest relative error, of the output and each gradient, against float64.

    Raises:
        RuntimeError: if one is wrong.
    """
    bound = 1e-5 if arguments.dtype == "float32" else 2e-2
    errors = {}
    for name in names:
        candidate = CANDIDATES[op][name]
        inputs = make_inputs(arguments, length, candidate)
        exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
        values = []
        for function, (*tensors, upstream) in ((supported(candidate), inputs), (candidate.reference, exact)):
            y = function(*tensors)
            values.append([y, *torch.autograd.grad(y, tensors, upstream.to(y.dtype))])
        errors[name] = max(relative_error(a, b) for a, b in zip(*values, strict=True))
        if not errors[name] < bound:
            raise RuntimeError(
                f"{op}: {name} is wrong at length {length}: relative error {errors[name]:.2g} (bound {bound})."
            )
    return errors


def benchmark(arguments: argparse.Namespace, op: str, length: int, names: Sequence[str]) -> dict[str, Any]:
    """Time some candidates at one length, ours first among them, interleaved."""
    torch.set_num_threads(arguments.threads)
    errors = check(arguments, op, length, names)
    clock = Clock(torch.device(arguments.device))
    timed = {}
    for name in names:
        *tensors, upstream = make_inputs(arguments, length, CANDIDATES[op][name])
        timed[name] = forward_backward(supported(CANDIDATES[op][name]), tensors, upstream)
    seconds = interleave(timed, arguments.rounds, clock)
    row: dict[str, Any] = {"op": op, "length": length, "clock": clock.kind, "errors": errors}
    for name in names:
        row[f"{name}_forward_ms"], row[f"{name}_ms"] = medians_ms(seconds[name])
    for name in names[1:]:
        row[f"forward_vs_{name}"] = row[f"{name}_forward_ms"] / row["ours_forward_ms"]
        row[f"vs_{name}"] = row[f"{name}_ms"] / row["ours_ms"]
    return row


def benchmark_all(arguments: argparse.Namespace, op: str, length: int) -> dict[str, Any]:
    """Time every candidate at one length, each rival with ours in a fresh process unless all are wanted together."""
    names = list(CANDIDATES[op])
    if arguments.together:
        return benchmark(arguments, op, length, names)
    row: dict[str, Any] = {}
    # The plain form last: what remains under "ours" was measured beside it.
    for rival in sorted(names[1:], key=lambda name: name == "rfft"):
        pair = in_fresh_process(benchmark, arguments, op, length, ["ours", rival])
        row = {**row, **pair, "errors": row.get("errors", {}) | pair["errors"]}
    return row


def columns_of(op: str) -> dict[str, str]:
    """Columns of the table of an operation."""
    names = list(CANDIDATES[op])
    columns = {"length": "length"} | {f"{name}_ms": f"{name} ms:.2f" for name in names}
    columns |= {f"vs_{name}": f"vs {name}:.2f" for name in names[1:]}
    return columns | {f"forward_vs_{name}": f"forward vs {name}:.2f" for name in names[1:]}


def plot(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw time and ratio against the length, one row of panels an operation."""
    ops = list(dict.fromkeys(row["op"] for row in rows))
    with draw_grid(path, 10, 0.5 + 3.6 * len(ops), len(ops), 2) as (figure, axes):
        for (left, right), op in zip(axes, ops, strict=True):
            mine = [row for row in rows if row["op"] == op]
            lengths = [row["length"] for row in mine]
            for index, name in enumerate(CANDIDATES[op]):
                left.loglog(lengths, [row[f"{name}_ms"] for row in mine], label=name, base=2, **line(index))
                if name != "ours":
                    ratios = [row[f"vs_{name}"] for row in mine]
                    right.semilogx(lengths, ratios, label=f"{name} / ours", base=2, **line(index))
            left.set(title=TITLES[op], xlabel="length (tokens)", ylabel="forward and backward (ms)")
            right.axhline(1, color="black", linewidth=0.8)
            right.set(title=TITLES[op], xlabel="length (tokens)", ylabel="times faster", ylim=(0, None))
            for panel in (left, right):
                panel.set_xticks(lengths, [str(n) for n in lengths])
                panel.minorticks_off()
                panel.legend()
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark and return its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--points", type=int, default=64, help="inducing points of ski, at most one a token")
    parser.add_argument("--taps", type=int, default=33, help="taps of the short convolution of ski, odd")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--together", action="store_true", help="all candidates in one process and one rotation")
    parser.add_argument("--output-dir", default="runs/benchmark-ops")
    arguments = parser.parse_args(argv)
    if min(arguments.lengths) < 1 or arguments.rounds < 1 or arguments.batch < 1 or arguments.channels < 1:
        parser.error("lengths, rounds, batch and channels must be at least 1.")
    if "ski" in arguments.ops and (min(arguments.lengths) < 2 or arguments.points < 2 or arguments.taps % 2 == 0):
        parser.error("ski needs lengths and points of at least 2, and an odd number of taps.")
    rows = []
    for op in arguments.ops:
        for length in arguments.lengths:
            rows.append(benchmark_all(arguments, op, length))
            print(f"{op}, length {length}: ours {rows[-1]['ours_ms']:.2f} ms", file=sys.stderr)
    where = f"batch {arguments.batch}, {arguments.channels} channels, {arguments.dtype}, {arguments.device}"
    where += ", all in one process" if arguments.together else ", each pair in its own process"
    where += f", {rows[0]['clock']}, torch {torch.__version__}"
    details = {"ski": f" ({arguments.points} points, {arguments.taps} taps)"}
    sections = [
        (
            f"{TITLES[op]}{details.get(op, '')}, forward and backward: {where}",
            [row for row in rows if row["op"] == op],
            columns_of(op),
        )
        for op in arguments.ops
    ]
    folder = write_report(arguments, "benchmark_ops", sections)
    plot(rows, folder / "benchmark_ops.png", f"Forward and backward: {where}")
    return rows


if __name__ == "__main__":
    main()
