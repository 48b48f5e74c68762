"""Times the implementations of each operation on this machine and says which should serve which lengths.

    python scripts/speed/tune.py --threads 1 --output-dir runs/tune
    python scripts/speed/tune.py --device cuda --elements 33554432 --channels 1024 --output-dir runs/tune-gpu

What is timed, for each operation, dtype and length, forward and backward: every implementation that runs on the device
(see `hf_seqmix.ops.common.crossovers`); implementations with other constants (bytes that a block of transforms takes,
positions of a chunk); and forms that no table names: a convolution, dense matrices, linear attention by its definition
or over all chunks at once. Each is checked against float64 first, output and gradients; what is wrong is left out and
named. Times are medians over rounds in which all run in turn (see benchmark_ops.py, also for the clocks).

From the implementations a table of crossovers is made: rows (longest length, name) by which the total of the
logarithms of the times is least, where a change of name must save --margin of the time at one length. Limits between
two measured lengths are where the two times cross. HF_SEQMIX_NATIVE=1 has SKI compiled in C for the CPU and times it,
too.

Prints the table as crossovers.py has it, and where the one in force costs time. Writes tune.json, which
`hf_seqmix.ops.common.crossovers.use_crossovers` reads, tune.md and a plot; tune.jsonl takes every result at once, and
the same command goes on from there. With --minutes, the table is made of what was measured until then.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from operations.arguments import FAST, add_size_arguments, check_size_arguments, parse_with_fast, sizes_of
from operations.candidates import BOUNDS, chosen
from operations.forms import Sizes
from operations.plots import plot_points
from operations.variants import TUNED, candidate_of, variants_of
from timing.crossover_table import CrossoverRows, table_of, table_text
from timing.protocol import Time, check_all, machine, time_in_turn

from hf_seqmix._files import write_json
from hf_seqmix.ops.common.crossovers import crossovers_in_force
from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import CommandParser, explained
from hf_seqmix.training.result_files import ResultFile, write_report
from hf_seqmix.training.results import Result, with_run
from hf_seqmix.training.run import run_of
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.timing import Clock, in_fresh_process

CPU_LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096, 8192]
GPU_LENGTHS = [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
SETTINGS = ("threads", "rounds", "seconds")


def kind_of(device: str, dtype: str) -> str:
    """Return the key of a device and dtype in the table of crossovers."""
    name = torch.device(device).type
    return name if name == "cpu" else f"{name} {'single' if dtype == 'float32' else 'half'}"


def measure(arguments: argparse.Namespace, choice: str, sizes: Sizes) -> list[Result]:
    """Check and time every variant at one length."""
    torch.set_num_threads(arguments.threads)
    clock = Clock(torch.device(sizes.device))
    variants = variants_of(choice, sizes)
    candidates = {name: candidate_of(name, variant, sizes) for name, variant in variants.items()}
    errors, left_out = check_all(candidates, f"{choice}, length {sizes.length}")
    if not candidates:
        raise RuntimeError(f"{choice}: nothing is right at length {sizes.length}: {left_out}.")
    times: dict[str, float] = {}
    for slow in (False, True):
        group = {name: candidate for name, candidate in candidates.items() if variants[name].slow == slow}
        if group:
            times |= time_in_turn(group, arguments.rounds, clock, arguments.seconds, drawn=True, memory=False)
    setting: dict[str, Any] = {"dtype": sizes.dtype, "kind": kind_of(sizes.device, sizes.dtype)}
    setting |= {"length": sizes.length, "batch": sizes.batch, "clock": clock.kind}
    results, size = [], "fast" if arguments.fast else ""
    for name in candidates:
        own = setting | {"implementation": variants[name].encoded, "constant_of": variants[name].base}
        row = own | {"error": errors[name], "forward_ms": times[f"{name}_forward_ms"], "ms": times[f"{name}_ms"]}
        results += row_results([row], choice, name, setting=list(own), size=size)
    for name, fault in left_out.items():
        results.append(Result(choice, name, "ms", None, size=size, setting=setting | {"left_out": fault}))
    return with_run(results, run_of(arguments, "tune", {"op": choice}, length=sizes.length, batch=sizes.batch))


def point_of(results: Sequence[Result]) -> dict[str, Any]:
    """Return what was measured of an operation at one length, each quantity by the name of its variant."""
    first = results[0]
    point: dict[str, Any] = {name: first.setting[name] for name in ("dtype", "kind", "length", "batch", "clock")}
    point |= {"op": first.task, "error": {}, "forward_ms": {}, "ms": {}}
    point["left_out"] = {result.model: result.get("left_out") for result in results if result.get("left_out")}
    timed = [result for result in results if result.get("left_out") is None]
    for result in timed:
        point[result.metric][result.model] = result.value
    point["implementations"] = list(dict.fromkeys(r.model for r in timed if r.setting["implementation"]))
    point["bases"] = {r.model: r.setting["constant_of"] for r in timed if r.setting["constant_of"] is not None}
    return point


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
    """Return the time of every other constant over that of the constant in force: geometric mean, least and most."""
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
    parser = CommandParser(description=__doc__)
    parser.add_argument("--ops", nargs="+", choices=list(TUNED), default=list(TUNED), help="operations to time")
    add_size_arguments(parser, CPU_LENGTHS, GPU_LENGTHS)
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=list(BOUNDS),
        help="data types of the inputs; float32 by default; on a GPU bfloat16, too",
    )
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds at most, whose median counts")
    parser.add_argument(
        "--seconds",
        type=float,
        default=20,
        help="seconds of an operation at a length; three rounds take place in any case",
    )
    parser.add_argument(
        "--margin", type=float, default=0.03, help="share of the time that a change of implementation must save"
    )
    parser.add_argument("--output-dir", default="runs/tune", help="where results, tables and plot go")
    arguments = parse_with_fast(parser, argv, FAST)
    on_gpu = torch.device(arguments.device).type != "cpu"
    arguments.dtype = arguments.dtype or (["bfloat16", "float32"] if on_gpu else ["float32"])
    check_size_arguments(parser, arguments)
    if arguments.margin < 0:
        parser.error(f"--margin is {arguments.margin}; give at least 0.")
    return arguments


@explained("tune.py", "; the same command continues where it stopped")
def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, CrossoverRows]]:
    """Run the measurements and return the table of crossovers."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.threads)
    folder = prepare_run_folder(arguments.output_dir, resume=True)
    log = ResultFile(folder / "tune.jsonl")
    settings = {name: getattr(arguments, name) for name in SETTINGS} | machine(arguments.device)
    left = Time(arguments.minutes)
    points, rows = [], []
    for length in sorted(arguments.lengths, key=_places(arguments.lengths).__getitem__):
        for dtype in arguments.dtype:
            for op in arguments.ops:
                sizes = sizes_of(arguments, length, dtype)
                key = {"op": op, "sizes": sizes._asdict(), "settings": settings}
                key["variants"] = list(variants_of(op, sizes))
                found = log.get(key)
                if found is None and left.is_over():
                    continue
                if found is None:
                    on_gpu = torch.device(arguments.device).type != "cpu"
                    job = (arguments, op, sizes)
                    found = measure(*job) if on_gpu else in_fresh_process(measure, *job)
                    log.append(key, found)
                point = point_of(found)
                rows.append(judged(point, chosen(op, sizes)))
                points.append(point | {"in_force": rows[-1]["in_force"]})
                print(f"{op}, {dtype}, length {length}: best {rows[-1]['best']}", file=sys.stderr)
    if not points:
        sys.exit("tune.py: nothing was measured: give more --minutes.")
    order = {op: place for place, op in enumerate(arguments.ops)}
    rows.sort(key=lambda row: (order[row["op"]], row["dtype"], row["length"]))
    points.sort(key=lambda point: (order[point["op"]], point["dtype"], point["length"]))
    table = table_of(points, arguments.margin)
    amount = f"{arguments.elements} elements" if arguments.elements else f"batch {arguments.batch}"
    where = f"{amount}, {arguments.channels} channels, {arguments.device}, {points[0]['clock']}"
    where += f", torch {torch.__version__}"
    constants = constant_rows(points)
    sections: list[tuple[str, Sequence[dict[str, Any]], dict[str, str]]] = [
        (f"Forward and backward: {where}", rows, COLUMNS),
        ("Other constants", constants, CONSTANT_COLUMNS),
    ]
    write_report(arguments, "tune", sections)
    write_json(folder / "tune.json", {"crossovers": table, "in_force": crossovers_in_force()})
    plot_points(points, folder / "tune.png", f"Forward and backward: {where}")
    print(f"\nThe table of crossovers, as measured:\n\n{table_text(table)}\n\n{differences(rows, arguments.margin)}")
    return table


def _places(lengths: Sequence[int]) -> dict[int, int]:
    """Return the place of each length in the order of measuring: every second one first, so that a part spans all."""
    return {length: place for place, length in enumerate([*lengths[::2], *lengths[1::2]])}


def differences(rows: Sequence[Mapping[str, Any]], margin: float) -> str:
    """Say where the implementation in force costs more than the margin."""
    worse = [row for row in rows if row["cost_percent"] is not None and row["cost_percent"] > 100 * margin]
    if not worse:
        return f"The implementations in force are within {100 * margin:g} % of the best everywhere."
    lines = [
        f"  {row['op']}, {row['dtype']}, length {row['length']}: {row['in_force']} takes "
        f"{row['cost_percent']:.0f} % more than {row['best']}"
        for row in worse
    ]
    return "\n".join(["What is in force costs more than the best:", *lines])


if __name__ == "__main__":
    main()
