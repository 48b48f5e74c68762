"""The benchmark `listops` of run_benchmarks.py: saved ListOps classifiers on fresh expressions of several lengths."""

import argparse
import logging
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

from hf_seqmix import __version__
from hf_seqmix.analysis.result_plots import plot_results
from hf_seqmix.data import listops
from hf_seqmix.metrics import load_metric
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result
from hf_seqmix.training.tables import results_table

from .benchmark_inputs import common_arguments, default_device, fingerprint, open_model, short_names
from .benchmark_training import LOG, Report, origin, select, write_report
from .lra_data import outermost_operator

TRAINING_SEED = 0  # of the expressions that `lra` trains on
ROWS_TO_COUNT = 5000  # of each range, that the simple rules learn from
TOKENS_PER_BATCH = 32_768

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
        "outermost operator, both counted on expressions of the same lengths.",
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
    ranges = {text: parse_range(text) for text in arguments.lengths}
    names = short_names(arguments.models)
    title = f"ListOps, generated with seed {arguments.seed}, {arguments.rows:,} expressions each"
    log = ResultFile(arguments.output_dir / LOG)
    report = Report()
    for text, bounds in ranges.items():
        keys = {model: result_key(arguments, model, bounds) for model in arguments.models}
        missing = [m for m in arguments.models if arguments.overwrite or log.get(keys[m]) is None]
        shared: dict[str, Any] = {"task": "listops", "metric": "accuracy", "setting": {"data": title, "lengths": text}}
        shared |= origin(arguments.benchmark)
        if missing:
            splits = draw(bounds, arguments.rows, arguments.seed)
            rules = [
                Result(model=name, value=value, kind="baseline", **shared)
                for name, value in simple_rules(splits).items()
            ]
        for model, name in zip(arguments.models, names, strict=True):
            if model in missing:
                try:
                    accuracy, parameters = score(arguments, model, splits["test"])
                except ValueError as error:
                    report.failures[name] = str(error)
                    logger.error(f"{name}: {error}")
                    continue
                own = Result(model=name, value=accuracy, **shared)
                log.append(keys[model], [own, replace(own, metric="num_parameters", value=parameters), *rules])
            report.results += log.get(keys[model]) or []
    parts = []
    if report.results:
        report.results = list({result.key: result for result in report.results}.values())  # rules are every model's
        parts = [f"{title}\n\n{results_table(select(report.results, metric='accuracy'), over='lengths')}"]
        plot_results(
            report.results,
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


def draw(bounds: tuple[int, int], rows: int, seed: int) -> datasets.DatasetDict:
    """Return expressions to score, and others of the same lengths for the rules to count."""
    low, high = bounds
    return listops({"train": ROWS_TO_COUNT, "test": rows}, min_length=low - 1, max_length=high + 1, seed=seed)


def simple_rules(splits: datasets.DatasetDict) -> dict[str, float]:
    """Return accuracies that need no model."""
    value = Counter(splits["train"]["Target"]).most_common(1)[0][0]
    right = sum(target == value for target in splits["test"]["Target"])
    return {"majority class": right / len(splits["test"]), "outermost operator": outermost_operator(splits)}


def result_key(arguments: argparse.Namespace, model: str, bounds: tuple[int, int]) -> dict[str, Any]:
    """Return everything that a score depends on."""
    return {
        "benchmark": arguments.benchmark,
        "version": __version__,
        "model": model,
        "files": fingerprint(Path(model)),
        "lengths": list(bounds),
        "rows": arguments.rows,
        "seed": arguments.seed,
        "dtype": arguments.dtype,
    }


@torch.inference_mode()
def score(arguments: argparse.Namespace, name: str, rows: datasets.Dataset) -> tuple[float, int]:
    """Return a model's accuracy, and its number of parameters.

    Raises:
        ValueError: it cannot be opened, or is no classifier of ten digits.
    """
    arguments.tokenizer = None  # the one saved with the model
    model, tokenizer = open_model(arguments, name, AutoModelForSequenceClassification.from_pretrained)
    config: Any = model.config
    names = [str(config.id2label[index]) for index in range(config.num_labels)]
    if sorted(names) != [str(digit) for digit in range(10)]:
        raise ValueError(f"its labels are called {', '.join(names)}; those of a ListOps classifier are 0 to 9.")
    device = torch.device(arguments.device or default_device())
    model.eval().to(device)
    collator: Any = DataCollatorWithPadding(tokenizer)
    encoded = [tokenizer(source) for source in rows["Source"]]
    size = arguments.batch_size or max(1, TOKENS_PER_BATCH // max(len(row["input_ids"]) for row in encoded))
    predictions: list[int] = []
    for start in range(0, len(encoded), size):
        logits = model(**collator(encoded[start : start + size]).to(device)).logits
        predictions += logits.argmax(dim=-1).tolist()
    digits = [int(names[index]) for index in predictions]
    found = load_metric("accuracy").compute(predictions=digits, references=list(rows["Target"]))
    return found["accuracy"], model.num_parameters()
