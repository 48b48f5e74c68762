"""SKI-TNN with other numbers of points and taps, other warps and another beginning, beside its convolution alone."""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from comparison.models import MODELS
from ski.parts import convolution_of, register_part, register_parts, with_falloff

from hf_seqmix.analysis.plots.figures import draw_row, line
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.run import run_of

from .models import describe_training, few_points, recorded, results_of, shown_loss, train

__all__ = ["run_ski_settings", "settings_of", "train_and_report"]

TASK = "lm-masked"
COLUMNS = {
    "model": "model",
    "num_parameters": "parameters:,",
    "rate": "rate",
    "loss": "test loss (nats/token)",
    "num_seeds": "seeds",
}


def settings_of(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return name -> fields of the models: SKI-TNN's defaults, one setting changed at a time, and its convolution.

    The warp lambda = exp(-w / n) is named by w, by which the kernel has fallen to exp(-w) at the end of n tokens, and
    the beginning of the taps by a, where sizes fall as (1 + distance)^-a.
    """
    models: dict[str, dict[str, Any]] = {"ski_tnn": {"model_type": "ski_tnn"}}
    few = few_points(arguments)
    for points in arguments.points:
        models[f"r={points}"] = {"model_type": "ski_tnn", "num_inducing_points": points}
    for taps in arguments.taps:
        models[f"m={taps}"] = {"model_type": "ski_tnn", **few, "conv_kernel_size": taps}
    for warp in arguments.warps:
        decay = math.exp(-warp / arguments.block_size)
        models[f"w={warp:g}"] = {"model_type": "ski_tnn", **few, "decay": decay}
    alone = register_parts()["convolution-only"]

    def of(mixer: str, **changed: Any) -> dict[str, Any]:
        fields = few | changed
        hybrid = {"model_type": "seqmix_hybrid", "mixer_types": [mixer] * arguments.num_layers}
        return {**hybrid, "mixer_configs": {mixer: fields}} if fields else hybrid

    models["convolution"] = of(alone)
    for taps in arguments.taps:
        models[f"convolution, m={taps}"] = of(alone, conv_kernel_size=taps)
    for falloff in arguments.falloffs:
        change = with_falloff(falloff)
        models[f"a={falloff:g}"] = of(register_part(f"falloff-{falloff:g}", change))
        changed_alone = register_part(f"convolution-falloff-{falloff:g}", convolution_of(change))
        models[f"convolution, a={falloff:g}"] = of(changed_alone)
    return models


def run_ski_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train SKI-TNN with each setting or beginning changed alone, and report the test losses."""
    return train_and_report(arguments, "ski-settings", TASK, settings_of(arguments))


def train_and_report(
    arguments: argparse.Namespace, name: str, task: str, models: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Train models, and write the table, the results and the plot of their test losses.

    Args:
        arguments: of the command line.
        name: of the ablation, after which the files are named.
        task: one of compare_mixers.py.
        models: name -> its fields, `model_type` among them.
    """
    torch.set_num_threads(arguments.threads)
    for model, fields in models.items():
        kind, overrides = recorded(fields).values()
        MODELS[model] = (kind, overrides)
    trained = train(arguments, task, list(models))
    described = describe_training(arguments, task)
    cells = [row | {"loss": shown_loss(row), "rate": f"{row['learning_rate']:g}"} for row in trained]
    kept = results_of(trained, task, run_of(arguments, name))
    stem = name.replace("-", "_")
    folder = write_report(arguments, stem, [(f"Test loss: {described}", cells, COLUMNS)], kept)
    plot_losses(trained, folder / f"{stem}.png", described)
    return {"trained": trained}


def plot_losses(trained: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw the test loss of each seed and their mean, a column a model."""
    with draw_row(path, 11, 4.4, 1, title) as (_, (panel,)):
        for place, row in enumerate(trained):
            style = line(int(row["model"].startswith("convolution")))
            losses = [loss for loss in row["test_loss_by_seed"].values() if loss is not None]
            panel.plot([place] * len(losses), losses, linestyle="none", alpha=0.6, **style)
            if row["test_loss"] is not None:
                panel.plot([place - 0.25, place + 0.25], [row["test_loss"]] * 2, color=style["color"])
        names = [row["model"].replace(", ", ",\n") for row in trained]
        panel.set_xticks(range(len(trained)), names, fontsize=8.5)
        panel.set_ylabel("test loss: each seed, and their mean (nats/token)")
        panel.grid(axis="x", visible=False)
