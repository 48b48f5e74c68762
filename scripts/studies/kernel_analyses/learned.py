"""The analyses of analyze_kernels.py that look into a checkpoint alone."""

import argparse
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from study_models import load_backbone

from hf_seqmix.analysis.kernels import (
    LearnedKernels,
    LiveUnits,
    learned_kernels,
    live_units,
    plot_kernels,
    typical_channels,
)
from hf_seqmix.analysis.kernels.extrapolation import EXTRAPOLATION_COLUMNS, extrapolate_model, plot_extrapolation
from hf_seqmix.analysis.kernels.sparse_smooth import SPLIT_COLUMNS, plot_split, split_row, two_sided

from .report import chosen, report, trained_length

__all__ = ["run_extrapolation", "run_kernels", "run_split"]

logger = logging.getLogger("analyze_kernels")


def run_kernels(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Draw and tabulate the kernels of every Toeplitz layer."""
    model = load_backbone(arguments.model, arguments.trust_remote_code)
    length = trained_length(arguments, model)
    kernels = learned_kernels(model, length)
    units = live_units(model, length)
    rows = [describe(layer, units) for layer in kernels]
    columns = {
        "layer": "layer",
        "direction": "direction",
        "channels": "channels",
        "lags": "lags",
        "strength": "norm, median:.3g",
        "reach": "reach (tokens), median:.1f",
        "reach_longest": "reach, longest:.1f",
        "low_pass": "channels that pass low frequencies:.0%",
        "live_units": "units of the network that depend on the lag",
        "units": "of",
    }
    drawn = chosen(arguments, [layer.name for layer in kernels])
    plot_kernels(
        [layer for layer in kernels if layer.name in drawn],
        arguments.output_dir / "kernels.png",
        channels=arguments.channels,
    )
    report(arguments, "kernels", rows, columns, title=f"Kernels of {Path(arguments.model).name}")
    return rows


def describe(layer: LearnedKernels, units: Sequence[LiveUnits]) -> dict[str, Any]:
    """Return figures of a layer's kernels, and the taps of two typical channels; `units` are of all layers."""
    frequencies, response = layer.response(256)
    low = response[:, frequencies < math.pi / 2].square().mean(dim=1)
    high = response[:, frequencies >= math.pi / 2].square().mean(dim=1)
    reach = layer.reach()
    own = [counted for counted in units if counted.name.startswith(f"{layer.name}.")]
    return {
        "layer": layer.name,
        "direction": "causal" if layer.is_causal else "bidirectional",
        "channels": layer.taps.shape[0],
        "lags": layer.taps.shape[1],
        "strength": layer.taps.norm(dim=1).median().item(),
        "reach": reach.median().item(),
        "reach_longest": reach.max().item(),
        "low_pass": (low > high).float().mean().item(),
        "live_units": sum(counted.live for counted in own) if own else None,
        "units": sum(counted.total for counted in own) if own else None,
        "taps": {str(channel): layer.taps[channel].tolist() for channel in typical_channels(layer, 2)},
    }


def run_split(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Split learned kernels into a few taps around lag 0 and a smooth rest."""
    kernels = learned_kernels(load_backbone(arguments.model, arguments.trust_remote_code), arguments.length)
    rows = []
    for layer in kernels:
        logger.info(layer.name)
        channels = torch.linspace(0, len(layer.taps) - 1, min(arguments.channels, len(layer.taps))).round().long()
        taps = two_sided(layer.taps[channels], layer.is_causal)
        rows += [{"layer": layer.name, **split_row(taps, width)} for width in arguments.half_widths]
    title = f"{Path(arguments.model).name}, {arguments.length} tokens, ranks to 1 % of |T|"
    drawn = chosen(arguments, [layer.name for layer in kernels])
    plot_split(
        [layer for layer in kernels if layer.name in drawn],
        arguments.output_dir / "split.png",
        half_width=arguments.half_widths[len(arguments.half_widths) // 2],
        title=title,
    )
    report(arguments, "split", rows, SPLIT_COLUMNS, title=title)
    return rows


def run_extrapolation(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Make learned kernels longer than they were trained for."""
    model = load_backbone(arguments.model, arguments.trust_remote_code)
    length = trained_length(arguments, model)
    results = extrapolate_model(model, length, round(length * arguments.factor))
    rows = [result.to_dict() for result in results]
    drawn = chosen(arguments, list(dict.fromkeys(result.layer for result in results)))
    title = f"Kernels of {Path(arguments.model).name}, {arguments.factor:g} times as long"
    plot_extrapolation(
        [result for result in results if result.layer in drawn],
        arguments.output_dir / "extrapolation.png",
        title=title,
    )
    report(arguments, "extrapolation", rows, EXTRAPOLATION_COLUMNS, title=title)
    return rows
