"""Times every operation of the package, forward and backward, against plain torch.fft, attention and public packages.

    python scripts/speed/benchmark_ops.py --threads 1 --output-dir runs/benchmark-ops
    python scripts/speed/benchmark_ops.py --device cuda --dtype bfloat16 --elements 67108864 --channels 1024 \
        --lengths 512 1024 2048 4096 8192 16384 --output-dir runs/benchmark-ops-gpu

Operations: toeplitz, toeplitz_bidirectional and gated (causal, times a gate); response, a product with the frequency response
of FD-TNN; ski, with --points inducing points and --taps taps of the short convolution; linear_attention and the products of
degree 2, 3 and 4 in heads --head-width wide; column, IPA's column operation. Candidates:
  ours       as the package computes it by the table of crossovers in force; x, the output and the upstream gradient of ski
             have channels contiguous in memory, as linear layers leave and take them
  rfft       torch.fft.rfft of the last dimension, differentiated by autograd, length 2n; in half precision with the casts
             that its users write
  strided    the same along dimension -2 of (batch, length, channels), as the original code does
  attention  scaled_dot_product_attention of the same total width, causal where the operation is
  taps, toeplitz, eager, fla  the package's product with taps, its bidirectional product, attention by its formula, and
             flash-linear-attention where it is installed (GPU only)
  and by name every other implementation of ours (see `hf_seqmix.ops.common.crossovers`) that runs on the device

Each is checked first, output and gradients, against float64 by a definition or by plain transforms; nothing is timed if ours
or a baseline is wrong, and an implementation or a package that is wrong is left out and named. On a CPU each rival is timed
against ours in a process of their own, since the memory allocator remembers the largest buffers that anything before it asked
for; with --together, and on a GPU, all share one process and one rotation. Times are medians over rounds in which every
candidate runs once, two in turn and more in an order drawn anew, so that none always meets a warm cache: thread CPU time on one
CPU thread, wall time on several, device events on a GPU. Bytes kept are what autograd saves, peaks those of forward and backward with their
gradients. The floor is the least traffic over the bandwidth of a copy, measured in the run (see roofline.py).

HF_SEQMIX_NATIVE=1 has SKI compiled in C for the CPU and times it, too. Writes benchmark_ops.json, tables (goals of both kinds
of device among them, "unmeasured" where the run does not say) and a plot an operation; pairs.jsonl takes every result at once,
from which the same command goes on.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import roofline
import speed_goals
import torch
from op_candidates import OPS, Sizes, candidates_of, chosen, make_inputs, supported
from op_checks import BOUNDS, check, under
from op_plots import names_of, plot_op

from hf_seqmix.analysis.report import ResultLog
from hf_seqmix.ops import forced
from hf_seqmix.training.timing import (
    Clock,
    forward_backward,
    in_fresh_process,
    interleave,
    medians_ms,
    peak_bytes,
    saved_bytes,
    write_report,
)

CPU_LENGTHS = [128, 256, 512, 1024, 2048, 4096, 8192]
GPU_LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
SETTINGS = ("threads", "rounds", "seconds", "together")
"""What a measured row depends on besides its sizes."""


def sizes_of(arguments: argparse.Namespace, length: int) -> Sizes:
    """Sizes at one length."""
    batch = arguments.batch
    if arguments.elements:
        batch = max(1, arguments.elements // (arguments.channels * length))
    return Sizes(
        batch,
        arguments.channels,
        length,
        min(arguments.head_width, arguments.channels),
        arguments.points,
        arguments.taps,
        arguments.dtype,
        arguments.device,
    )


def benchmark(arguments: argparse.Namespace, op: str, sizes: Sizes, names: Sequence[str]) -> dict[str, Any]:
    """Time some candidates at one length, ours among them, interleaved."""
    torch.set_num_threads(arguments.threads)
    found = candidates_of(op, sizes)
    candidates = {name: found[name] for name in names}
    errors, left_out = check(op, sizes, candidates)
    device = torch.device(sizes.device)
    clock = Clock(device)
    row: dict[str, Any] = {"op": op, "length": sizes.length, "batch": sizes.batch, "clock": clock.kind}
    row |= {"errors": errors, "left_out": left_out}
    timed = {}
    for name, candidate in candidates.items():
        *tensors, upstream = make_inputs(sizes, candidate)
        function = supported(candidate)
        with forced(**dict(candidate.names)):
            row[f"{name}_saved_mib"] = saved_bytes(function, tensors) / 2**20
        timed[name] = under(candidate, forward_backward(function, tensors, upstream))
        timed[name](clock)
        for tensor in tensors:
            tensor.grad = None
        row[f"{name}_peak_mib"] = peak_bytes(partial(timed[name], clock), device) / 2**20
    for name, seconds in interleave(timed, arguments.rounds, clock, arguments.seconds, drawn=True).items():
        row[f"{name}_forward_ms"], row[f"{name}_ms"] = medians_ms(seconds)
    for name in candidates:
        if name != "ours":
            row[f"forward_vs_{name}"] = row[f"{name}_forward_ms"] / row["ours_forward_ms"]
            row[f"vs_{name}"] = row[f"{name}_ms"] / row["ours_ms"]
    return row


def benchmark_all(
    arguments: argparse.Namespace, op: str, sizes: Sizes, log: ResultLog, bandwidth: float
) -> dict[str, Any]:
    """Time every candidate at one length, each rival with ours in a fresh process unless all are wanted together."""
    names = list(candidates_of(op, sizes))
    jobs = [names]
    together = arguments.together or torch.device(sizes.device).type != "cpu"
    if not together:
        # The plain form last: what remains under "ours" was measured beside it.
        jobs = [["ours", rival] for rival in sorted(names[1:], key=lambda name: name == "rfft")]
    row: dict[str, Any] = {}
    choice = OPS[op].choice
    computes = None if choice is None else chosen(choice, sizes)
    settings = {name: getattr(arguments, name) for name in SETTINGS} | {"torch": torch.__version__, "ours": computes}
    for job in jobs:
        key = {"op": op, "candidates": job, "sizes": sizes._asdict(), "settings": settings}
        pair = log.get(key)
        if pair is None:
            work = (arguments, op, sizes, job)
            pair = benchmark(*work) if together else in_fresh_process(benchmark, *work)
            log.append(key, pair)
            rivals = ", ".join(f"{name} {pair[f'vs_{name}']:.2f}" for name in job[1:] if f"vs_{name}" in pair)
            print(f"{op}, length {sizes.length}: ours {pair['ours_ms']:.2f} ms; over it {rivals}", file=sys.stderr)
        row = {**row, **pair} | {part: row.get(part, {}) | pair[part] for part in ("errors", "left_out")}
    row["chosen"] = computes
    ours = OPS[op].candidates["ours"]
    row["floor_forward_ms"], row["floor_ms"] = roofline.floor_ms(sizes, ours, bandwidth)
    row["floor_percent"] = 100 * row["floor_ms"] / row["ours_ms"]
    row["inputs_mib"] = roofline.kept_bytes(sizes, ours) / 2**20
    return row


def kept_rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Count what the causal product and torch.fft keep for backward, in float32 and for at least 16 rows in bfloat16."""
    length = 1024 if 1024 in arguments.lengths else arguments.lengths[0]
    rows = []
    for dtype, batch in (("float32", arguments.batch), ("bfloat16", max(16, arguments.batch))):
        sizes = sizes_of(arguments, length)._replace(dtype=dtype, batch=batch)
        kept = {}
        for name in ("ours", "rfft"):
            candidate = OPS["toeplitz"].candidates[name]
            *tensors, _ = make_inputs(sizes, candidate)
            kept[name] = saved_bytes(supported(candidate), tensors)
        inputs = roofline.kept_bytes(sizes, OPS["toeplitz"].candidates["ours"])
        row = {"dtype": dtype, "batch": batch, "length": length, "inputs_mib": inputs / 2**20}
        row |= {f"{name}_mib": size / 2**20 for name, size in kept.items()}
        rows.append(row | {"over_inputs": kept["ours"] / inputs, "times_fewer": kept["rfft"] / kept["ours"]})
    return rows


