"""How many products a polynomial net of random weights needs in practice, beside its exact separation rank."""

import logging
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_seqmix._files import write_text
from hf_seqmix.analysis.degree.modular_nets import polynomial_mlp
from hf_seqmix.analysis.degree.separation_rank import SeparationSpectrum, generic_separation_rank
from hf_seqmix.analysis.plots.figures import draw_row, line
from hf_seqmix.training.result_files import write_results
from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.tables import markdown_table

__all__ = ["net_spectrum", "write_effective_rank_tables"]

logger = logging.getLogger("degree_experiment.effective")

NETS = ((2, 6), (3, 4), (4, 3))  # degree and depth: 12 matrices each
MEASURES = ("uniform", "normal")
EPS = (0.1, 0.01, 1e-4, 1e-6)
NODES = 96  # exact for squares of polynomials of degree 81
SAMPLES = 768
SAMPLED_WIDTHS = (4, 20)


def net_spectrum(degree: int, depth: int, width: int, measure: str, seed: int) -> SeparationSpectrum:
    """Return the spectrum of x -> (x_0 of) prod_k (W_k x), `depth` times, between the halves of its inputs.

    Args:
        degree: factors of a layer.
        depth: layers.
        width: numbers of the input, even, and of each layer. With 2 the spectrum is that of Gauss's quadrature, which
            is exact; with more that of `SAMPLES` random points in either half.
        measure: "uniform" on [-1, 1] or "normal", of each input.
        seed: of the weights, N(0, 1 / width), and of the points.
    """
    rng = np.random.default_rng(seed)
    layers = [rng.standard_normal((degree, width, width)) / width**0.5 for _ in range(depth)]
    if width == 2:
        rule = np.polynomial.legendre.leggauss if measure == "uniform" else np.polynomial.hermite_e.hermegauss
        points, weights = rule(NODES)
        halves = [points[:, None]] * 2
        roots = [np.sqrt(weights / weights.sum())] * 2
    else:
        size = (2, SAMPLES, width // 2)
        halves = list(rng.uniform(-1, 1, size) if measure == "uniform" else rng.standard_normal(size))
        roots = [np.full(SAMPLES, SAMPLES**-0.5)] * 2
    left, right = halves
    pairs = np.concatenate(np.broadcast_arrays(left[:, None], right[None]), axis=-1)
    values = polynomial_mlp(pairs, layers, prime=None)[..., 0]
    scaled = torch.from_numpy(values / np.abs(values).max() * roots[0][:, None] * roots[1])
    return SeparationSpectrum(torch.linalg.svdvals(scaled))


def write_effective_rank_tables(folder: Path | None, draws: int, run: Run) -> dict[str, Any]:
    """Compute the ranks, print a Markdown table, and write effective-ranks.md, .jsonl and .png if given a folder."""
    rows, curves = [], {}
    for width in (2, *SAMPLED_WIDTHS):
        for measure in MEASURES:
            for degree, depth in NETS:
                count = draws if width == 2 else min(draws, 10)
                spectra = [net_spectrum(degree, depth, width, measure, seed) for seed in range(count)]
                rows.append(_row(width, measure, degree, depth, spectra))
                logger.info("width %d, %s, degree %d: %s", width, measure, degree, rows[-1]["effective_rank"][0.01])
                if width == 2:
                    curves[measure, degree] = _mean_tails(spectra)
    text = _markdown(rows, draws)
    print(text)
    if folder is not None:
        write_results(folder / "effective-ranks.jsonl", results_of(rows, run=run))
        write_text(folder / "effective-ranks.md", text + "\n")
        plot_tails(curves, folder / "effective-ranks.png")
    return {"rows": rows}


def results_of(rows: list[dict[str, Any]], **shared: Any) -> list[Result]:
    """Return the table as results, the ranks of each draw by seed."""
    inner = {"effective_rank": ("eps", "seed"), "beyond_least": ("seed",)}
    setting = ("width", "degree", "depth")
    return row_results(rows, "effective ranks", "form", setting=setting, inner=inner, **shared)


def _row(width: int, measure: str, degree: int, depth: int, spectra: list[SeparationSpectrum]) -> dict[str, Any]:
    half = width // 2
    exact = {net: generic_separation_rank(net[0] ** net[1], half, half) for net in NETS}
    row: dict[str, Any] = {"form": "fully-connected", "width": width, "measure": measure}
    row |= {"degree": degree, "depth": depth, "exact_rank": exact[degree, depth]}
    row["effective_rank"] = {eps: {s: one.eps_rank(eps) for s, one in enumerate(spectra)} for eps in EPS}
    least = min(exact.values())
    if least < len(spectra[0].singular_values):
        row["beyond_least"] = {seed: one.mse_bound(least) ** 0.5 for seed, one in enumerate(spectra)}
    return row


def _mean_tails(spectra: list[SeparationSpectrum]) -> np.ndarray:
    tails = [[max(one.mse_bound(rank), 1e-32) ** 0.5 for rank in range(NODES)] for one in spectra]
    return np.exp(np.log(np.array(tails)).mean(axis=0))


def plot_tails(curves: Mapping[tuple[str, int], np.ndarray], path: Path) -> None:
    """Draw the relative error of the best sum of R products over R, a panel a measure, a line a degree."""
    title = "What the best sum of R products misses of a random net of 12 matrices of 2 x 2 (geometric mean of draws)"
    with draw_row(path, 11, 4.4, len(MEASURES), title) as (_, panels):
        for panel, measure in zip(panels, MEASURES, strict=True):
            for index, (degree, depth) in enumerate(NETS):
                exact = generic_separation_rank(degree**depth, 1, 1)
                label = f"degree {degree}, {depth} layers: exact rank {exact}"
                panel.plot(range(NODES), curves[measure, degree], label=label, **line(index) | {"marker": ""})
            panel.set(title=f"{measure} inputs", xlabel="products R", ylabel="relative error (L2)", yscale="log")
            panel.set_ylim(1e-16, 2)
        panels[0].legend()


def _markdown(rows: list[dict[str, Any]], draws: int) -> str:
    cells = []
    for row in rows:
        shown = {f"{eps:g}": _spread(row["effective_rank"][eps].values()) for eps in EPS}
        missed = row.get("beyond_least")
        cells.append(row | shown | {"missed": None if missed is None else f"{max(missed.values()):.1e}"})
    columns = {"width": "inputs", "measure": "inputs are", "degree": "degree", "depth": "layers"}
    columns |= {"exact_rank": "exact rank:,"} | {f"{eps:g}": f"within {eps:g}" for eps in EPS}
    return "\n\n".join(
        [
            "Products of functions of the halves that a fully connected net of 12 matrices with random weights needs:"
            " exactly, and within a relative error in L2: median over draws of the weights, in brackets least and"
            f" greatest. {draws} draws and exact quadrature with 2 inputs, {min(draws, 10)} draws and {SAMPLES} random"
            " points in either half with more, where no more than that can be seen.",
            markdown_table(cells, columns | {"missed": "missed, at most, by the least exact rank of the three"}),
        ]
    )


def _spread(ranks: Any) -> str:
    ranks = list(ranks)
    return f"{statistics.median(ranks):g} ({min(ranks)} to {max(ranks)})"
