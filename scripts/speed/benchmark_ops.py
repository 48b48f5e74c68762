r"""Times every operation of the package, forward and backward, against plain torch.fft, attention and public packages.

    python scripts/speed/benchmark_ops.py --threads 1 --output-dir runs/benchmark-ops
    python scripts/speed/benchmark_ops.py --device cuda --dtype bfloat16 --elements 67108864 --channels 1024 \
        --lengths 512 1024 2048 4096 8192 16384 --output-dir runs/benchmark-ops-gpu

Operations: toeplitz and toeplitz_bidirectional; response, a product with the frequency response of FD-TNN; ski, with
--points inducing points and --taps taps of the short convolution; short_conv, one of four taps by itself;
linear_attention and the products of degree 2, 3 and 4 in heads --head-width wide; column, IPA's column operation.
Candidates:
  ours       as the package computes it by the table of crossovers in force; x, the output and the upstream gradient of
             ski have channels contiguous in memory, as linear layers leave and take them
  rfft       torch.fft.rfft of the last dimension, differentiated by autograd, length 2n; in half precision with the
             casts that its users write
  strided    the same along dimension -2 of (batch, length, channels), as the original code does
  attention  scaled_dot_product_attention of the same total width, causal where the operation is
  conv1d     the depthwise convolution of torch as its users write it
  taps, toeplitz, eager, fla  the package's product with taps, its bidirectional product, attention by its formula, and
             flash-linear-attention where it is installed (GPU only)
  and by name every other implementation of ours (see `hf_seqmix.ops.common.crossovers`) that runs on the device

Each candidate is checked first, output and gradients, against float64 by a definition or by plain transforms. Where
ours or a baseline is wrong, nothing of that operation and length is timed, and the command ends with status 1. An
implementation or a package that is wrong is left out and named.

On a CPU each rival is timed against ours in a process of their own: the memory allocator remembers the largest buffers
that anything before asked for. With --together, and on a GPU, all share one process and one rotation. Times are
medians over rounds in which every candidate runs once, two in turn and more in an order drawn anew, so that none
always meets a warm cache: thread CPU time on one CPU thread, wall time on several, device events on a GPU. Bytes kept
are those that autograd saves, peaks those of forward and backward with their gradients. The floor is the least traffic
over the bandwidth of a copy, measured in the run (see operations/roofline.py).

HF_SEQMIX_NATIVE=1 has SKI compiled in C for the CPU and times it, too. Writes tables (goals of both kinds of device
among them, "unmeasured" where the run does not say) and a plot an operation; benchmark_ops.jsonl takes every result at
once, and the same command goes on from there.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from typing import Any

import torch
from operations import roofline
from operations.arguments import FAST, add_size_arguments, check_size_arguments, parse_with_fast, sizes_of
from operations.candidates import BOUNDS, call_of, candidates_of, chosen, forms_of
from operations.forms import OPS, Sizes
from operations.goals import op_goals
from operations.plots import names_of, plot_op
from timing.goals import COLUMNS as GOAL_COLUMNS
from timing.protocol import Time, WrongResultError, check_all, machine, time_in_turn

from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import CommandParser, explained
from hf_seqmix.training.result_files import ResultFile, write_report
from hf_seqmix.training.results import Result, with_run
from hf_seqmix.training.run import run_of
from hf_seqmix.training.table_rows import row_of, row_results
from hf_seqmix.training.timing import (
    Clock,
    in_fresh_process,
    saved_bytes,
)

CPU_LENGTHS = [128, 256, 512, 1024, 2048, 4096, 8192]
GPU_LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
SETTINGS = ("threads", "rounds", "seconds", "together")
"""What a measured row depends on besides its sizes."""


def benchmark(arguments: argparse.Namespace, op: str, sizes: Sizes, names: Sequence[str]) -> list[Result]:
    """Check and time some candidates at one length, ours among them, in turn."""
    torch.set_num_threads(arguments.threads)
    candidates = candidates_of(op, sizes, names)
    errors, left_out = check_all(candidates, f"{op}, length {sizes.length}")
    clock = Clock(torch.device(sizes.device))
    setting = {name: getattr(sizes, name) for name in ("length", "batch", "channels", "dtype", "device")}
    setting["clock"] = clock.kind
    row: dict[str, Any] = setting | {"error": errors}
    row |= time_in_turn(candidates, arguments.rounds, clock, arguments.seconds, drawn=True)
    given = {"op": op, "candidates": list(names)}
    run = run_of(arguments, "benchmark_ops", given, length=sizes.length, batch=sizes.batch)
    size = "fast" if arguments.fast else ""
    results = row_results([row], op, "ours", models=names, setting=list(setting), size=size)
    for name, fault in left_out.items():
        results.append(Result(op, name, "ms", None, size=size, setting=setting | {"left_out": fault}))
    return with_run(results, run)


def pair_row(results: Sequence[Result]) -> dict[str, Any]:
    """Return the row of candidates that were timed together, with the times of rivals over those of ours."""
    row = row_of([result for result in results if "left_out" not in result.setting])
    row |= {"op": results[0].task, "left_out": {r.model: r.setting["left_out"] for r in results if r.get("left_out")}}
    row["errors"] = {result.model: row.pop(f"{result.model}_error") for result in results if result.metric == "error"}
    for name in row["errors"]:
        if name != "ours":
            row[f"forward_vs_{name}"] = row[f"{name}_forward_ms"] / row["ours_forward_ms"]
            row[f"vs_{name}"] = row[f"{name}_ms"] / row["ours_ms"]
    return row


def benchmark_all(
    arguments: argparse.Namespace, op: str, sizes: Sizes, log: ResultFile, bandwidth: float, left: Time
) -> dict[str, Any] | None:
    """Time every candidate at one length, each rival with ours in a fresh process unless all are wanted together.

    Returns:
        The row of the table; None if the time was over before everything was measured.
    """
    names = list(forms_of(op, sizes))
    jobs = [names]
    together = arguments.together or torch.device(sizes.device).type != "cpu"
    if not together:
        # The plain form last: what remains under "ours" was measured beside it.
        jobs = [["ours", rival] for rival in sorted(names[1:], key=lambda name: name == "rfft")]
    row: dict[str, Any] = {}
    choice = OPS[op].choice
    computes = None if choice is None else chosen(choice, sizes)
    settings = {name: getattr(arguments, name) for name in SETTINGS} | {"ours": computes}
    settings |= machine(sizes.device)
    for job in jobs:
        key = {"op": op, "candidates": job, "sizes": sizes._asdict(), "settings": settings}
        found = log.get(key)
        if found is None and left.is_over():
            return None
        if found is None:
            work = (arguments, op, sizes, job)
            found = benchmark(*work) if together else in_fresh_process(benchmark, *work)
            log.append(key, found)
        pair = pair_row(found)
        rivals = ", ".join(f"{name} {pair[f'vs_{name}']:.2f}" for name in job[1:] if f"vs_{name}" in pair)
        print(f"{op}, length {sizes.length}: ours {pair['ours_ms']:.2f} ms; over it {rivals}", file=sys.stderr)
        row = {**row, **pair} | {part: row.get(part, {}) | pair[part] for part in ("errors", "left_out")}
    row["chosen"] = computes
    ours = OPS[op].forms["ours"]
    row["floor_forward_ms"], row["floor_ms"] = roofline.floor_ms(sizes, ours, bandwidth)
    row["floor_percent"] = 100 * row["floor_ms"] / row["ours_ms"]
    row["inputs_mib"] = roofline.kept_bytes(sizes, ours) / 2**20
    return row


def kept_rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Count what the causal product and torch.fft keep for backward, in float32 and bfloat16 (16 rows or more)."""
    length = 1024 if 1024 in arguments.lengths else arguments.lengths[0]
    rows = []
    for dtype, batch in (("float32", arguments.batch), ("bfloat16", max(16, arguments.batch))):
        sizes = sizes_of(arguments, length, dtype)._replace(batch=batch)
        kept = {}
        for name in ("ours", "rfft"):
            call = call_of(OPS["toeplitz"].forms[name], sizes)
            kept[name] = saved_bytes(call.function, call.inputs)
        inputs = roofline.kept_bytes(sizes, OPS["toeplitz"].forms["ours"])
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
    """Return columns of the tables of time and of memory of an operation."""
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
    parser = CommandParser(description=__doc__)
    parser.add_argument("--ops", nargs="+", choices=list(OPS), default=list(OPS), help="operations to time; see above")
    add_size_arguments(parser, CPU_LENGTHS, GPU_LENGTHS)
    parser.add_argument(
        "--dtype", choices=list(BOUNDS), help="data type of the inputs; float32 by default, on a GPU bfloat16"
    )
    parser.add_argument("--rounds", type=int, default=25, help="timed rounds at most, whose median counts")
    parser.add_argument(
        "--seconds", type=float, default=15, help="seconds of a rotation; three rounds take place in any case"
    )
    parser.add_argument("--together", action="store_true", help="all candidates in one process and one rotation")
    parser.add_argument("--output-dir", default="runs/benchmark-ops", help="where results, tables and plots go")
    arguments = parse_with_fast(parser, argv, FAST)
    on_gpu = torch.device(arguments.device).type != "cpu"
    arguments.dtype = arguments.dtype or ("bfloat16" if on_gpu else "float32")
    check_size_arguments(parser, arguments)
    return arguments