KEPT_COLUMNS = {
    "dtype": "dtype",
    "batch": "batch",
    "length": "length",
    "inputs_mib": "x and kernel MiB:.2f",
    "ours_mib": "ours MiB:.2f",
    "rfft_mib": "rfft MiB:.2f",
    "over_inputs": "ours over x and kernel:.3f",
    "times_fewer": "rfft over ours:.2f",
}
MODEL_COLUMNS = {
    "length": "length",
    "part": "part",
    "bytes_an_element": "bytes an element",
    "measured_text": "measured ms",
    "model_ms": "model ms:.3f",
    "off_text": "off %, within 25",
}


def columns_of(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, str], dict[str, str]]:
    """Columns of the tables of time and of memory of an operation."""
    names = names_of(rows)
    times = {"length": "length", "batch": "batch", "chosen": "chosen", "floor_ms": "floor ms:.3f"}
    times |= {f"{name}_ms": f"{name} ms:.2f" for name in names}
    times |= {f"vs_{name}": f"vs {name}:.2f" for name in names[1:]}
    times |= {f"forward_vs_{name}": f"forward vs {name}:.2f" for name in names[1:]}
    memory = {"length": "length", "batch": "batch", "inputs_mib": "inputs MiB:.1f"}
    memory |= {f"{name}_saved_mib": f"{name} kept MiB:.1f" for name in names}
    return times, memory | {f"{name}_peak_mib": f"{name} peak MiB:.1f" for name in names}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", choices=list(OPS), default=list(OPS))
    parser.add_argument("--lengths", type=int, nargs="+", help="128 to 8192 by default, on a GPU 512 to 16384")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--elements", type=int, help="instead: as many rows as make that many elements")
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--points", type=int, default=64, help="inducing points of ski, at most one a token")
    parser.add_argument("--taps", type=int, default=33, help="taps of the short convolution of ski, odd")
    parser.add_argument("--dtype", choices=list(BOUNDS), help="float32 by default, on a GPU bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument(
        "--seconds", type=float, default=15, help="for a rotation; three rounds take place in any case"
    )
    parser.add_argument("--together", action="store_true", help="all candidates in one process and one rotation")
    parser.add_argument("--fast", action="store_true", help="small and short, to see that it works")
    parser.add_argument("--output-dir", default="runs/benchmark-ops")
    arguments = parser.parse_args(argv)
    on_gpu = torch.device(arguments.device).type != "cpu"
    arguments.dtype = arguments.dtype or ("bfloat16" if on_gpu else "float32")
    if arguments.fast:
        arguments.lengths, arguments.rounds = arguments.lengths or [64, 200], 1
        arguments.batch, arguments.channels, arguments.head_width, arguments.points = 2, 16, 8, 16
    arguments.lengths = sorted(arguments.lengths or (GPU_LENGTHS if on_gpu else CPU_LENGTHS))
    if min(arguments.lengths) < 1 or arguments.rounds < 1 or arguments.batch < 1 or arguments.channels < 1:
        parser.error("lengths, rounds, batch and channels must be at least 1.")
    if "ski" in arguments.ops and (min(arguments.lengths) < 2 or arguments.points < 2 or arguments.taps % 2 == 0):
        parser.error("ski needs lengths and points of at least 2, and an odd number of taps.")
    if arguments.head_width < 1 or arguments.channels % min(arguments.head_width, arguments.channels):
        parser.error(f"--head-width {arguments.head_width} must divide --channels {arguments.channels}.")
    return arguments


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark and return its rows."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    bandwidth = roofline.copy_bandwidth(device, 2**24 if arguments.fast else None)
    log = ResultLog(folder / "pairs.jsonl")
    rows = []
    for op in arguments.ops:
        for length in arguments.lengths:
            rows.append(benchmark_all(arguments, op, sizes_of(arguments, length), log, bandwidth))
    kept = kept_rows(arguments)
    problems = {length: sizes_of(arguments, length) for length in arguments.lengths}
    elements = min(sizes.batch * sizes.channels * sizes.length for sizes in problems.values())
    goals = speed_goals.op_goals(rows, kept, arguments.device, arguments.dtype, elements)
    model = roofline.model_rows(rows, problems, bandwidth if device.type == "cuda" else None)
    amount = f"{arguments.elements} elements" if arguments.elements else f"batch {arguments.batch}"
    where = f"{amount}, {arguments.channels} channels, {arguments.dtype}, {arguments.device}, {rows[0]['clock']}"
    where += f", torch {torch.__version__}, copying {bandwidth / 1e9:.1f} GB/s"
    sections: list[tuple[str, Sequence[dict[str, Any]], dict[str, str]]] = [
        (f"Goals: {where}", goals, speed_goals.COLUMNS)
    ]
    for op in arguments.ops:
        mine = [row for row in rows if row["op"] == op]
        times, memory = columns_of(mine)
        sections.append((f"{OPS[op].title} ({op}), forward and backward: {where}", mine, times))
        sections.append((f"{OPS[op].title}, memory", mine, memory))
        plot_op(mine, folder / f"benchmark_ops_{op}.png", f"{OPS[op].title}: {where}", bandwidth)
    sections.append(("Bytes kept for backward by the causal product", kept, KEPT_COLUMNS))
    sections.append(("The model of torch.fft's traffic on a GPU in half precision", model, MODEL_COLUMNS))
    write_report(arguments, "benchmark_ops", sections, rows=rows, goals=goals, kept=kept, model=model)
    return rows


if __name__ == "__main__":
    main()
