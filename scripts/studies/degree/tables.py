"""Exact separation ranks of degree_experiment.py: what a budget of 12 matrices reaches with each degree."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_seqmix._files import write_text
from hf_seqmix.analysis.degree.bound_plots import plot_error_bounds
from hf_seqmix.analysis.degree.budget import best_degree, budget_table, degree_headroom, mixture_score
from hf_seqmix.analysis.degree.modular_nets import attention_separation_rank, mlp_separation_rank
from hf_seqmix.analysis.degree.separation_rank import (
    ExactRank,
    SeparationSpectrum,
    generic_separation_rank,
    separation_spectrum,
)
from hf_seqmix.data import separation_task
from hf_seqmix.training.result_files import write_results
from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.tables import markdown_table

__all__ = ["write_rank_tables"]

BUDGET = 12
FULLY_CONNECTED = ([2] * 6, [3] * 4, [4] * 3, [2, 2, 2, 3, 3], [6] * 2, [12])
FOUR_INPUTS = ([2] * 2, [2] * 3, [2] * 4, [3] * 2, [3] * 3, [4] * 2)
PLAIN: dict[str, Any] = {}
OUTPUT: dict[str, Any] = {"residual": True, "output_bias": True}
AFFINE: dict[str, Any] = {"residual": True, "output_bias": True, "projection_bias": True}
SETTINGS = {"linear projections": PLAIN, "residual, output bias": OUTPUT, "residual, affine projections": AFFINE}
# Functions of the plot of bounds.
DRAWN: dict[str, tuple[str, dict[str, Any]]] = {
    "paired product, N 4, D 4": ("paired_product", {"num_tokens": 4, "width": 4}),
    "its control": ("paired_product_control", {"num_tokens": 4, "width": 4}),
    "determinant, 6 x 6": ("determinant", {"size": 6}),
    "<a, b>^3, 4 numbers": ("inner_product_power", {"width": 4, "power": 3}),
    "(-1)^<a, b>, 5 bits": ("inner_product_parity", {"bits": 5}),
    "Gaussian, h = 0.2": ("gaussian_coupling", {"bandwidth": 0.2}),
    "nearest of 6 points": ("nearest_neighbor", {"num_points": 6, "width": 2}),
}
SAMPLES = 1000
# Tokens, numbers a token, sums divided by the number of tokens.
SIZES = ((2, 2, True), (2, 1, True), (4, 1, False), (4, 1, True))


def write_rank_tables(folder: Path | None, max_size: int, run: Run) -> dict[str, Any]:
    """Compute the ranks, print them as Markdown, and write ranks.md and ranks.jsonl to the folder if one is given."""
    fully_connected = [_fully_connected(degrees, width, max_size) for degrees, width in _nets()]
    attention = [
        _attention(tokens, width, mean, name, settings, max_size)
        for tokens, width, mean in SIZES
        for name, settings in SETTINGS.items()
    ]
    overheads = []
    for overhead in (0, 1, 2, 5, 9):
        real, whole = best_degree(overhead)
        overheads.append({"overhead": overhead, "real": real, "whole": whole, "headroom": degree_headroom(overhead)})
    report = {
        "fully_connected": fully_connected,
        "attention": attention,
        "best_degrees": overheads,
        "budgets": budget_table(60, [2, 3, 4]),
    }
    text = _markdown(report)
    print(text)
    if folder is not None:
        write_results(folder / "ranks.jsonl", results_of(report, run=run))
        write_text(folder / "ranks.md", text + "\n")
        spectra = {name: _sampled(*task) for name, task in DRAWN.items()}
        title = f"Best sums of R products, from {SAMPLES} x {SAMPLES} samples"
        plot_error_bounds(spectra, folder / "bounds.png", title=title)
    return report


def results_of(report: Mapping[str, Any], **shared: Any) -> list[Result]:
    """Return the ranks as results."""
    nets = row_results(
        report["fully_connected"],
        "fully connected",
        "layers",
        setting=("inputs", "matrices", "total_degree"),
        **shared,
    )
    degrees = [f"degree_{degree}" for degree in (2, 3, 4)]
    attention = []
    for row in report["attention"]:
        plain = {f"{name}_rank" if name in degrees else name: value for name, value in row.items()}
        attention += row_results([plain], "attention", "net", models=degrees, setting=("tokens", "width"), **shared)
    best = row_results(report["best_degrees"], "best degree of a layer", "layer", setting=("overhead",), **shared)
    budgets = row_results(report["budgets"], "budget", "layer", setting=("degree",), **shared)
    return nets + attention + best + budgets


def _sampled(name: str, sizes: Mapping[str, Any]) -> SeparationSpectrum:
    task = separation_task(name, **sizes)
    inputs, half = task.draw(SAMPLES, np.random.default_rng(0)), task.num_tokens // 2
    values = [task.evaluate(row[None, :half], inputs[:, half:]) for row in inputs]
    return separation_spectrum(torch.tensor(np.stack(values)))


def _nets() -> list[tuple[list[int], int]]:
    return [(degrees, 2) for degrees in FULLY_CONNECTED] + [(degrees, 4) for degrees in FOUR_INPUTS]


def _fully_connected(degrees: Sequence[int], width: int, max_size: int) -> dict[str, Any]:
    found = mlp_separation_rank(degrees, width, max_size=max_size)
    total = math.prod(degrees)
    return {
        "layers": ", ".join(map(str, degrees)),
        "inputs": width,
        "matrices": sum(degrees),
        "total_degree": total,
        "rank": found.rank,
        "is_complete": found.is_complete,
        "formula": generic_separation_rank(total, width // 2, width // 2),
    }


def _attention(
    tokens: int, width: int, mean: bool, name: str, settings: Mapping[str, Any], max_size: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"tokens": tokens, "width": width, "sums": "means" if mean else "sums", "setting": name}
    for degree in (2, 3, 4):
        layers = [degree] * (BUDGET // degree)
        found: ExactRank = attention_separation_rank(layers, width, tokens, mean=mean, max_size=max_size, **settings)
        row[f"degree_{degree}"] = found.rank
        row[f"degree_{degree}_is_complete"] = found.is_complete
    return row


def _markdown(report: Mapping[str, Any]) -> str:
    incomplete = any(not row["is_complete"] for row in report["fully_connected"]) or any(
        not row[f"degree_{degree}_is_complete"] for row in report["attention"] for degree in (2, 3, 4)
    )
    note = " Some samples were too small: their ranks are lower bounds." if incomplete else ""
    mixture = mixture_score({2: 2, 3: 5})
    return "\n".join(
        [
            "Separation rank between the first and the second half of the inputs, of coordinate 0, with random "
            f"integer weights modulo 2147483629.{note}",
            "",
            "Fully connected nets, x -> prod_k W_k x. Formula: the largest rank of a homogeneous polynomial of"
            " that degree.",
            "",
            markdown_table(
                report["fully_connected"],
                {
                    "inputs": "inputs",
                    "layers": "degrees of the layers",
                    "matrices": "matrices",
                    "total_degree": "degree of the net",
                    "rank": "rank",
                    "formula": "formula",
                },
            ),
            "",
            f"Attention form, {BUDGET} projection matrices (an output matrix a layer is not counted), one head, "
            "causal, read at the last token: degree 2 in 6 layers, 3 in 4, 4 in 3. Means divide sums over the past "
            "by their length.",
            "",
            markdown_table(
                report["attention"],
                {
                    "tokens": "tokens",
                    "width": "numbers a token",
                    "sums": "over the past",
                    "setting": "setting",
                    "degree_2": "degree 2",
                    "degree_3": "degree 3",
                    "degree_4": "degree 4",
                },
            ),
            "",
            "Degree of most log-degree a parameter, for layers of d + c matrices: the real one, the whole one, and "
            "how much more the real one would have.",
            "",
            markdown_table(
                report["best_degrees"],
                {"overhead": "c", "real": "real degree:.3f", "whole": "whole degree", "headroom": "ratio:.4f"},
            ),
            "",
            f"Mixing 2 layers of degree 2 with 5 of degree 3: {mixture:.4f} a matrix, below {math.log(3) / 3:.4f} of "
            "degree 3 alone, as every mixture is.",
        ]
    )