@explained("benchmark_ops.py", "; the same command continues where it stopped")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark and return its rows."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    folder = prepare_run_folder(arguments.output_dir, resume=True)
    bandwidth = roofline.copy_bandwidth(device, 2**24 if arguments.fast else None)
    log = ResultFile(folder / "benchmark_ops.jsonl")
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    left = Time(arguments.minutes)
    for length in arguments.lengths:
        for op in arguments.ops:
            sizes = sizes_of(arguments, length, arguments.dtype)
            try:
                row = benchmark_all(arguments, op, sizes, log, bandwidth, left)
                rows += [] if row is None else [row]
            except WrongResultError as error:  # what is wrong is not timed; the others are
                faults.append(str(error))
            except torch.OutOfMemoryError as error:
                faults.append(f"{op}, length {length}: {error}")
            if faults and device.type == "cuda":
                gc.collect()
                torch.cuda.empty_cache()
    rows.sort(key=lambda row: arguments.ops.index(row["op"]))  # lengths were the outer loop
    if not rows:
        sys.exit("\n".join(["benchmark_ops.py: nothing was measured.", *(faults or ["Give more --minutes."])]))
    kept = kept_rows(arguments)
    problems = {length: sizes_of(arguments, length, arguments.dtype) for length in arguments.lengths}
    elements = min(sizes.batch * sizes.channels * sizes.length for sizes in problems.values())
    goals = op_goals(rows, kept, arguments.device, arguments.dtype, elements)
    model = roofline.model_rows(rows, problems, bandwidth if device.type == "cuda" else None)
    amount = f"{arguments.elements} elements" if arguments.elements else f"batch {arguments.batch}"
    where = f"{amount}, {arguments.channels} channels, {arguments.dtype}, {arguments.device}, {rows[0]['clock']}"
    where += f", torch {torch.__version__}, copying {bandwidth / 1e9:.1f} GB/s"
    sections: list[tuple[str, Sequence[dict[str, Any]], dict[str, str]]] = [(f"Goals: {where}", goals, GOAL_COLUMNS)]
    for op in arguments.ops:
        mine = [row for row in rows if row["op"] == op]
        if not mine:
            continue
        times, memory = columns_of(mine)
        sections.append((f"{OPS[op].title} ({op}), forward and backward: {where}", mine, times))
        sections.append((f"{OPS[op].title}, memory", mine, memory))
        plot_op(mine, folder / f"benchmark_ops_{op}.png", f"{OPS[op].title}: {where}", bandwidth)
    sections.append(("Bytes kept for backward by the causal product", kept, KEPT_COLUMNS))
    sections.append(("The model of torch.fft's traffic on a GPU in half precision", model, MODEL_COLUMNS))
    run = run_of(arguments, "benchmark_ops")
    size = "fast" if arguments.fast else ""
    of_kept = row_results(kept, "bytes kept for backward", "toeplitz", setting=("batch", "length"), run=run, size=size)
    log.append({"part": "kept", "run": run.digest}, of_kept)
    write_report(arguments, "benchmark_ops", sections)
    if faults:
        sys.exit("\n".join(["benchmark_ops.py: not everything was timed.", *faults]))
    return rows


if __name__ == "__main__":
    main()
