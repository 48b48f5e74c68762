r"""Times one layer in training, forward and backward, against layers of other designs.

    python scripts/speed/benchmark_models.py --tables layers transformers --threads 1 \
        --output-dir runs/benchmark-models
    python scripts/speed/benchmark_models.py --tables layers transformers others --device cuda --dtype bfloat16 \
        --hidden-size 1024 --tokens 32768 --lengths 512 2048 8192 16384 --output-dir runs/benchmark-models-gpu

Tables:
  layers        hidden size 256, an encoder 32 wide with one hidden layer, SKI with 64 points and 33 taps: tokens a
                second of the Toeplitz families against the original's design in the same direction, for SKI in both,
                and of bidirectional FD-TNN against bidirectional TNN
  paper         the comparison of Moreno, Mei, Walters 2023 (arXiv 2305.09028), section 5: FD-TNN and SKI-TNN against a
                TNN whose encoder is 64 wide and 6 layers deep, 4096 tokens a step, time and peak memory beside the
                published figures, which are of whole models, of the authors' code, on an NVIDIA A100; the one of
                bidirectional FD-TNN is their best case; "original_fd" is the FD-TNN of layers/original_tnn.py
  transformers  every family, and a block of the package with attention, against a layer of the library's Llama as wide
                and with as many parameters, its feed-forward as wide as that takes, with fused attention; SKI, which
                has no causal form, against both directions
  others        against a layer of the library's Mamba with as many parameters, in its plain form unless its kernels
                are installed and so only up to --slow-limit tokens; and on a GPU against gated linear attention of
                flash-linear-attention, where that is installed

"original" is the layer of layers/original_tnn.py. The package's TNN must give its output and input gradient for
the same weights, and every layer its own result in float64, under autocast too; nothing is timed otherwise. Each pair
has a process of its own, in which the two run in turn; times are medians over rounds (see benchmark_ops.py, also for
the clocks). Peak memory is that of all tensors allocated during a step, gradients included, weights and input not (see
`peak_bytes`). HF_SEQMIX_NATIVE=1 lets SKI use its kernel in C on a CPU. Writes tables (goals of both kinds of device
among them, "unmeasured" where the run does not say) and a plot a table; benchmark_models.jsonl takes the results of
each pair at once, and the same command goes on from there.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from layers.candidates import (
    Pair,
    Trial,
    candidates_of,
    count,
    layer_pairs,
    other_pairs,
    paper_pairs,
    transformer_pairs,
)
from layers.goals import layer_goals
from layers.plots import plot_layers, plot_paper
from operations.arguments import parse_with_fast
from timing.goals import COLUMNS as GOAL_COLUMNS
from timing.protocol import Time, check_all, machine, time_in_turn

from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import CommandParser, add_device_argument, explained, positive
from hf_seqmix.training.result_files import ResultFile, write_report
from hf_seqmix.training.run import run_of
from hf_seqmix.training.table_rows import row_of, row_results
from hf_seqmix.training.timing import Clock, in_fresh_process


def measure(arguments: argparse.Namespace, pair: Pair, length: int, batch: int) -> dict[str, Any]:
    """Time a pair of layers at one length, interleaved, and take the peak memory of a step of each."""
    torch.set_num_threads(arguments.threads)
    clock = Clock(torch.device(arguments.device))
    trial = Trial(pair, length, batch, arguments.hidden_size, arguments.dtype, arguments.device)
    candidates = candidates_of(trial)
    errors, _ = check_all(candidates, f"length {length}")
    parameters = {name: count(module) for name, module in trial.layers.items()}
    row: dict[str, Any] = {
        "direction": pair.layer.direction,
        "length": length,
        "batch": batch,
        "layer": pair.layer.name,
        "rival": pair.rival.name + ("" if pair.layer.causal == pair.rival.causal else ", causal"),
        "layer_parameters": parameters["layer"],
        "rival_parameters": parameters["rival"],
        "clock": clock.kind,
        "hidden_size": arguments.hidden_size,
        "dtype": arguments.dtype,
        "device": arguments.device,
        "error": max(errors.values()),
    }
    row |= time_in_turn(candidates, arguments.rounds, clock, arguments.seconds)
    for name in candidates:
        row[f"{name}_tokens_per_s"] = batch * length / row[f"{name}_ms"] * 1e3
    row["ratio"] = row["rival_ms"] / row["layer_ms"]
    row["faster_percent"] = 100 * (row["ratio"] - 1)
    row["less_memory_percent"] = 100 * (1 - row["layer_peak_mib"] / row["rival_peak_mib"])
    for name, published in (("faster", pair.published_faster), ("less_memory", pair.published_memory)):
        known = published.get(length, published.get(None))
        row[f"published_{name}_percent"] = None if known is None else 100 * known
    return row


def within_memory(arguments: argparse.Namespace, pair: Pair, length: int, batch: int) -> dict[str, Any] | None:
    """Measure a pair in this process; None, and a line that says so, where the memory of the GPU does not suffice."""
    try:
        return measure(arguments, pair, length, batch)
    except torch.OutOfMemoryError:
        print(f"length {length}: no memory for {pair.layer.name} against {pair.rival.name}", file=sys.stderr)
        return None
    finally:
        gc.collect()
        if torch.device(arguments.device).type == "cuda":
            torch.cuda.empty_cache()


SPEED_COLUMNS = {
    "length": "length",
    "batch": "batch",
    "direction": "direction",
    "layer": "layer",
    "rival": "against",
    "layer_tokens_per_s": "tokens/s:,.0f",
    "rival_tokens_per_s": "its tokens/s:,.0f",
    "ratio": "times as fast:.2f",
}

PAPER_COLUMNS = {
    "length": "length",
    "direction": "direction",
    "layer": "layer",
    "rival": "against",
    "layer_ms": "ms:.0f",
    "rival_ms": "its ms:.0f",
    "faster_percent": "faster %:+.0f",
    "published_faster_percent": "published %:+.0f",
    "layer_peak_mib": "peak MiB:.0f",
    "rival_peak_mib": "its MiB:.0f",
    "less_memory_percent": "less memory %:+.0f",
    "published_less_memory_percent": "published less %:+.0f",
}

RIVAL_COLUMNS = {
    **SPEED_COLUMNS,
    "layer_peak_mib": "peak MiB:.0f",
    "rival_peak_mib": "its MiB:.0f",
    "layer_parameters": "parameters:,",
    "rival_parameters": "its parameters:,",
}

COLUMNS = {
    "layers": SPEED_COLUMNS,
    "paper": PAPER_COLUMNS,
    "transformers": RIVAL_COLUMNS,
    "others": RIVAL_COLUMNS,
}

LENGTHS = {
    "layers": [512, 2048, 8192],
    "paper": [512, 2048],
    "transformers": [512, 2048, 8192],
    "others": [128, 512],
}

SETTINGS = ("hidden_size", "tokens", "dtype", "device", "threads", "rounds", "seconds", "together")
"""What a measured row depends on besides its pair and length."""


def pairs_of(arguments: argparse.Namespace, table: str) -> list[Pair]:
    """Return the pairs of a table."""
    made: dict[str, Callable[[], list[Pair]]] = {
        "layers": layer_pairs,
        "paper": paper_pairs,
        "transformers": transformer_pairs,
        "others": partial(other_pairs, arguments.device, arguments.slow_limit),
    }
    return made[table]()


def batch_of(arguments: argparse.Namespace, table: str, length: int) -> int:
    """Return sequences a step: 4096 tokens for the paper's table, else --tokens, or 4, 2, 1 up to 512, 2048, more."""
    if table == "paper":
        return max(1, 4096 // length)
    if arguments.tokens:
        return max(1, arguments.tokens // length)
    return 4 if length <= 512 else 2 if length <= 2048 else 1


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "--tables",
        nargs="+",
        choices=list(COLUMNS),
        default=list(COLUMNS),
        help="which tables are measured; see above",
    )
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens of a sequence; by default those of each table")
    parser.add_argument("--families", nargs="+", help="only pairs whose layer is of these, such as tnn")
    parser.add_argument(
        "--slow-limit", type=int, default=512, help="greatest length, in tokens, at which Mamba is tried"
    )
    parser.add_argument("--hidden-size", type=int, default=256, help="width of the layers")
    parser.add_argument(
        "--tokens",
        type=int,
        help="tokens of a training step, but for the paper's table; by default 4, 2 or 1 sequences",
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="data type of autocast")
    add_device_argument(parser)
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds at most, whose median counts")
    parser.add_argument(
        "--seconds", type=float, default=60, help="seconds for a pair of layers; three rounds take place in any case"
    )
    parser.add_argument(
        "--minutes", type=float, help="minutes after which no further pair of layers begins; by default none"
    )
    parser.add_argument("--together", action="store_true", help="everything in this process, as on a GPU")
    parser.add_argument(
        "--fast", action="store_true", help="a few short, narrow layers and one round, to see that it works"
    )
    parser.add_argument("--output-dir", default="runs/benchmark-models", help="where results, tables and plots go")
    arguments = parse_with_fast(parser, argv, {"lengths": [48], "hidden_size": 16, "rounds": 1})
    if torch.device(arguments.device).type != "cpu":
        arguments.together = True
    if min(arguments.lengths or [2]) < 2 or arguments.rounds < 1 or arguments.hidden_size < 1 or arguments.threads < 1:
        parser.error("lengths must be at least 2; rounds, hidden size and threads at least 1.")
    return arguments


def run_table(arguments: argparse.Namespace, table: str, log: ResultFile, left: Time) -> list[dict[str, Any]]:
    """Measure the pairs of a table that the log does not hold yet, and return all rows."""
    settings = {name: getattr(arguments, name) for name in SETTINGS}
    settings |= {**machine(arguments.device), "native": os.environ.get("HF_SEQMIX_NATIVE") == "1"}
    pairs = pairs_of(arguments, table)
    if arguments.families:
        pairs = [pair for pair in pairs if pair.layer.family in arguments.families]
    rows = []
    for length in arguments.lengths or LENGTHS[table]:
        for pair in pairs:
            if pair.longest is not None and length > pair.longest:
                continue
            key = {"table": table, "length": length, "settings": settings}
            key |= {"layer": pair.layer._asdict(), "rival": pair.rival._asdict()}
            found = log.get(key)
            if found is None and left.is_over():
                continue
            if found is None:
                job = (arguments, pair, length, batch_of(arguments, table, length))
                measured = within_memory(*job) if arguments.together else in_fresh_process(measure, *job)
                given = {"layer": pair.layer._asdict(), "rival": pair.rival._asdict()}
                run = run_of(arguments, "benchmark_models", given, length=length, batch=job[-1])
                size, names = "fast" if arguments.fast else "", ("length", "batch", "hidden_size")
                if measured is None:
                    continue
                found = row_results([measured], table, "layer", setting=names, run=run, size=size)
                log.append(key, found)
                row = row_of(found, "layer")
                print(
                    f"{table}, length {length}: {row['direction']} {row['layer']} {row['ratio']:.2f} times as fast as "
                    f"{row['rival']}",
                    file=sys.stderr,
                )
            rows.append({"table": table} | row_of(found, "layer"))
    return rows


@explained("benchmark_models.py", "; the same command continues where it stopped")
def main(argv: Sequence[str] | None = None) -> dict[str, list[dict[str, Any]]]:
    """Run the benchmark and return the rows of each table."""
    arguments = parse_arguments(argv)
    folder = prepare_run_folder(arguments.output_dir, resume=True)
    log = ResultFile(folder / "benchmark_models.jsonl")
    left = Time(arguments.minutes)
    tables = {table: rows for table in arguments.tables if (rows := run_table(arguments, table, log, left))}
    if not tables:
        sys.exit(
            "benchmark_models.py: nothing was measured: there is no pair of these tables, --families and lengths, or "
            "no --minutes or memory for one."
        )
    clock = next(iter(tables.values()))[0]["clock"]
    where = f"hidden size {arguments.hidden_size}, {arguments.dtype}, {arguments.device}, {clock}"
    where += f", torch {torch.__version__}"
    titles = {
        "layers": f"Training a layer: {where}",
        "paper": f"The comparison of Moreno, Mei, Walters 2023, one layer, 4096 tokens a step: {where}",
        "transformers": f"Training a layer against a Llama layer of as many parameters: {where}",
        "others": f"Training a layer against other layers of as many parameters: {where}",
    }
    goals = layer_goals(tables, arguments.device, arguments.dtype, arguments.hidden_size)
    sections: list[tuple[str, Sequence[dict[str, Any]], dict[str, str]]] = [(f"Goals: {where}", goals, GOAL_COLUMNS)]
    sections += [(titles[table], rows, COLUMNS[table]) for table, rows in tables.items()]
    write_report(arguments, "benchmark_models", sections)
    for table, rows in tables.items():
        draw = plot_paper if table == "paper" else plot_layers
        draw(rows, folder / f"benchmark_models_{table}.png", titles[table])
    return tables


if __name__ == "__main__":
    main()
