"""Models on convolutions whose inputs or kernel are in another order: the experiment `order` of approximation.py."""

import argparse
import functools
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_seqmix.analysis.rates import (
    LinearRNN,
    LinearTarget,
    MixerRegressor,
    SingleHeadTransformer,
    Target,
    altered_targets,
    error_floors,
)
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import TableRows

from .library import library_config, library_regressor
from .log import Log, median, unfinished
from .plots import plot_order

__all__ = ["FLOORS", "add_order", "run_order"]

MIXERS: dict[str, tuple[str, dict[str, Any]]] = {
    "tnn": ("tnn", {}),
    "fd_tnn": ("fd_tnn", {}),
    "ski_tnn": ("ski_tnn", {"num_inducing_points": 8}),
    "ipa": ("ipa", {"num_centers": 4}),  # the paper's: kernels over centers
    "ipa_prod": ("ipa", {"num_centers": 4, "kernel_norm": "prod"}),
    "poly_transformer": ("poly_transformer", {"degree": 3, "num_attention_heads": 4}),
    "attention": ("attention", {"num_heads": 4}),
    "short_conv": ("short_conv", {"taps": 5}),
}
"""Mixers of this package: the mixer and its fields."""
MODELS = ("rnn", "rnn, radius 1", "rnn, solved", "transformer", *MIXERS, "library")
KERNELS = ("exponential", "uniform")
ALTERATIONS = ("original", "permuted inputs", "permuted kernel", "mixed", "mixed with look-ahead")
FLOORS = ("time_dependent_mean", "causal_filter_with_mean", "causal_linear", "bidirectional_linear")


def add_order(experiments: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the parsers of experiments."""
    order = experiments.add_parser("order", parents=[shared], allow_abbrev=False, description=run_order.__doc__)
    order.add_argument(
        "--models",
        nargs="+",
        choices=MODELS,
        default=list(MODELS),
        help="models that are trained; see hf_seqmix.analysis.rates",
    )
    order.add_argument(
        "--kernels",
        nargs="+",
        choices=KERNELS,
        default=list(KERNELS),
        help="kernels of the convolution that is learned",
    )
    order.add_argument(
        "--alterations",
        nargs="+",
        choices=ALTERATIONS,
        default=list(ALTERATIONS),
        help="versions of the convolution; permuted is in another order, mixed has mixed inputs",
    )
    order.add_argument("--length", type=int, default=32, help="tokens of a row")
    order.add_argument(
        "--save-models", action="store_true", help="write trained mixers below the output folder, for `checkpoints`"
    )
    order.set_defaults(run=run_order)


def run_order(arguments: argparse.Namespace) -> TableRows:
    """Train models on convolutions whose inputs or kernel are in another order, or whose inputs are mixed."""
    if arguments.length < 20:
        raise ValueError(f"--length is {arguments.length}; permutations turn ends of 10 tokens: give 20 or more.")
    log, rows = Log(arguments), []
    for kernel in arguments.kernels:
        target = LinearTarget.from_kernel(kernel, arguments.length)
        versions = altered_targets(target)
        for alteration in arguments.alterations:
            version = versions[alteration]
            data = {"kernel": kernel, "alteration": alteration, "length": arguments.length}
            row: dict[str, Any] = {
                "kernel": kernel,
                "alteration": alteration,
                "causal": "yes" if version.is_causal else "no",
                "cut": [],
            }
            limits = error_floors(version)
            for name in FLOORS:
                row[name] = log.note(f"best {name.replace('_', ' ')}", limits[name].mse, data, "baseline")
            for name in arguments.models:
                if name == "ski_tnn" and version.is_causal:
                    continue  # bidirectional only
                row[name], cut = _errors(log, name, version, data)
                row["cut"] += [f"{name} ({cut})"] * bool(cut)
            rows.append({**row, "cut": ", ".join(row["cut"]) or "none"})
    columns = {"kernel": "kernel", "alteration": "target", "causal": "causal"}
    columns |= {name: f"({name.replace('_', ' ')}):.1e" for name in FLOORS}
    columns |= {name: f"{name}:.1e" for name in arguments.models}
    columns["cut"] = f"still training at {arguments.max_steps} updates (seeds)"
    title = (
        f"Mean square errors on held-out rows of {arguments.length} tokens, medians of {len(arguments.seeds)} seeds"
    )
    write_report(arguments, "order", [(title, rows, columns)])
    plot_order(rows, arguments.models, FLOORS, arguments.output_dir / "order.png")
    return rows


def _errors(log: Log, name: str, target: Target, data: Mapping[str, Any]) -> tuple[float | None, int]:
    """Return the median error of a model, and of how many seeds the training was cut."""
    if name == "rnn, solved":
        return statistics.median(_solved(log, target, seed, data) for seed in log.arguments.seeds), 0

    def folder(seed: int) -> Path:
        stem = "-".join([name, data["kernel"], data["alteration"], str(seed)]).replace(" ", "-")
        return Path(log.arguments.output_dir) / "models" / stem

    model: dict[str, Any] = {"name": name}
    if fields := dict(MIXERS.get(name, ("", {}))[1]):
        model["mixer_config"] = fields
    if name == "library":
        model["config"] = library_config(target)
    kept = folder if log.arguments.save_models and name in (*MIXERS, "library") else None
    results = log.train(functools.partial(_model, name, target), target, model, data, kept)
    return median(results), unfinished(results)


def _model(name: str, target: Target) -> nn.Module:
    """Build a model; mixers of this package and transformers of the library are causal where the target is."""
    if name.startswith("rnn"):
        return LinearRNN(recurrent_gain=math.sqrt(3) if name == "rnn, radius 1" else 1.0)
    if name == "transformer":
        return SingleHeadTransformer(max_length=target.length)
    if name == "library":
        return library_regressor(target)
    mixer, fields = MIXERS[name]
    return MixerRegressor(mixer, max_length=target.length, is_causal=target.is_causal, **fields)


def _solved(log: Log, target: Target, seed: int, data: Mapping[str, Any]) -> float:
    """Return the error of a random linear RNN of 128 states whose readout is the least squares solution."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = LinearRNN().double()
    generator = torch.Generator().manual_seed(seed)
    net.fit_readout(*target.draw(2048, generator, torch.float64))
    inputs, outputs = target.draw(2048, generator, torch.float64)
    with torch.no_grad():
        error = (net(inputs) - outputs).square().mean().item()
    return log.note("rnn, solved", error, data, seed=seed)
