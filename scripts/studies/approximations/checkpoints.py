"""Saved regressors on convolutions in other orders: the experiment `checkpoints` of approximation.py."""

import argparse
from pathlib import Path
from typing import Any

from hf_seqmix.analysis.rates import LinearTarget, OrderingRow, checkpoint_report
from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.environment import environment_of, portable_command
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.results import Result
from hf_seqmix.training.table_rows import TableRows

from .log import settings_of
from .order import FLOORS, KERNELS
from .plots import plot_order

__all__ = ["add_checkpoints", "run_checkpoints"]


def add_checkpoints(experiments: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the parsers of experiments."""
    checkpoints = experiments.add_parser(
        "checkpoints", parents=[shared], allow_abbrev=False, description=run_checkpoints.__doc__
    )
    checkpoints.add_argument(
        "--models",
        type=Path,
        nargs="+",
        required=True,
        help="folders of token classifiers with problem_type regression, such as `order --save-models` writes",
    )
    checkpoints.add_argument(
        "--kernels",
        nargs="+",
        choices=KERNELS,
        default=list(KERNELS),
        help="kernels of the convolution on which models are measured",
    )
    checkpoints.add_argument("--length", type=int, default=32, help="tokens of a row")
    checkpoints.add_argument(
        "--train-on",
        action="store_true",
        help="train each model on, at each alteration; only then options of training count",
    )
    checkpoints.set_defaults(run=run_checkpoints)


def run_checkpoints(arguments: argparse.Namespace) -> TableRows:
    """Measure saved models on convolutions whose inputs or kernel are in another order, or whose inputs are mixed."""
    models = {path.resolve().name: path for path in arguments.models}
    if len(models) < len(arguments.models):
        raise ValueError("two of the models' folders have the same name; give each another name.")
    prepare_run_folder(arguments.output_dir, resume=True)
    rows: TableRows = []
    results: list[Result] = []
    shared: dict[str, Any] = {"command": portable_command("approximation"), "environment": environment_of()}
    options: dict[str, Any] = {"rows": arguments.test_rows}
    if arguments.train_on:
        options = {"train": settings_of(arguments), "seeds": arguments.seeds}
    for kernel in arguments.kernels:
        target = LinearTarget.from_kernel(kernel, arguments.length)
        for row in checkpoint_report(models, target, **options):
            rows.append({"kernel": kernel, **row.to_dict(), "causal": "yes" if row.is_causal else "no"})
            results += _results(kernel, row, arguments, shared)
    columns = {"kernel": "kernel", "alteration": "target", "causal": "causal"}
    columns |= {name: f"({name.replace('_', ' ')}):.1e" for name in FLOORS}
    columns |= {name: f"{name}:.1e" for name in models}
    state = "trained on" if arguments.train_on else "as they are"
    title = f"Mean square errors of saved models, {state}, on held-out rows of {arguments.length} tokens"
    write_report(arguments, "checkpoints", [(title, rows, columns)], results)
    plot_order(rows, list(models), FLOORS, arguments.output_dir / "checkpoints.png")
    return rows


def _results(kernel: str, row: OrderingRow, arguments: argparse.Namespace, shared: dict[str, Any]) -> list[Result]:
    task, setting = "approximation-checkpoints", {"kernel": kernel, "alteration": row.alteration}
    floors = [
        Result(
            task, f"best {name.replace('_', ' ')}", "test_error", floor.mse, kind="baseline", setting=setting, **shared
        )
        for name, floor in row.floors.items()
    ]
    setting["models"] = "trained on" if arguments.train_on else "as they are"
    seeds = arguments.seeds if arguments.train_on else [None]
    return floors + [
        Result(task, name, "test_error", error, seed, setting=setting, **shared)
        for name, errors in row.errors.items()
        for seed, error in zip(seeds, errors, strict=True)
    ]
