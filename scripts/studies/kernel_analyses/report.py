"""What the analyses of analyze_kernels.py share: which layers are drawn, results and tables."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.results import Result
from hf_seqmix.training.table_rows import row_results

__all__ = ["chosen", "report", "trained_length"]


def trained_length(arguments: argparse.Namespace, model: Any) -> int:
    """Return the length asked for, or else the one that the model is configured for."""
    return arguments.length or model.config.max_position_embeddings


def chosen(arguments: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return the names of the layers to draw.

    Raises:
        ValueError: a layer is asked for that is not there.
    """
    numbers = arguments.layers or sorted({0, len(names) - 1})
    if not all(0 <= number < len(names) for number in numbers):
        raise ValueError(f"--layers is {numbers}; the model has {len(names)} Toeplitz operators, numbered from 0.")
    return [names[number] for number in numbers]


def results_of(name: str, rows: Sequence[Mapping[str, Any]], **shared: Any) -> list[Result]:
    """Return the rows of an analysis as results: what the analysis looks at stands for the model."""
    looked_at = {
        "responses": "activation",
        "responses-fitted": "activation",
        "inequalities": "activation",
        "ski-error": "kernel",
    }
    looked_at |= {"piecewise-linear": "normalization"}
    return row_results(
        rows,
        name,
        looked_at.get(name, "layer"),
        setting=("length", "longer", "points", "degree", "half_width", "channels", "encoders", "fft_length", "order"),
        inner={"taps": ("channel", "lag")},
        **shared,
    )


def report(
    arguments: argparse.Namespace,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    *,
    title: str,
) -> None:
    """Print the table, and write the table and the results."""
    write_report(arguments, name, [(title, rows, columns)], results_of(name, rows))
