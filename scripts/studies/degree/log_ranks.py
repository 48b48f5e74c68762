"""Log-ranks of degree_experiment.py: growth with the depth, the threshold depth, and random sums of monomials."""

import logging
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from hf_seqmix._files import write_text
from hf_seqmix.analysis.degree.log_rank import log_rank_curve, threshold_depth
from hf_seqmix.analysis.degree.monomial_sums import MEASURES, random_monomial_sum
from hf_seqmix.analysis.degree.separation_rank import generic_separation_rank
from hf_seqmix.analysis.plots.figures import COLORS, MARKERS, draw_grid, legend_below
from hf_seqmix.analysis.spectra import eps_rank
from hf_seqmix.training.result_files import write_results
from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.tables import markdown_table

__all__ = ["write_log_rank_tables"]

logger = logging.getLogger("degree_experiment.log_ranks")

DEGREES = (2, 3, 4)
# Form, tokens, numbers a token.
NETS = (
    *(("fully-connected", 1, width) for width in (2, 4, 8, 16)),
    *(("attention", 2, width) for width in (1, 2, 4)),
    *(("attention", 4, width) for width in (1, 2)),
    ("attention", 8, 1),
)
WIDTHS = (16, 64, 256)  # of the formula
AROUND = range(-4, 5)  # layers after the threshold
TERMS = (2, 4, 8)
MONOMIAL_DEGREES = (2, 4, 8)
INPUTS = (4, 16, 64)
EPS = (0.1, 0.01)


def write_log_rank_tables(folder: Path | None, max_size: int, draws: int, run: Run) -> dict[str, Any]:
    """Compute the log-ranks, print tables as Markdown, and write log-ranks.md, .jsonl and .png if given a folder."""
    nets = [
        _net(form, tokens, width, degree, affine, max_size)
        for form, tokens, width in NETS
        for affine in ((False,) if form == "fully-connected" else (False, True))
        for degree in DEGREES
    ]
    steps = [row for width in WIDTHS for row in _steps(width)]
    sums = [_sums(terms, degree, inputs, draws) for terms in TERMS for degree in MONOMIAL_DEGREES for inputs in INPUTS]
    report = {"nets": nets, "steps": steps, "monomials": sums}
    text = _markdown(report, max_size, draws)
    print(text)
    if folder is not None:
        write_results(folder / "log-ranks.jsonl", results_of(report, run=run))
        write_text(folder / "log-ranks.md", text + "\n")
        plot_log_ranks(nets, folder / "log-ranks.png")
    return report


def results_of(report: Mapping[str, Any], **shared: Any) -> list[Result]:
    """Return the tables as results."""
    sizes = ("tokens", "width", "half_inputs", "degree", "threshold")
    by_depth = {"rank": ("depth",), "bound": ("depth",)}
    nets = row_results(report["nets"], "log-rank", "form", setting=sizes, inner=by_depth, **shared)
    steps = row_results(report["steps"], "step of the log-rank", "formula", setting=("width",), **shared)
    sums = row_results(
        report["monomials"], "sums of monomials", "sum", setting=("terms", "degree", "inputs"), **shared
    )
    return nets + steps + sums


def _net(form: str, tokens: int, width: int, degree: int, affine: bool, max_size: int) -> dict[str, Any]:
    curve = log_rank_curve(form, degree, width, tokens, affine=affine, max_size=max_size)
    logger.info("%s, %d x %d, degree %d: ranks %s", form, tokens, width, degree, [point.rank for point in curve])
    return {
        "form": form,
        "projections": "affine, residual" if affine else "linear",
        "tokens": tokens,
        "width": width,
        "half_inputs": tokens * width // 2,
        "degree": degree,
        "threshold": threshold_depth(degree, width),
        "rank": {point.depth: point.rank for point in curve},
        "bound": {point.depth: point.bound for point in curve},
    }


def _steps(width: int) -> list[dict[str, Any]]:
    """Return what layers of degree 2 do to the log-rank of generic polynomials, before and after the threshold."""
    half, depth = width // 2, round(threshold_depth(2, width))
    logs = [math.log2(generic_separation_rank(2 ** (depth + k), half, half)) for k in (*AROUND, AROUND[-1] + 1)]
    pairs = list(pairwise(logs))
    return [
        {"width": width, "quantity": "log2 rank added / h"}
        | {f"{k:+d}": (after - before) / half for k, (before, after) in zip(AROUND, pairs, strict=True)},
        {"width": width, "quantity": "log-rank, after / before"}
        | {f"{k:+d}": after / before for k, (before, after) in zip(AROUND, pairs, strict=True)},
    ]


