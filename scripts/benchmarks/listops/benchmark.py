"""The benchmark `listops` of run_benchmarks.py: saved ListOps classifiers on fresh expressions of several lengths."""

import argparse
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import AutoModelForSequenceClassification

from hf_seqmix import __version__
from hf_seqmix.analysis.baselines import most_frequent
from hf_seqmix.analysis.plots.results import plot_results
from hf_seqmix.data import listops
from hf_seqmix.metrics import load_metric
from hf_seqmix.training.environment import fingerprint
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result, with_run
from hf_seqmix.training.run import Run
from hf_seqmix.training.tables import results_table

from ..inputs import common_arguments, default_device, named, open_model, short_names
from ..listops_operators import (
    PLACES,
    ROWS_TO_COUNT,
    by_operator,
    digit_names,
    most_frequent_values,
    one_operator,
    operator_results,
    predict,
)
from ..results import LOG, Report, origin, select, write_report

TRAINING_SEED = 0  # of the expressions that `lra` trains on
SINGLE = "one operator"  # in place of a range

logger = logging.getLogger("run_benchmarks")


def add_listops(benchmarks: Any) -> None:
    """Add the sub-command `listops`."""
    parser = benchmarks.add_parser(
        "listops",
        parents=[common_arguments()],
        allow_abbrev=False,
        help="accuracy of saved ListOps classifiers on expressions of several lengths",
        description="Accuracy of saved ListOps classifiers on fresh expressions of several lengths, drawn as the Long "
        "Range Arena draws them. Beside it stand the most frequent value, and the value that is most frequent for the "
        "outermost operator, both counted on expressions of the same lengths. All are scored for each outermost "
        "operator as well, and on short expressions of one operator: a model may know MIN, MAX and MED and guess SM.",
    )
    parser.add_argument(
        "--lengths",
        nargs="+",
        default=["17-64", "65-128", "129-256"],
        metavar="LOW-HIGH",
        help="ranges of lengths in tokens, both ends included; the published one is 501-1999",
    )
    parser.add_argument("--rows", type=int, default=1000, help="expressions of each range")
    parser.set_defaults(run=run_listops, seed=TRAINING_SEED + 1)


def run_listops(arguments: argparse.Namespace) -> Report:
    """Score every model on every range that the output folder does not hold yet, and report all of them.

    Raises:
        ValueError: an argument makes no sense.
    """
    if arguments.rows < 1:
        raise ValueError(f"--rows must be positive; given {arguments.rows}.")
    if arguments.seed == TRAINING_SEED:
        raise ValueError(
            f"--seed {arguments.seed} draws the expressions that the benchmark lra trains on; give another one."
        )
    ranges = {SINGLE: None, **{text: parse_range(text) for text in arguments.lengths}}
    names = short_names(arguments.models)
    title = f"ListOps, generated with seed {arguments.seed}, {arguments.rows:,} expressions each"
    log = ResultFile(arguments.output_dir / LOG)
    report = Report()
    for model, name in zip(arguments.models, names, strict=True):  # before anything is drawn
        if any(_is_missing(arguments, log, model, bounds) for bounds in ranges.values()):
            try:
                open_classifier(arguments, model)
            except ValueError as error:
                report.failures[name] = str(error)
                logger.error(f"{name}: {error}")
    usable = [model for model, name in zip(arguments.models, names, strict=True) if name not in report.failures]
    for text, bounds in ranges.items():
        keys = {model: result_key(arguments, model, bounds) for model in arguments.models}
        missing = [model for model in usable if _is_missing(arguments, log, model, bounds)]
        shared: dict[str, Any] = {"task": "listops", "setting": {"data": title, "lengths": text}}
        shared |= origin(arguments.benchmark)
        run = Run("listops", data={"lengths": text, "rows": arguments.rows, "seed": arguments.seed})
        place = PLACES[text == SINGLE]
        if missing:
            splits = draw(bounds, arguments.rows, arguments.seed)
            rows, targets = splits["test"], list(splits["test"]["Target"])
            rules = []
            for name, guesses in simple_rules(splits).items():
                rules.append(
                    Result(metric="accuracy", model=name, value=share(guesses, targets), kind="baseline", **shared)
                )
                scores = by_operator(guesses, rows)
                rules += operator_results(scores, place, model=name, kind="baseline", **shared)
        for model, name in zip(arguments.models, names, strict=True):
            if model in missing:
                digits, parameters = score(arguments, model, rows)
                own = Result(metric="accuracy", model=name, value=share(digits, targets), **shared)
                own_operators = operator_results(by_operator(digits, rows), place, model=name, **shared)
                size = replace(own, metric="num_parameters", value=parameters)
                log.append(keys[model], [*with_run([own, size, *own_operators], run), *rules])
            report.results += named(log.get(keys[model]), name)
    parts = []
    if report.results:
        report.results = list({result.key: result for result in report.results}.values())  # rules are every model's
        operators = select(report.results, metric="operator_accuracy")
        parts = [
            f"{title}\n\n{results_table(select(report.results, metric='accuracy'), over='lengths')}",
            "By the outermost operator (SM: sum modulo ten)\n\n"
            + results_table(operators, ("model", "lengths"), over="operator"),
        ]
        plot_results(
            [result for result in report.results if result.get("lengths") != SINGLE],
            arguments.output_dir / "lengths.png",
            x="lengths",
            y="accuracy",
            labels={"lengths": "length of the input (tokens)"},
            title=title,
        )
    write_report(arguments.output_dir, report, parts)
    return report


