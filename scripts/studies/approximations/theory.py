"""Two propositions of Jiang and Li computed, nothing trained: the experiment `theory` of approximation.py."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_seqmix.analysis.rates import (
    CouplingTarget,
    LinearTarget,
    RankOneRepresentation,
    Target,
    altered_targets,
    recurrent_complexity,
)
from hf_seqmix.training.environment import environment_of, portable_command
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.results import Result
from hf_seqmix.training.table_rows import TableRows

__all__ = ["add_theory", "run_theory"]

SCALES = (1.0, 0.1, 1e-3, 1e-6, 1e-9)
LAGS = 256
ROW = 32
"""Tokens of a row in the paper's table 2."""

# name -> theta(0), theta(1), ..., the sizes of which sum to 1
FILTERS: dict[str, Sequence[float]] = {
    "thirds": (1 / 3,) * 3,
    "a shift of 2": (0, 0, 1),
    "a shift of 10": (0,) * 10 + (1,),
}

REPRESENTATION_COLUMNS = {
    "target": "target",
    "scale": "scale:g",
    "singular_value": "singular value:.2g",
    "largest_error": "largest error:.0e",
    "steepness": "F at least as steep as:.1e",
    "product": "times the singular value:.2g",
}
COMPLEXITY_COLUMNS = {
    "decay_time": "γ:g",
    "mixing": "theta",
    "direction": "of inputs",
    "c1": "C1:.3g",
    "c2": "C2:.3g",
    "complexity": "C1 C2:.3g",
    "ahead": "energy of taps ahead:.0%",
}


def add_theory(experiments: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the parsers of experiments; nothing is trained, so the shared arguments are not its own."""
    theory = experiments.add_parser("theory", allow_abbrev=False, description=run_theory.__doc__)
    theory.add_argument("--output-dir", type=Path, required=True, help="where results and table go")
    theory.set_defaults(run=run_theory)


def run_theory(arguments: argparse.Namespace) -> TableRows:
    """Represent targets by couplings of rank one, and compute the complexity of kernels before and after mixing."""
    represented, mixed = _representations(), _complexities()
    sections = [
        ("Theorem 4.1 by a coupling of rank one, on 64 random rows in float64", represented, REPRESENTATION_COLUMNS),
        (
            f"C_RNN = C1 C2 of rho(s) = e^(-s / γ), {LAGS} lags, with its inputs as they are and mixed by theta",
            mixed,
            COMPLEXITY_COLUMNS,
        ),
    ]
    write_report(arguments, "theory", sections, _results(represented, mixed))
    return represented + mixed


def _representations() -> TableRows:
    targets: dict[str, Target] = {
        f"exponential, {name}": target for name, target in altered_targets(LinearTarget.from_kernel()).items()
    }
    targets["uniform"] = LinearTarget.from_kernel("uniform")
    targets["coupling, 64 singular values k^-1"] = CouplingTarget.power_law(64, 1.0)
    return [
        {"target": name, **row, "product": row["steepness"] * row["singular_value"]}
        for name, target in targets.items()
        for row in (RankOneRepresentation(target, scale).to_dict() for scale in SCALES)
    ]


def _complexities() -> TableRows:
    rows = []
    for decay_time in (1, 4):
        # Twice the lags, so that what lies ahead of the first ones is there.
        taps = torch.exp(-torch.arange(2 * LAGS, dtype=torch.float64) / decay_time)
        rows.append(_complexity(taps[:LAGS], taps[:0], decay_time, "none", "as they are"))
        ended = torch.cat([taps[:ROW], taps.new_zeros(1)])  # within |rho(s)| <= e^(-s / γ), too
        rows.append(_complexity(ended, taps[:0], decay_time, f"none, no lags from {ROW} on", "as they are"))
        for name, theta in FILTERS.items():
            behind, ahead = mixed_taps(taps, theta)
            rows.append(_complexity(behind[:LAGS], taps[:0], decay_time, name, "earlier, x(t - s)"))
            rows.append(
                _complexity(
                    ahead[len(theta) - 1 :][:LAGS], ahead[: len(theta) - 1], decay_time, name, "later, x(t + s)"
                )
            )
    return rows


def mixed_taps(taps: Tensor, theta: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return the kernels of inputs mixed with earlier and with later ones, (lags + len(theta) - 1,) each.

    sum_s theta(s) rho(k - s) from lag 0 on, and sum_s theta(s) rho(k + s) from lag 1 - len(theta) on.
    """
    values, room = torch.tensor(theta, dtype=taps.dtype), len(theta) - 1
    padded = nn.functional.pad(taps, (room, room))[None, None]
    # conv1d correlates.
    behind = nn.functional.conv1d(padded, values.flip(0)[None, None])[0, 0]
    return behind, nn.functional.conv1d(padded, values[None, None])[0, 0]


def _complexity(taps: Tensor, ahead: Tensor, decay_time: float, mixing: str, direction: str) -> dict[str, Any]:
    c1, c2 = recurrent_complexity(taps, decay_time)
    energy = ahead.square().sum().item()
    return {
        "decay_time": decay_time,
        "mixing": mixing,
        "direction": direction,
        "c1": c1,
        "c2": c2,
        "complexity": c1 * c2,
        "ahead": energy / (energy + taps.square().sum().item()),
    }


def _results(represented: TableRows, mixed: TableRows) -> list[Result]:
    shared: dict[str, Any] = {"command": portable_command("approximation"), "environment": environment_of()}
    figures = [
        Result(
            "approximation-theory",
            "rank-one coupling",
            metric,
            row[metric],
            setting={name: row[name] for name in ("target", "scale")},
            **shared,
        )
        for row in represented
        for metric in ("singular_value", "largest_error", "steepness", "product")
    ]
    return figures + [
        Result(
            "approximation-theory",
            "kernel",
            metric,
            row[metric],
            setting={name: row[name] for name in ("decay_time", "mixing", "direction")},
            **shared,
        )
        for row in mixed
        for metric in ("c1", "c2", "complexity", "ahead")
    ]
