"""Times the implementations of each operation on this machine and says which should serve which lengths.

    python scripts/speed/tune.py --threads 1 --output-dir runs/tune
    python scripts/speed/tune.py --device cuda --elements 33554432 --channels 1024 --output-dir runs/tune-gpu

What is timed, for each operation, dtype and length, forward and backward: every implementation that runs on the device (see
`hf_seqmix.ops.common.crossovers`); implementations with other constants (bytes that a block of transforms takes, positions of a
chunk); and forms that no table names: a convolution, dense matrices, linear attention by its definition or over all chunks at
once. Each is checked against float64 first, output and gradients; what is wrong is left out and named. Times are medians over
rounds in which all run in turn (see benchmark_ops.py, also for the clocks).

From the implementations a table of crossovers is made: rows (longest length, name) by which the total of the logarithms of the
times is least, where a change of name must save --margin of the time at one length. Limits between two measured lengths are
where the two times cross. HF_SEQMIX_NATIVE=1 has SKI compiled in C for the CPU and times it, too.

Prints the table as crossovers.py has it, and where the one in force costs time. Writes tune.json, which
`hf_seqmix.ops.common.crossovers.use_crossovers` reads, tune.md and a plot; points.jsonl takes every result at once, from which the
same command goes on.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from crossover_table import Rows, table_of, table_text
from op_candidates import Sizes, chosen, make_inputs, supported
from op_checks import BOUNDS, error_of, under
from tune_candidates import TUNED, Variant, active, variants_of
from tune_plots import plot_points

from hf_seqmix.analysis.report import ResultLog
from hf_seqmix.ops.common.crossovers import crossovers_in_force
from hf_seqmix.training.timing import (
    Clock,
    Timed,
    forward_backward,
    in_fresh_process,
    interleave,
    medians_ms,
    write_report,
)

CPU_LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096, 8192]
GPU_LENGTHS = [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
SETTINGS = ("threads", "rounds", "seconds")


def kind_of(device: str, dtype: str) -> str:
    """Return the key of a device and dtype in the table of crossovers."""
    name = torch.device(device).type
    return name if name == "cpu" else f"{name} {'single' if dtype == 'float32' else 'half'}"


def within(variant: Variant, once: Timed) -> Timed:
    """Measure with a variant's constant and form in force."""

    def call(clock: Clock) -> tuple[float, ...]:
        with active(variant):
            return once(clock)

    return call


def measure(arguments: argparse.Namespace, choice: str, sizes: Sizes) -> dict[str, Any]:
    """Check and time every variant at one length."""
    torch.set_num_threads(arguments.threads)
    clock = Clock(torch.device(sizes.device))
    timed: dict[str, Timed] = {}
    errors: dict[str, float] = {}
    left_out: dict[str, str] = {}
    variants = variants_of(choice, sizes)
    for name, variant in variants.items():
        try:
            with active(variant):
                error = error_of(sizes, variant.candidate)
            fault = "" if error < BOUNDS[sizes.dtype] else f"relative error {error:.2g}"
        except Exception as problem:
            fault = f"{type(problem).__name__}: {problem}"[:300]
        if fault:
            left_out[name] = fault
            print(f"{choice}, length {sizes.length}: {name} is left out: {fault}", file=sys.stderr)
            continue
        errors[name] = error
        *tensors, upstream = make_inputs(sizes, variant.candidate)
        once = forward_backward(supported(variant.candidate), tensors, upstream)
        timed[name] = within(variant, under(variant.candidate, once))
    if not timed:
        raise RuntimeError(f"{choice}: nothing is right at length {sizes.length}: {left_out}.")
    medians: dict[str, list[float]] = {}
    for slow in (False, True):
        group = {name: once for name, once in timed.items() if variants[name].slow == slow}
        if group:
            seconds = interleave(group, arguments.rounds, clock, arguments.seconds, drawn=True)
            medians |= {name: medians_ms(of_one) for name, of_one in seconds.items()}
    return {
        "op": choice,
        "dtype": sizes.dtype,
        "kind": kind_of(sizes.device, sizes.dtype),
        "length": sizes.length,
        "batch": sizes.batch,
        "clock": clock.kind,
        "errors": errors,
        "left_out": left_out,
        "forward_ms": {name: forward for name, (forward, _) in medians.items()},
        "ms": {name: both for name, (_, both) in medians.items()},
        "implementations": [name for name in timed if variants[name].encoded],
        "bases": {name: variants[name].base for name in timed if variants[name].base is not None},
    }