def _sums(terms: int, degree: int, inputs: int, draws: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    drawn = [random_monomial_sum(terms, degree, inputs, rng) for _ in range(draws)]
    ranks = [one.separation_rank for one in drawn]
    row: dict[str, Any] = {"terms": terms, "degree": degree, "inputs": inputs}
    row |= {"exact": _share(ranks, terms), "mean_rank": sum(ranks) / draws}
    for measure in MEASURES:
        spectra = [one.singular_values(measure) for one in drawn]
        for eps in EPS:
            row[f"{measure}_{eps:g}"] = _share([int(eps_rank(values, eps)) for values in spectra], terms)
    logger.info("%d monomials of degree %d in %d numbers: exact in %.3f", terms, degree, inputs, row["exact"])
    return row


def _share(ranks: Sequence[int], terms: int) -> float:
    return sum(rank == terms for rank in ranks) / len(ranks)


def plot_log_ranks(nets: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw log_d of the rank over the depth, a column a degree: measured (markers), bound (line), threshold (dotted).

    Args:
        nets: rows of the table; nets in attention form are drawn with affine projections and residual.
        path: image file; the extension gives the format.
    """
    kinds = {"fully-connected": "linear", "attention": "affine, residual"}
    title = (
        "Log-rank over the depth: markers measured, lines the bound of the degree, dotted the threshold log_d(width)"
    )
    with draw_grid(path, 12, 7, 2, len(DEGREES), title) as (figure, panels):
        for line, (form, projections) in enumerate(kinds.items()):
            rows = [row for row in nets if row["form"] == form and row["projections"] == projections]
            for axes, degree in zip(panels[line], DEGREES, strict=True):
                for place, row in enumerate(row for row in rows if row["degree"] == degree):
                    color, marker = COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)]
                    depths = list(row["rank"])
                    tokens = f"{row['tokens']} tokens of " if row["tokens"] > 1 else "width "
                    logs = {
                        name: [math.log(value, degree) for value in row[name].values()] for name in ("rank", "bound")
                    }
                    axes.plot(depths, logs["bound"], color=color, linewidth=1, alpha=0.6)
                    axes.plot(
                        depths, logs["rank"], marker, linestyle="none", color=color, label=f"{tokens}{row['width']}"
                    )
                    axes.axvline(row["threshold"], color=color, linestyle=":", linewidth=1)
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
                axes.set(title=f"{form}, degree {degree}", xlabel="depth", ylabel=f"log{degree} rank")
        legend_below(figure, panels.flat, columns=6)


def _markdown(report: Mapping[str, Any], max_size: int, draws: int) -> str:
    deepest = max((depth for row in report["nets"] for depth in row["rank"]), default=0)
    depths = range(1, deepest + 1)
    cells = [
        row | {f"depth {depth}": _cell(row, depth) for depth in depths} | {"shown": f"{row['threshold']:.2f}"}
        for row in report["nets"]
    ]
    columns = {
        "form": "form",
        "projections": "projections",
        "tokens": "tokens",
        "width": "width",
        "degree": "degree",
        "shown": "log_d(width)",
    }
    sums = {"terms": "monomials", "degree": "degree", "inputs": "numbers", "exact": "exact:.3f"}
    sums |= {f"{measure}_{eps:g}": f"{measure}, {eps:g}:.3f" for measure in MEASURES for eps in EPS}
    return "\n\n".join(
        [
            "Exact separation rank by depth, first half of the inputs against the second, with random integer weights"
            " modulo 2147483629. In brackets the largest rank of a polynomial of degree d^L, where that is more. Nets"
            f" of rank {max_size} or more are left out. Width: the inputs of fully connected nets, the numbers a token"
            " in attention form.",
            markdown_table(cells, columns | {f"depth {depth}": f"L = {depth}" for depth in depths}),
            "The threshold by the formula, which fully connected nets attain from depth 2 on: one more layer of"
            " degree 2, by layers after the threshold log2(width); h = width / 2. Far below, the log-rank would"
            " double; far above, h would be added.",
            markdown_table(
                report["steps"],
                {"width": "width", "quantity": "one more layer"} | {f"{k:+d}": f"{k:+d}:.2f" for k in AROUND},
            ),
            "Share of random sums of monomials whose separation rank is the number of monomials: exactly, and at a"
            " relative error in L2 for normal inputs and inputs uniform on [-1, 1], by moments. Each monomial is a"
            f" product of that many inputs drawn uniformly; {draws} draws, standard error at most"
            f" {0.5 / math.sqrt(draws):.3f}.",
            markdown_table(report["monomials"], sums | {"mean_rank": "mean rank:.2f"}),
        ]
    )


def _cell(row: Mapping[str, Any], depth: int) -> str | None:
    if depth not in row["rank"]:
        return None
    rank, bound = row["rank"][depth], row["bound"][depth]
    return f"{rank}" if rank == bound else f"{rank} ({bound})"
