"""Ablations that time layers and train models: the parts of SKI, the depth of the encoder, and training curves."""

import argparse
import logging
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from comparison.compare import compare
from comparison.models import MODELS, POINTS, TOEPLITZ
from comparison.options import SPLITS, Options
from comparison.report import write_report as write_comparison
from comparison.tasks import TASKS
from ski.parts import register_parts

from hf_seqmix.analysis.plots.figures import draw_row, line
from hf_seqmix.data import python_stdlib
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.results import Result, with_run
from hf_seqmix.training.run import Run, run_of
from hf_seqmix.training.table_rows import row_results

from .layers import TIME_COLUMNS, against_first, plot_layers_and_losses, time_layers

__all__ = ["run_curves", "run_mlp_depth", "run_sparse_low_rank"]

logger = logging.getLogger("ablate_toeplitz")


def text_files(arguments: argparse.Namespace) -> dict[str, Path]:
    """Return the text of each split: as given, or the beginning of Python's standard library in the output folder."""
    given = {split: getattr(arguments, f"{split}_file") for split in SPLITS}
    if all(given.values()):
        return {split: Path(path) for split, path in given.items()}
    if any(given.values()):
        raise ValueError("give --train-file, --validation-file and --test-file, or none of them.")
    if arguments.train_characters < 8:
        raise ValueError(
            f"--train-characters is {arguments.train_characters}; validation and test text have an eighth of that: "
            "give 8 or more."
        )
    folder = Path(arguments.output_dir) / f"text-{arguments.train_characters}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {split: folder / f"{split}.txt" for split in SPLITS}
    if not all(path.exists() for path in paths.values()):
        for split, documents in python_stdlib().items():
            limit = arguments.train_characters if split == "train" else arguments.train_characters // 8
            temporary = paths[split].with_suffix(".tmp")
            temporary.write_text("\n".join(documents["text"])[:limit], encoding="utf-8")
            temporary.replace(paths[split])
    return paths


def train(arguments: argparse.Namespace, task: str, models: Sequence[str]) -> list[dict[str, Any]]:
    """Train models as compare_mixers.py does; return a row a model, with its curves of the training loss by seed."""
    names = ("steps", "batch_size", "block_size", "eval_blocks", "hidden_size", "num_layers", "threads")
    given = {name: getattr(arguments, name) for name in (*names, "tokenizer", "learning_rates", "seeds")}
    given |= {f"{split}_file": str(path) for split, path in text_files(arguments).items()}
    options = Options.of(
        task, output_dir=Path(arguments.output_dir) / "training", models=models, extend_sweep=0, **given
    )
    comparison = compare(options)
    report = write_comparison(comparison)
    if report is None:
        raise ValueError("no model could be trained; see the messages above, or try lower --learning-rates.")
    rows = []
    for result in report["results"]:
        known = {seed: comparison.known(result["model"], result["learning_rate"], seed) for seed in arguments.seeds}
        mine = {seed: run for seed, run in known.items() if run is not None}
        metrics = [name for name in result if name.startswith(("validation_", "test_"))]
        row: dict[str, Any] = {name: result[name] for name in ("model", "num_parameters", "learning_rate")}
        row |= {"best_at_edge": result["best_at_edge"], "num_seeds": result["num_seeds"]}
        for name in metrics:
            row[name], row[f"{name}_sd"] = result[name]["mean"], result[name]["sd"]
        # Not every task reports the loss itself.
        losses = [run["test"]["token_loss"] for run in mine.values() if run["test"]["token_loss"] is not None]
        row["test_loss"] = statistics.mean(losses) if losses else None
        row["test_loss_sd"] = statistics.stdev(losses) if len(losses) > 1 else None
        row["test_loss_by_seed"] = {seed: run["test"]["token_loss"] for seed, run in mine.items()}
        row["curves"] = {seed: run["train_loss_curve"] for seed, run in mine.items()}
        rows.append(row)
    return rows