def judged(point: Mapping[str, Any], in_force: str) -> dict[str, Any]:
    """Return a line of the report: the best, and what the implementation in force costs over the best of those."""
    ms = point["ms"]
    of_ours = [name for name in point["implementations"] if name in ms]
    best = min(of_ours, key=lambda name: ms[name], default=None)
    fastest = min(ms, key=lambda name: ms[name])
    used = ms.get(in_force)
    row = {name: point[name] for name in ("op", "dtype", "length", "batch")}
    row |= {"in_force": in_force, "in_force_ms": used, "best": best, "best_ms": None if best is None else ms[best]}
    row["cost_percent"] = None if best is None or used is None else 100 * (used / ms[best] - 1)
    return row | {"fastest": fastest, "fastest_ms": ms[fastest]}


def constant_rows(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, for every other constant, its time over that of the constant in force: geometric mean, least and most."""
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for point in points:
        for name, base in point["bases"].items():
            if base in point["ms"]:
                ratios.setdefault((point["op"], point["dtype"], name), []).append(
                    point["ms"][name] / point["ms"][base]
                )
    return [
        {"op": op, "dtype": dtype, "constant": name, "mean": statistics.geometric_mean(found)}
        | {"least": min(found), "most": max(found), "lengths": len(found)}
        for (op, dtype, name), found in ratios.items()
    ]


COLUMNS = {
    "op": "operation",
    "dtype": "dtype",
    "length": "length",
    "batch": "batch",
    "in_force": "in force",
    "in_force_ms": "ms:.3f",
    "best": "best implementation",
    "best_ms": "its ms:.3f",
    "cost_percent": "in force costs %:+.0f",
    "fastest": "fastest of all",
    "fastest_ms": "its time:.3f",
}
CONSTANT_COLUMNS = {
    "op": "operation",
    "dtype": "dtype",
    "constant": "constant",
    "mean": "time over that in force:.2f",
    "least": "least:.2f",
    "most": "most:.2f",
    "lengths": "lengths",
}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", choices=list(TUNED), default=list(TUNED))
    parser.add_argument("--lengths", type=int, nargs="+", help="64 to 8192 by default, on a GPU 128 to 32768")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--elements", type=int, help="instead: as many rows as make that many elements")
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--points", type=int, default=64, help="inducing points of ski, at most one a token")
    parser.add_argument("--taps", type=int, default=33, help="taps of the short convolution of ski, odd")
    parser.add_argument("--dtype", nargs="+", choices=list(BOUNDS), help="float32 by default; on a GPU bfloat16, too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20, help="for a length; three rounds take place in any case")
    parser.add_argument("--margin", type=float, default=0.03, help="part of the time that a change of name must save")
    parser.add_argument("--fast", action="store_true", help="small and short, to see that it works")
    parser.add_argument("--output-dir", default="runs/tune")
    arguments = parser.parse_args(argv)
    on_gpu = torch.device(arguments.device).type != "cpu"
    arguments.dtype = arguments.dtype or (["bfloat16", "float32"] if on_gpu else ["float32"])
    if arguments.fast:
        arguments.lengths, arguments.rounds = arguments.lengths or [32, 100], 1
        arguments.batch, arguments.channels, arguments.head_width, arguments.points = 2, 16, 8, 16
    arguments.lengths = sorted(set(arguments.lengths or (GPU_LENGTHS if on_gpu else CPU_LENGTHS)))
    if min(*arguments.lengths, arguments.rounds, arguments.batch, arguments.channels) < 1 or arguments.margin < 0:
        parser.error("lengths, rounds, batch and channels must be at least 1, and the margin at least 0.")
    if "ski" in arguments.ops and (arguments.lengths[0] < 2 or arguments.points < 2 or arguments.taps % 2 == 0):
        parser.error("ski needs lengths and points of at least 2, and an odd number of taps.")
    if arguments.head_width < 1 or arguments.channels % min(arguments.head_width, arguments.channels):
        parser.error(f"--head-width {arguments.head_width} must divide --channels {arguments.channels}.")
    return arguments


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, Rows]]:
    """Run the measurements and return the table of crossovers."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.threads)
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    log = ResultLog(folder / "points.jsonl")
    settings = {name: getattr(arguments, name) for name in SETTINGS} | {"torch": torch.__version__}
    points, rows = [], []
    for op in arguments.ops:
        for dtype in arguments.dtype:
            for length in arguments.lengths:
                sizes = sizes_of(arguments, length, dtype)
                key = {"op": op, "sizes": sizes._asdict(), "settings": settings}
                key["variants"] = list(variants_of(op, sizes))
                point = log.get(key)
                if point is None:
                    on_gpu = torch.device(arguments.device).type != "cpu"
                    job = (arguments, op, sizes)
                    point = measure(*job) if on_gpu else in_fresh_process(measure, *job)
                    log.append(key, point)
                rows.append(judged(point, chosen(op, sizes)))
                points.append(point | {"in_force": rows[-1]["in_force"]})
                print(f"{op}, {dtype}, length {length}: best {rows[-1]['best']}", file=sys.stderr)
    table = table_of(points, arguments.margin)
    amount = f"{arguments.elements} elements" if arguments.elements else f"batch {arguments.batch}"
    where = f"{amount}, {arguments.channels} channels, {arguments.device}, {points[0]['clock']}"
    where += f", torch {torch.__version__}"
    constants = constant_rows(points)
    sections: list[tuple[str, Sequence[dict[str, Any]], dict[str, str]]] = [
        (f"Forward and backward: {where}", rows, COLUMNS),
        ("Other constants", constants, CONSTANT_COLUMNS),
    ]
    parts = {"rows": rows, "constants": constants, "points": points, "crossovers": table}
    write_report(arguments, "tune", sections, in_force=crossovers_in_force(), **parts)
    plot_points(points, folder / "tune.png", f"Forward and backward: {where}")
    print(f"\nThe table of crossovers, as measured:\n\n{table_text(table)}\n\n{differences(rows, arguments.margin)}")
    return table


def sizes_of(arguments: argparse.Namespace, length: int, dtype: str) -> Sizes:
    """Sizes at one length."""
    batch = arguments.batch
    if arguments.elements:
        batch = max(1, arguments.elements // (arguments.channels * length))
    width = min(arguments.head_width, arguments.channels)
    return Sizes(batch, arguments.channels, length, width, arguments.points, arguments.taps, dtype, arguments.device)


def differences(rows: Sequence[Mapping[str, Any]], margin: float) -> str:
    """Say where the implementation in force costs more than the margin."""
    worse = [row for row in rows if row["cost_percent"] is not None and row["cost_percent"] > 100 * margin]
    if not worse:
        return f"The implementations in force are within {100 * margin:g} % of the best everywhere."
    lines = [
        f"  {row['op']}, {row['dtype']}, length {row['length']}: {row['in_force']} takes {row['cost_percent']:.0f} % more than "
        f"{row['best']}"
        for row in worse
    ]
    return "\n".join(["What is in force costs more than the best:", *lines])


if __name__ == "__main__":
    main()
