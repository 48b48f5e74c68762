"""Times a causal Toeplitz product whose inputs come one at a time: one mixer layer, beside key/value attention.

    python scripts/speed/online_products.py --threads 1 --output-dir runs/online-products
    python scripts/speed/online_products.py --threads 1 --channels 768 --blocks 64 --output-dir runs/online-768

`recompute` multiplies the whole prefix at each token. `history` is `toeplitz_step` on (batch, tokens, channels).
`product` multiplies and sums a history whose tokens lie side by side, with taps flipped once; `vecdot` is the same
by one call of torch, and `bmm` is a batch of matrix products, for several rows. The fastest of these three is the
plain product. `attention` writes keys and values of heads of 64 channels and calls torch's attention. `online N` is
`OnlineConvolution` with blocks of N positions, for a kernel without an end.

The outputs of all are compared with a product in float64 before anything is timed. The mean for n tokens is over all
tokens for `online`, and over --samples tokens between any two of --lengths for the others, whose cost grows evenly.
The time of a token is the median over --rounds, in which all take turns. The worst token is the one with the largest
median. Taps and the spectra of the kernel, which a layer makes once, are made before. A row of goals follows the rows
that they are for. Writes online_products.jsonl and a table.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from timing.protocol import WrongResultError
from torch import Tensor
from torch.nn import functional as F

from hf_seqmix.ops import toeplitz_matmul, toeplitz_step
from hf_seqmix.ops.toeplitz.online import OnlineConvolution
from hf_seqmix.ops.toeplitz.online_kernel import OnlineKernel
from hf_seqmix.ops.toeplitz.online_tiles import PIECE
from hf_seqmix.training.command import CommandParser, explained, positive
from hf_seqmix.training.folders.run_folder import prepare_run_folder
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.results import Result

HEAD = 64
DECAY = 0.9995
BOUND = 1e-5
COLUMNS = {
    "batch": "batch",
    "tokens": "tokens",
    "product": "product",
    "mean_us": "mean us a token:.1f",
    "worst_us": "worst us:.0f",
    "spread": "worst over mean:.1f",
    "times": "times as fast as attention:.2f",
    "plain": "times as fast as the plain product:.2f",
    "recompute": "times as fast as recomputing:.1f",
    "growth": "mean over that of the fewest tokens:.2f",
    "mib": "MiB of state:.1f",
    "error": "error:.1g",
}

GOALS = {"times": 6.0, "plain": 8.0, "recompute": 300.0, "growth": 1.5, "spread": 5.0, "error": BOUND}
"""Of `online`, for 256 channels, one row and 8,192 tokens: at least times as fast, at most the others."""

Step = Callable[[int], Tensor]


def steps_of(x: Tensor, taps: Tensor) -> dict[str, tuple[Step, int]]:
    """Return, by name, what computes the output (batch, channels) at a position, and the bytes that it keeps.

    Args:
        x: (batch, channels, tokens), the inputs; a step writes its input into the history.
        taps: (channels, tokens).
    """
    batch, channels, tokens = x.shape
    rows = x.transpose(1, 2).contiguous()  # (batch, tokens, channels)
    columns, reversed_taps = x.clone(), taps.flip(1).contiguous()
    matrices = x.transpose(0, 1).contiguous()  # (channels, batch, tokens)
    heads = rows.view(batch, tokens, channels // HEAD, HEAD).transpose(1, 2).contiguous()
    keys, values = heads.clone(), heads.clone()

    def recompute(t: int) -> Tensor:
        return toeplitz_matmul(columns[..., : t + 1], taps[:, : t + 1])[..., -1]

    def history(t: int) -> Tensor:
        rows[:, t] = x[..., t]
        return toeplitz_step(rows[:, : t + 1], taps)[:, 0]

    def product(t: int) -> Tensor:
        columns[..., t] = x[..., t]
        return (columns[..., : t + 1] * reversed_taps[:, tokens - 1 - t :]).sum(dim=-1)

    def vecdot(t: int) -> Tensor:
        columns[..., t] = x[..., t]
        return torch.linalg.vecdot(columns[..., : t + 1], reversed_taps[:, tokens - 1 - t :])

    def bmm(t: int) -> Tensor:
        matrices[..., t] = x[..., t].t()
        return torch.bmm(matrices[..., : t + 1], reversed_taps[:, tokens - 1 - t :].unsqueeze(2))[..., 0].t()

    def attention(t: int) -> Tensor:
        keys[:, :, t] = values[:, :, t] = heads[:, :, t]
        mixed = F.scaled_dot_product_attention(heads[:, :, t : t + 1], keys[:, :, : t + 1], values[:, :, : t + 1])
        return mixed.flatten(1)

    size = x.nbytes
    steps: dict[str, tuple[Step, int]] = {"recompute": (recompute, size), "history": (history, size)}
    return steps | {
        "product": (product, size),
        "vecdot": (vecdot, size),
        "bmm": (bmm, size),
        "attention": (attention, 2 * size),
    }


def largest_error(found: Tensor, exact: Tensor) -> float:
    """Return the largest difference over the root mean square of `exact`."""
    return float((found.double() - exact).abs().max() / exact.square().mean().sqrt())


def measure(arguments: argparse.Namespace, batch: int) -> list[dict[str, Any]]:
    """Return a row for each length and product at one batch size.

    Raises:
        WrongResultError: if outputs differ.
    """
    marks, channels = sorted(arguments.lengths), arguments.channels
    tokens = marks[-1]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, channels, tokens, generator=generator)
    taps = torch.randn(channels, 4 * tokens, generator=generator) * DECAY ** torch.arange(4 * tokens)
    taps /= taps.norm(dim=1, keepdim=True)
    inputs = list(x.permute(2, 0, 1).unsqueeze(2).contiguous())  # of each position (batch, 1, channels)
    exact = toeplitz_matmul(x.double(), taps[:, :tokens].double())
    steps = steps_of(x, taps[:, :tokens].contiguous())
    edges = [0, *marks]
    points = [
        begin + (2 * i + 1) * (end - begin) // (2 * arguments.samples)
        for begin, end in zip(edges, marks, strict=False)
        for i in range(arguments.samples)
    ] + [mark - 1 for mark in marks]

    errors: dict[str, float] = {}
    for name, (step, _) in steps.items():
        if name != "attention":
            each = [largest_error(step(t), exact[..., t]) for t in points[:: arguments.samples]]
            errors[name] = max(math.inf if math.isnan(error) else error for error in each)
    kernels = {block: OnlineKernel(lambda first, last: taps[:, first:last], block) for block in arguments.blocks}
    memory: dict[int, int] = {}
    for block, kernel in kernels.items():
        state = OnlineConvolution(kernel, batch, piece=arguments.piece)
        outputs = torch.cat([state.step(column) for column in inputs], dim=1)
        errors[f"online {block}"] = largest_error(outputs.transpose(1, 2), exact)
        memory[block] = state.memory
    for name, error in errors.items():
        if not error < BOUND:
            raise WrongResultError(f"{name} differs: error {error:.2g} (bound {BOUND}); nothing was timed")

    now = time.thread_time if arguments.threads == 1 else time.perf_counter
    sampled: dict[str, list[list[float]]] = {name: [] for name in steps}
    whole: dict[int, list[list[float]]] = {block: [] for block in kernels}
    for _ in range(arguments.rounds):
        for name, (step, _) in steps.items():
            found = []
            for t in points:
                step(t)  # reads the history once, as the token before would have
                begin = now()
                step(t)
                found.append(1e6 * (now() - begin))
            sampled[name].append(found)
        for block, kernel in kernels.items():
            state, found = OnlineConvolution(kernel, batch, piece=arguments.piece), []
            for column in inputs:
                begin = now()
                state.step(column)
                found.append(1e6 * (now() - begin))
            whole[block].append(found)

    rows: list[dict[str, Any]] = []
    for place, mark in enumerate(marks):
        row: dict[str, Any] = {"batch": batch, "tokens": mark}
        for name, (_, size) in steps.items():
            medians = [statistics.median(found) for found in zip(*sampled[name], strict=True)]
            parts = [
                statistics.fmean(medians[i * arguments.samples : (i + 1) * arguments.samples]) * (end - begin)
                for i, (begin, end) in enumerate(zip(edges, marks[: place + 1], strict=False))
            ]
            worst = max(medians[: (place + 1) * arguments.samples] + medians[-len(marks) :][: place + 1])
            rows.append(row | {"product": name, "mean_us": sum(parts) / mark, "worst_us": worst, "mib": size / 2**20})
        for block in kernels:
            medians = [statistics.median(found) for found in zip(*whole[block], strict=True)][:mark]
            mean = statistics.fmean(medians)
            held = memory[block] / 2**20 if mark == tokens else None
            row_of = {"product": f"online {block}", "mean_us": mean, "worst_us": max(medians), "mib": held}
            rows.append(row | row_of)
    first = {row["product"]: row["mean_us"] for row in rows if row["tokens"] == marks[0]}
    for row in rows:
        means = {other["product"]: other["mean_us"] for other in rows if other["tokens"] == row["tokens"]}
        plain = min(means[name] for name in ("product", "vecdot", "bmm"))
        row |= {"times": means["attention"] / row["mean_us"], "plain": plain / row["mean_us"]}
        row |= {"recompute": means["recompute"] / row["mean_us"], "growth": row["mean_us"] / first[row["product"]]}
        row |= {"error": errors.get(row["product"]), "spread": row["worst_us"] / row["mean_us"]}
        if row["tokens"] != tokens and not row["product"].startswith("online"):
            row["mib"] *= row["tokens"] / tokens
    return rows


@explained("online_products.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command line and return the rows."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=256, help=f"channels of the layer, a multiple of {HEAD}")
    parser.add_argument("--batch", type=positive, nargs="+", default=[1, 8], help="batch sizes, in rows")
    parser.add_argument(
        "--lengths",
        type=positive,
        nargs="+",
        default=[512, 2048, 8192, 16384],
        help="numbers of tokens for which means are given",
    )
    parser.add_argument(
        "--blocks",
        type=positive,
        nargs="+",
        default=[32, 64, 128],
        help="positions of a block of `online`; each size is timed",
    )
    parser.add_argument("--piece", type=positive, default=PIECE, help="numbers that `online` transforms in one call")
    parser.add_argument(
        "--samples", type=positive, default=8, help="tokens that are timed between two lengths, for all but `online`"
    )
    parser.add_argument("--rounds", type=positive, default=5, help="timed rounds, whose median counts")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--output-dir", required=True, help="where results and table go")
    arguments = parser.parse_args(argv)
    if arguments.channels % HEAD:
        parser.error(f"argument --channels: {arguments.channels} given, but heads have {HEAD} channels: a multiple")
    prepare_run_folder(arguments.output_dir, resume=True)
    torch.set_num_threads(arguments.threads)
    rows = []
    with torch.inference_mode():
        for batch in arguments.batch:
            rows += measure(arguments, batch)
    setting = {"channels": arguments.channels, "threads": arguments.threads, "piece": arguments.piece}
    results = [
        Result("online_products", row["product"], metric, row[metric], setting=setting | sizes)
        for row in rows
        for sizes in [{name: row[name] for name in ("batch", "tokens")}]
        for metric in ("mean_us", "worst_us", "mib", "error")
        if row[metric] is not None
    ]
    goals = [{"batch": 1, "tokens": 8192, "product": "goal"} | GOALS]
    places = [i for i, row in enumerate(rows) if (row["batch"], row["tokens"]) == (1, 8192)]
    shown = rows[: places[-1] + 1] + goals + rows[places[-1] + 1 :] if places and arguments.channels == 256 else rows
    title = f"One input at a time: {arguments.channels} channels, float32, {arguments.threads} threads, CPU"
    write_report(arguments, "online_products", [(title, shown, COLUMNS)], results)
    return rows


if __name__ == "__main__":
    main()
