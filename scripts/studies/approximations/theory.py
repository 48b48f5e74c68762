"""Propositions of Jiang and Li computed, nothing trained: the experiment `theory` of approximation.py."""

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
from hf_seqmix.analysis.spectra import fit_power_law
from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.environment import environment_of, portable_command
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.results import Result
from hf_seqmix.training.table_rows import TableRows

__all__ = ["add_theory", "run_theory"]

SCALES = (1.0, 0.1, 1e-3, 1e-6, 1e-9)
LAGS = 256
ROW = 32
"""Tokens of a row in the paper's table 2."""

COUPLING_EXPONENTS = (1.5, 2.0)
COUPLING_RANK = 4096
HEAD_SIZES = (4, 8, 16, 32, 64)
COUPLING_ROWS = 512

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
CUT_COLUMNS = {
    "a": "a:g",
    "diagonal": "weight of a token on itself",
    "error": "error",
    "exponent": "exponent:.2f",
    "low": "low:.2f",
    "high": "high:.2f",
    "theorem": "theorem, 2a - 1:g",
    "first": f"error at {HEAD_SIZES[0]}:.1e",
    "last": f"at {HEAD_SIZES[-1]}:.1e",
}


def add_theory(experiments: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the parsers of experiments; nothing is trained, so the shared arguments are not its own."""
    theory = experiments.add_parser("theory", allow_abbrev=False, description=run_theory.__doc__)
    theory.add_argument("--output-dir", type=Path, required=True, help="where results and table go")
    theory.set_defaults(run=run_theory)


def run_theory(arguments: argparse.Namespace) -> TableRows:
    """Represent targets by couplings of rank one, cut couplings to small heads, compute the complexity of kernels."""
    prepare_run_folder(arguments.output_dir, resume=True)
    represented, cut, mixed = _representations(), _cut_couplings(), _complexities()
    sections = [
        ("Theorem 4.1 by a coupling of rank one, on 64 random rows in float64", represented, REPRESENTATION_COLUMNS),
        (
            f"Theorem 4.2's construction: a coupling of {COUPLING_RANK:,} singular values k^-a cut to heads of "
            f"{HEAD_SIZES[0]} to {HEAD_SIZES[-1]}, the error's power of the head size with its 95 % interval",
            cut,
            CUT_COLUMNS,
        ),
        (
            f"C_RNN = C1 C2 of rho(s) = e^(-s / γ), {LAGS} lags, with its inputs as they are and mixed by theta",
            mixed,
            COMPLEXITY_COLUMNS,
        ),
    ]
    write_report(arguments, "theory", sections, _results(represented, cut, mixed))
    return represented + cut + mixed


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


def _cut_couplings() -> TableRows:
    rows = []
    for a in COUPLING_EXPONENTS:
        target = CouplingTarget.power_law(COUPLING_RANK, a)
        for exact in (False, True):
            for power, name in ((1, "absolute"), (2, "squared")):
                errors = [target.truncation_error(size, COUPLING_ROWS, power, exact) for size in HEAD_SIZES]
                fit = fit_power_law(HEAD_SIZES, errors)
                row = {"a": a, "diagonal": "exact" if exact else "as cut", "error": name, "exponent": fit.exponent}
                row |= {"low": fit.low, "high": fit.high, "theorem": 2 * a - 1}
                rows.append(row | {"first": errors[0], "last": errors[-1]})
    return rows


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


def _results(represented: TableRows, cut: TableRows, mixed: TableRows) -> list[Result]:
    shared: dict[str, Any] = {"command": portable_command("approximation"), "environment": environment_of()}
    errors = ("singular_value", "largest_error", "steepness", "product")
    parts = [
        ("rank-one coupling", represented, ("target", "scale"), errors),
        ("cut coupling", cut, ("a", "diagonal", "error"), ("exponent", "low", "high", "first", "last")),
        ("kernel", mixed, ("decay_time", "mixing", "direction"), ("c1", "c2", "complexity", "ahead")),
    ]
    return [
        Result(
            "approximation-theory", model, metric, row[metric], setting={name: row[name] for name in names}, **shared
        )
        for model, rows, names, metrics in parts
        for row in rows
        for metric in metrics
    ]
