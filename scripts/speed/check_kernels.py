"""Compares every implementation of every operation with its definition in float64, on the device at hand.

    python scripts/speed/check_kernels.py --device cuda --output-dir runs/check-kernels
    TRITON_INTERPRET=1 python scripts/speed/check_kernels.py --device cpu --lengths 1 33 --dtypes float32

An error is the norm of the difference over the norm of the exact result, the largest of the output and of every
gradient. The bound of each dtype is that of the benchmarks (see `operations.candidates.BOUNDS`). A fault is an
exception, such as a kernel that does not compile. No case keeps the others from running: the command ends with status
1 after the last case if one was wrong. But a fault that leaves the GPU of no use to the process ends the run.
Seconds are those of the first call, compilation included.

Writes a table; check_kernels.jsonl takes every case at once, and the same command goes on from there. It tries
faults again, after the cases that were not begun.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from operations.candidates import BOUNDS, candidate, usable
from operations.forms import OPS, Sizes
from operations.variants import TUNED
from timing.protocol import Candidate, Time, machine

from hf_seqmix.training.command import CommandParser, add_device_argument, explained
from hf_seqmix.training.result_files import ResultFile, write_report
from hf_seqmix.training.results import Result, with_run
from hf_seqmix.training.run import run_of
from hf_seqmix.training.timing import relative_error

COLUMNS = {
    "op": "operation",
    "implementation": "implementation",
    "dtype": "dtype",
    "length": "length",
    "error": "error:.2g",
    "bound": "bound:g",
    "verdict": "right",
    "seconds": "first call s:.1f",
    "fault": "fault",
}


def error_of(found: Candidate) -> float:
    """Return the largest relative error of a candidate, infinite where a value is not a number."""
    worst = 0.0
    for oracle in found.oracles():
        with found.active():
            actual = oracle.actual()
        for value, exact in zip(actual, oracle.expected(), strict=True):
            error = relative_error(value, exact)
            worst = max(worst, error if error == error else float("inf"))
    return worst


def check_case(op: str, name: str, sizes: Sizes) -> dict[str, Any]:
    """Return what came of one implementation at one length."""
    form = OPS[TUNED[op]].forms["ours"]._replace(names=((op, name),))
    start = time.perf_counter()
    error, fault = None, ""
    try:
        error = error_of(candidate(name, form, sizes))
    except Exception as found:  # whatever a compiler or driver raises is what the table is about
        fault = f"{type(found).__name__}: {found}".replace("\n", " ")[:200]
    bound = BOUNDS[sizes.dtype]
    right = error is not None and error < bound
    row = {"op": op, "implementation": name, "dtype": sizes.dtype, "length": sizes.length, "error": error}
    return row | {"bound": bound, "right": right, "fault": fault, "seconds": time.perf_counter() - start}


def is_lost(device: str) -> bool:
    """Return whether an error left a GPU of no use to this process: all later calls would fail, too."""
    try:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def is_fault(found: Sequence[Result] | None) -> bool:
    """Return whether the results of a case are those of an exception."""
    return found is not None and found[0].setting["fault"] != ""


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, str, Sizes]]:
    """Yield operation, implementation and sizes of each case, kernels in half precision first."""
    for dtype in arguments.dtypes:
        for op in arguments.ops:
            for length in arguments.lengths:
                points = min(64, length)
                if op == "ski" and points < 2:
                    continue
                sizes = Sizes(arguments.batch, arguments.channels, length, arguments.head_width, points, 33, dtype)
                sizes = sizes._replace(device=arguments.device)
                for name in usable(op, sizes, os.environ.get("TRITON_INTERPRET") == "1"):
                    yield op, name, sizes


def results_of(arguments: argparse.Namespace, row: dict[str, Any], device: str) -> list[Result]:
    """Return a case as results: error and seconds."""
    setting = {"dtype": row["dtype"], "length": row["length"], "bound": row["bound"], "right": row["right"]}
    setting |= {"fault": row["fault"], "device": device}
    found = [
        Result(row["op"], row["implementation"], name, row[name], setting=setting) for name in ("error", "seconds")
    ]
    return with_run(found, run_of(arguments, "check_kernels", {"op": row["op"]}, length=row["length"]))


def row_of(results: Sequence[Result]) -> dict[str, Any]:
    """Return the line of the table that results are."""
    row = {"op": results[0].task, "implementation": results[0].model, **results[0].setting}
    row |= {result.metric: result.value for result in results}
    return row | {"verdict": "yes" if row["right"] else "NO"}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--ops", nargs="+", choices=list(TUNED), default=list(TUNED), help="operations to check")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[1, 7, 64, 129, 512, 1021, 2048, 8192, 16384], help="tokens of a row"
    )
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=list(BOUNDS),
        default=["bfloat16", "float32", "float16"],
        help="data types of the inputs",
    )
    parser.add_argument("--batch", type=int, default=3, help="rows of a batch")
    parser.add_argument("--channels", type=int, default=192, help="channels of the inputs")
    parser.add_argument("--head-width", type=int, default=64, help="channels of a head, a divisor of --channels")
    add_device_argument(parser)
    parser.add_argument("--minutes", type=float, help="minutes after which no further case begins; by default none")
    parser.add_argument("--output-dir", default="runs/check-kernels", help="where results and table go")
    arguments = parser.parse_args(argv)
    if min(*arguments.lengths, arguments.batch, arguments.channels, arguments.head_width) < 1:
        parser.error("lengths, batch, channels and head width must be at least 1.")
    if arguments.channels % arguments.head_width:
        parser.error(f"--head-width {arguments.head_width} must divide --channels {arguments.channels}.")
    return arguments


@explained("check_kernels.py")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and return 1 if one was wrong."""
    arguments = parse_arguments(argv)
    on_gpu = torch.device(arguments.device).type == "cuda"
    device = torch.cuda.get_device_name(arguments.device) if on_gpu else arguments.device
    log = ResultFile(Path(arguments.output_dir) / "check_kernels.jsonl")
    left = Time(arguments.minutes)
    on = machine(arguments.device)
    todo = [
        (op, name, sizes, {"op": op, "name": name, "sizes": sizes._asdict(), **on})
        for op, name, sizes in cases(arguments)
    ]
    rows, missing, lost = [], 0, False
    for op, name, sizes, key in sorted(todo, key=lambda case: is_fault(log.get(case[-1]))):
        found = log.get(key)
        if (found is None or is_fault(found)) and not (lost or left.is_over()):
            found = results_of(arguments, check_case(op, name, sizes), device)
            log.append(key, found)
            lost = is_fault(found) and is_lost(arguments.device)
        if found is None:
            missing += 1
            continue
        row = row_of(found)
        rows.append(row)
        if not row["right"]:
            print(
                f"{op}, {name}, {sizes.dtype}, length {sizes.length}: {row['error']} {row['fault']}", file=sys.stderr
            )
    wrong = [row for row in rows if not row["right"]]
    title = f"Errors against float64: {device}, torch {torch.__version__}"
    summary = f"{len(rows)} cases, {len(wrong)} wrong, {missing} not begun"
    write_report(
        arguments, "check_kernels", [(f"{title}: {summary}", wrong + [r for r in rows if r["right"]], COLUMNS)]
    )
    if lost:
        print(f"a fault left {arguments.device} of no use to this process, which ends.", file=sys.stderr)
    if missing:
        limit = "" if lost else f" in {arguments.minutes} minutes"
        print(f"{missing} cases were not begun{limit}: run the same command again.", file=sys.stderr)
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