def recorded(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model as a run has them."""
    overrides = {name: value for name, value in fields.items() if name != "model_type"}
    return {"model_type": fields["model_type"], "config_overrides": overrides}


def results_of(trained: Sequence[Mapping[str, Any]], task: str, run: Run) -> list[Result]:
    """Return what came of trained models as results, with the test loss and the training loss of each seed."""
    names = {"curves": "train_loss", "test_loss": "test_loss_mean", "test_loss_by_seed": "test_loss"}
    rows = [{names.get(name, name): value for name, value in row.items()} for row in trained]
    inner = {"train_loss": ("seed", "step"), "test_loss": ("seed",)}
    models = {row["model"]: MODELS[row["model"]] for row in trained}
    configs = {name: {"model_type": kind, "config_overrides": fields} for name, (kind, fields) in models.items()}
    return with_run(row_results(rows, task, "model", inner=inner, setting=("learning_rate",)), run, configs)


def shown_loss(row: Mapping[str, Any]) -> str:
    """Return the mean and spread of the test loss."""
    if row["test_loss"] is None:
        return "diverged"
    spread = "" if row["test_loss_sd"] is None else f" ± {row['test_loss_sd']:.4f}"
    return f"{row['test_loss']:.4f}{spread}" + (" (rate at edge)" if row["best_at_edge"] else "")


def describe_training(arguments: argparse.Namespace, task: str) -> str:
    """Return what was trained on what."""
    text = "Python's standard library" if arguments.train_file is None else Path(arguments.train_file).name
    rates = ", ".join(f"{rate:g}" for rate in arguments.learning_rates)
    return (
        f"{task} on {text}, {arguments.steps} updates of {arguments.batch_size} x {arguments.block_size} tokens, "
        f"{arguments.num_layers} layers, {arguments.hidden_size} channels, equal parameters, best rate of {rates}, "
        f"{len(arguments.seeds)} seeds"
    )


def run_sparse_low_rank(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time and train SKI and each of its parts; train SKI from a low-rank part that is large or zero, and a TNN."""
    parts = register_parts()
    models: dict[str, Mapping[str, Any]] = {"ski_tnn": {"model_type": "ski_tnn"}}
    layers = {"ski_tnn": {"model_type": "ski_tnn", "is_causal": False, **_points(arguments)}}
    for name, mixer in parts.items():
        hybrid: dict[str, Any] = {"mixer_types": [mixer] * arguments.num_layers}
        if few := few_points(arguments):
            hybrid["mixer_configs"] = {mixer: few}
        models[name] = {"model_type": "seqmix_hybrid", **hybrid}
        if name.startswith("ski-"):  # SKI from other weights: nothing else to time
            continue
        layers[name] = {
            "model_type": "seqmix_hybrid",
            "is_causal": False,
            "mixer_types": [mixer],
            "mixer_configs": {mixer: _points(arguments)},
        }
    models["tnn"] = {"model_type": "tnn", **TOEPLITZ}  # what a whole Toeplitz matrix is worth on this text
    return layers_and_losses(arguments, "sparse-low-rank", "lm-masked", models, layers)


def few_points(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the points of SKI and its parts where training rows are too short for the default number of them."""
    points = min(POINTS, arguments.block_size // 2)  # as compare_mixers.py gives `ski_tnn`
    return {} if points == POINTS else {"num_inducing_points": points}


def _points(arguments: argparse.Namespace) -> dict[str, int]:
    return {"num_inducing_points": min(arguments.points, *arguments.lengths), "conv_kernel_size": arguments.taps}


def run_mlp_depth(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time and train the encoder of TNN and FD-TNN with 3 and with 6 hidden layers."""
    models: dict[str, Mapping[str, Any]] = {}
    layers: dict[str, Mapping[str, Any]] = {}
    causal = TASKS[arguments.task].causal
    for family in ("tnn", "fd_tnn"):
        for depth in (6, 3):
            name = f"{family}-K{depth}"
            models[name] = {"model_type": family, **TOEPLITZ, "rpe_num_layers": depth}
            layers[name] = {
                "model_type": family,
                "is_causal": causal,
                "rpe_hidden_size": 64,
                "rpe_num_layers": depth,
            }
    return layers_and_losses(arguments, "mlp-depth", arguments.task, models, layers)


def layers_and_losses(
    arguments: argparse.Namespace,
    stem: str,
    task: str,
    models: Mapping[str, Mapping[str, Any]],
    layers: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Time the layers, train the models, and report both."""
    torch.set_num_threads(arguments.threads)
    timings = time_layers(arguments, layers)
    against_first(timings)
    for name, fields in models.items():
        kind, overrides = recorded(fields).values()
        MODELS[name] = (kind, overrides)
    trained = train(arguments, task, list(models))
    clock = timings[0]["clock"]
    where = f"{arguments.layer_size} channels, batch {arguments.batch}, {arguments.device}, {clock}"
    described = describe_training(arguments, task)
    cells = [row | {"loss": shown_loss(row), "rate": f"{row['learning_rate']:g}"} for row in trained]
    loss_columns = {
        "model": "model",
        "num_parameters": "parameters:,",
        "rate": "rate",
        "loss": "test loss (nats/token)",
        "num_seeds": "seeds",
    }
    sections = [
        (f"Training one layer, forward and backward: {where}", timings, TIME_COLUMNS),
        (f"Test loss: {described}", cells, loss_columns),
    ]
    kept = row_results(timings, f"a layer in training, {stem}", "model", setting=("length", "batch"))
    kept = with_run(kept, run_of(arguments, stem), {name: recorded(fields) for name, fields in layers.items()})
    kept += results_of(trained, task, run_of(arguments, stem))
    folder = write_report(arguments, stem.replace("-", "_"), sections, kept)
    plot_layers_and_losses(timings, trained, folder / f"{stem.replace('-', '_')}.png", f"{stem}: {described}")
    return {"timings": timings, "trained": trained}


def run_curves(arguments: argparse.Namespace) -> dict[str, Any]:
    """Draw training curves of the masked TNN and SKI-TNN, the same batches in the same order."""
    torch.set_num_threads(arguments.threads)
    trained = train(arguments, "lm-masked", ["tnn", "ski_tnn"])
    described = describe_training(arguments, "lm-masked")
    cells = [row | {"loss": shown_loss(row), "rate": f"{row['learning_rate']:g}"} for row in trained]
    columns = {"model": "model", "num_parameters": "parameters:,", "rate": "rate", "loss": "test loss (nats/token)"}
    sections = [(f"Masked TNN and SKI-TNN: {described}", cells, columns)]
    kept = results_of(trained, "lm-masked", run_of(arguments, "curves"))
    folder = write_report(arguments, "curves", sections, kept)
    with draw_row(folder / "curves.png", 8, 4.4, 1, described) as (_, (panel,)):
        for index, row in enumerate(trained):
            color = line(index)["color"]
            for number, curve in enumerate(row["curves"].values()):
                steps, losses = zip(*curve, strict=True)
                label = f"{row['model']}, rate {row['learning_rate']:g}" if number == 0 else None
                panel.plot(
                    steps, [float("nan") if v is None else v for v in losses], color=color, label=label, alpha=0.8
                )
        panel.set(xlabel="update", ylabel="training loss (nats/masked token)")
        panel.legend(title="one line a seed")
    return {"trained": trained}