def parse_range(text: str) -> tuple[int, int]:
    """Read "LOW-HIGH".

    Raises:
        ValueError: it is no range of lengths that lists have.
    """
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"--lengths takes ranges such as 17-64, from 1 on and not falling; given {text!r}.")
    return int(found[1]), int(found[2])


def draw(bounds: tuple[int, int] | None, rows: int, seed: int) -> datasets.DatasetDict:
    """Return expressions to score, and others of the same lengths for the rules to count; None: of one operator."""
    if bounds is None:
        return one_operator(rows, seed)
    low, high = bounds
    return listops({"train": ROWS_TO_COUNT, "test": rows}, min_length=low - 1, max_length=high + 1, seed=seed)


def simple_rules(splits: datasets.DatasetDict) -> dict[str, list[int]]:
    """Return what is said of each expression without a model."""
    value = most_frequent(splits["train"]["Target"])
    return {
        "majority class": [value] * len(splits["test"]),
        "outermost operator": most_frequent_values(splits),
    }


def share(digits: Sequence[int], targets: Sequence[int]) -> float:
    """Return the accuracy of predictions."""
    return load_metric("accuracy").compute(predictions=list(digits), references=list(targets))["accuracy"]


def result_key(arguments: argparse.Namespace, model: str, bounds: tuple[int, int] | None) -> dict[str, Any]:
    """Return everything that a score depends on."""
    return {
        "benchmark": arguments.benchmark,
        "version": __version__,
        "model": model,
        "files": fingerprint(Path(model)),
        "lengths": SINGLE if bounds is None else list(bounds),
        "metrics": ["accuracy", "operator_accuracy"],
        "rows": arguments.rows,
        "seed": arguments.seed,
        "dtype": arguments.dtype,
    }


def _is_missing(arguments: argparse.Namespace, log: ResultFile, model: str, bounds: tuple[int, int] | None) -> bool:
    return arguments.overwrite or log.get(result_key(arguments, model, bounds)) is None


def open_classifier(arguments: argparse.Namespace, name: str) -> tuple[Any, Any]:
    """Return a classifier of ten digits and its tokenizer.

    Raises:
        ValueError: it cannot be opened, or is no classifier of ten digits.
    """
    arguments.tokenizer = None  # the one saved with the model
    model, tokenizer = open_model(arguments, name, AutoModelForSequenceClassification.from_pretrained)
    digit_names(model.config)
    return model, tokenizer


def score(arguments: argparse.Namespace, name: str, rows: datasets.Dataset) -> tuple[list[int], int]:
    """Return what a model says of each expression, and its number of parameters."""
    model, tokenizer = open_classifier(arguments, name)
    device = torch.device(arguments.device or default_device())
    digits = predict(model, tokenizer, rows["Source"], device, arguments.batch_size)
    return digits, model.num_parameters()
