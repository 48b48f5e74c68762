"""The paper's transformer on couplings of known singular values: the experiment `rate` of approximation.py."""

import argparse
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from hf_seqmix.analysis.rates import CouplingTarget, MultiHeadTransformer
from hf_seqmix.analysis.rates.transformer import POSITIONS
from hf_seqmix.analysis.spectra import fit_power_law
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import TableRows

from .log import Log, median, unfinished, values
from .plots import plot_rate

__all__ = ["add_rate", "run_rate"]

VALUE_SIZE = 32
"""m_v, of all heads together."""
FORM = ("exponent", "rank", "num_heads", "num_layers", "positions")
"""What lines of the plot and fits differ in."""


def add_rate(experiments: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the parsers of experiments."""
    rate = experiments.add_parser("rate", parents=[shared], allow_abbrev=False, description=run_rate.__doc__)
    rate.add_argument(
        "--exponents",
        type=float,
        nargs="+",
        default=[0.55, 1.0],
        help="exponents a of the coupling's singular values, which fall as k^-a",
    )
    rate.add_argument(
        "--ranks", type=int, nargs="+", default=[2, 6, 64], help="ranks of the coupling; 64 is beyond every head"
    )
    rate.add_argument(
        "--head-sizes",
        type=int,
        nargs="+",
        default=[1, 2, 3, 4, 6, 8, 12, 16],
        help="widths of queries and keys, of all heads together",
    )
    rate.add_argument(
        "--num-heads", type=int, nargs="+", default=[1], help="numbers of heads, which divide the head sizes"
    )
    rate.add_argument("--num-layers", type=int, nargs="+", default=[1], help="numbers of layers")
    rate.add_argument("--residual", action="store_true", help="add what a layer reads to what the layer gives")
    rate.add_argument(
        "--positions", nargs="+", choices=POSITIONS, default=["none"], help="position encodings of the transformer"
    )
    rate.set_defaults(run=run_rate)


def run_rate(arguments: argparse.Namespace) -> TableRows:
    """Train the paper's transformer on couplings of known singular values, with one head size after another."""
    for option in ("num_heads", "head_sizes", "num_layers", "ranks"):
        if min(getattr(arguments, option)) < 1:
            raise ValueError(f"--{option.replace('_', '-')} must be at least 1; given {getattr(arguments, option)}.")
    for heads, size in itertools.product(arguments.num_heads, arguments.head_sizes):
        if size % heads or VALUE_SIZE % heads:
            raise ValueError(f"{heads} heads share a head size of {size} and {VALUE_SIZE} values; give a divisor.")
    log, rows, fits = Log(arguments), [], []
    forms = (arguments.exponents, arguments.ranks, arguments.num_heads, arguments.num_layers, arguments.positions)
    for form in itertools.product(*forms):
        named = dict(zip(FORM, form, strict=True))
        own = [_row(log, named, size) for size in arguments.head_sizes]
        rows += own
        fits += _fit(named, own)
    of_form = {
        "exponent": "a of k^-a",
        "rank": "rank",
        "num_heads": "heads",
        "num_layers": "layers",
        "positions": "positions",
    }
    columns = {
        **of_form,
        "head_size": "head size, all heads",
        "train_error": "error on training rows:.2e",
        "least": "least of seeds:.2e",
        "test_error": "held out:.2e",
        "truncated": "(coupling of that rank):.2e",
        "cut": f"seeds still training at {arguments.max_steps} updates",
    }
    of_fit = {
        **of_form,
        "of": "errors",
        "sizes": "head sizes",
        "expected": "2a - 1:.2f",
        "measured": "exponent of the squared error:.2f",
        "low": "95 % from:.2f",
        "high": "to:.2f",
        "covers": "over",
        "r2": "R²:.2f",
    }
    title = f"Mean square errors of {len(arguments.seeds)} seeds, medians"
    write_report(arguments, "rate", [(title, rows, columns), ("Fitted exponents", fits, of_fit)])
    plot_rate(rows, FORM, arguments.output_dir / "rate.png")
    return rows


def _row(log: Log, form: dict[str, Any], size: int) -> dict[str, Any]:
    """Return the errors of all seeds of a head size."""
    target = CouplingTarget.power_law(form["rank"], form["exponent"])
    model = {name: form[name] for name in ("num_heads", "num_layers", "positions")}
    model["residual"] = log.arguments.residual
    heads = form["num_heads"]
    make = functools.partial(
        MultiHeadTransformer,
        head_size=size // heads,
        value_size=VALUE_SIZE // heads,
        max_length=target.length,
        **model,
    )
    data = {"exponent": form["exponent"], "rank": form["rank"], "length": target.length}
    results = log.train(make, target, {"name": "transformer", "head_size": size, **model}, data)
    errors = values(results, "train_error")
    cut = target.truncation_error(size)
    log.note("truncated coupling", cut, {**data, "cut_to": size}, "baseline")
    figures = {
        "train_error": median(results, "train_error"),
        "least": min(errors, default=None),
        "test_error": median(results),
    }
    return {**form, "head_size": size, **figures, "truncated": cut, "errors": errors, "cut": unfinished(results)}


def _fit(form: dict[str, Any], rows: Sequence[dict[str, Any]]) -> TableRows:
    """Fit the errors of head sizes below the rank; none where there are fewer than three.

    What a head size can reach is the least error of all trainings, so the least of the seeds is fitted, too, and the
    coupling cut to the head size.
    """
    whole = max(len(row["errors"]) for row in rows)  # a size with a seed that diverged has fewer, and is left out
    below = [row for row in rows if row["head_size"] < form["rank"] and len(row["errors"]) == whole]
    if len(below) < 3 or not whole:
        return []
    sizes = [row["head_size"] for row in below]
    fits: TableRows = []
    for of, key in {"all seeds": "errors", "least of seeds": "least", "(coupling of that rank)": "truncated"}.items():
        table = torch.tensor([row[key] for row in below], dtype=torch.float64)  # (sizes, seeds), or (sizes,)
        found = fit_power_law(sizes, table.T if table.ndim == 2 else table)
        shown: dict[str, Any] = {"measured": found.exponent, "low": found.low, "high": found.high}
        shown |= {"covers": found.covers, "r2": found.r2}
        ends = f"{min(sizes)} to {max(sizes)}"
        fits.append({**form, "of": of, "sizes": ends, "expected": 2 * form["exponent"] - 1, **shown})
    return fits
