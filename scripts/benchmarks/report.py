"""The sub-command `report` of run_benchmarks.py: results as tables, in a file and in a checkpoint's card."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hf_seqmix._files import write_text
from hf_seqmix.hub.kept import CARD_VALUES, read_card_values
from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.results import Result, Summary, summarize
from hf_seqmix.training.tables import results_table

from .results import Report

BEGIN = "<!-- benchmark results: begin -->"
END = "<!-- benchmark results: end -->"

HEADLINES = ("accuracy", "score", "bits_per_byte", "perplexity", "token_loss", "ms")
"""Metrics that are shown, in this order; of GLUE also those that `LABELS` names."""

LABELS = ("Matthews", "F1", "Pearson", "Spearman", "matched", "mismatched")
TASKS = {
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "image": "Image",
    "pathfinder": "Pathfinder",
    "path-x": "Path-X",
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "rte": "RTE",
    "qnli": "QNLI",
    "qqp": "QQP",
    "mnli": "MNLI",
    "wnli": "WNLI",
}
"""Tasks as papers write them, where results name them otherwise."""

CARD_WIDTH = 115


def add_report(benchmarks: Any) -> None:
    """Add the sub-command `report`."""
    parser = benchmarks.add_parser(
        "report",
        allow_abbrev=False,
        help="shows what benchmarks found as tables, in a file or a card",
        description="Reads results.jsonl of benchmarks, the seeds of several files together, and prints a table for "
        f"each task and data. --into writes the tables between the two lines {BEGIN!r} and {END!r} of a file, which "
        "stays as it is elsewhere. --card puts entries into the results of a card.yaml, in place of the entries of "
        "the same task and data; scripts/publishing/model_card.py renders the card. A card is of one model: choose "
        "with --models, and with --seeds the run that is kept.",
    )
    parser.add_argument("results", type=Path, nargs="+", help="results.jsonl of benchmarks")
    parser.add_argument("--into", type=Path, metavar="FILE", help="the file between whose two markers the tables go")
    parser.add_argument("--card", type=Path, metavar="FOLDER", help="with card.yaml, such as model_cards/NAME")
    parser.add_argument("--models", nargs="+", help="only results of these models or families")
    parser.add_argument("--seeds", type=int, nargs="+", help="only results of these seeds")
    parser.set_defaults(run=run_report, output_dir=None)


def run_report(arguments: argparse.Namespace) -> Report:
    """Print the tables and write what is asked for.

    Raises:
        ValueError: a file holds something else, nothing is left to show, or a file cannot be changed in place.
    """
    along = ("step", "seconds", "position")  # what curves are drawn over
    results = [r for r in read_results(arguments.results) if all(r.get(axis) is None for axis in along)]
    results = [result for result in results if result.metric in (*HEADLINES, *LABELS)]
    if arguments.seeds is not None:
        results = [r for r in results if r.seed in (*arguments.seeds, None) or r.kind == "published"]
    known = list(dict.fromkeys(result.model for result in results if result.kind == "measured"))
    if not known:
        raise ValueError("the files hold no result, or none of the seeds asked for.")
    if arguments.models is not None:
        own = [r for r in results if r.model in arguments.models and r.kind == "measured"]
        if not own:
            raise ValueError(f"--models chooses none of {', '.join(known)}.")
        tasks = {(result.task, result.get("data")) for result in own}
        results = own + [
            r
            for r in results
            if (r.kind == "baseline" and (r.task, r.get("data")) in tasks)
            or (r.kind == "published" and r.model in arguments.models)
        ]
    text = describe(results)
    print(text)
    # Everything is made before anything is written.
    written = {}
    if arguments.into is not None:
        around = _read_text(arguments.into) if arguments.into.exists() else f"{BEGIN}\n{END}\n"
        written[arguments.into] = between_markers(around, text, str(arguments.into))
    if arguments.card is not None:
        path = arguments.card / CARD_VALUES
        read_card_values(path)
        written[path] = with_results(_read_text(path), card_entries(results), str(path))
    for path, content in written.items():
        write_text(path, content)
    return Report(results)


def describe(results: Sequence[Result]) -> str:
    """Return a table for each task and data, and the numbered commands that the tables name."""
    parts = []
    measured = [result for result in results if result.kind == "measured"]
    commands = list(dict.fromkeys(result.command for result in measured if result.command))
    for subject in dict.fromkeys(map(subject_of, measured)):
        group = of_subject(results, subject)
        own = {commands.index(r.command) + 1 for r in group if r.kind == "measured" and r.command}
        by = f"command{'s' if len(own) > 1 else ''} {', '.join(map(str, sorted(own)))}"
        parts.append(f"{': '.join(filter(None, subject))}{f' ({by})' if own else ''}.")
        metrics = [metric for metric in (*HEADLINES, *LABELS) if any(r.metric == metric for r in group)]
        parts.append(results_table(group, ["model", *telling(group)], metrics))
        parts += seeds_apart(group)
        sources: dict[str, list[str]] = {}
        for result in group:
            if result.kind == "published" and result.model not in sources.setdefault(result.source, []):
                sources[result.source].append(result.model)
        if sources:
            said = [f"{source} ({', '.join(names)})" for source, names in sources.items()]
            parts.append(f"Published: {'; '.join(said)}.")
    parts += ["\n".join(f"{number}. `{command}`" for number, command in enumerate(commands, start=1))]
    parts.append(
        "Mean and standard deviation (±) over seeds. Baselines stand in brackets. Published figures are of the "
        "published data, sizes and budgets; they are no measurements of this package."
    )
    return "\n\n".join(filter(None, parts))


def subject_of(result: Result) -> tuple[str, str]:
    """Return task and data of a result, in words."""
    size = f"{result.size} size" if result.size else ""
    return TASKS.get(result.task, result.task), "; ".join(filter(None, (str(result.get("data") or ""), size)))


def of_subject(results: Sequence[Result], subject: tuple[str, str]) -> list[Result]:
    """Return the results of a task and data, the baselines and published figures of the task with them."""
    task, _ = subject
    return [
        result
        for result in results
        if subject_of(result) == subject
        or (result.kind != "measured" and subject_of(result)[0] == task and result.get("data") is None)
    ]


def telling(results: Sequence[Result]) -> list[str]:
    """Return the settings that tell some measured results from others."""
    own = [result for result in results if result.kind == "measured"]
    names = dict.fromkeys(name for result in own for name in result.setting)
    return [name for name in names if len({result.get(name) for result in own} - {None}) > 1]


def seeds_apart(results: Sequence[Result]) -> list[str]:
    """Return a sentence for each model whose seeds had other runs than one another, which a mean hides."""
    said = []
    for summary in summarize(result for result in results if result.kind == "measured"):
        differing = [
            f"{name} ({', '.join(map(str, values))})"
            for name, values in summary.differing.items()
            if not name.endswith("_file")  # names of a folder, where seeds were run apart
        ]
        if differing and len(summary.seeds) > 1:
            said.append(f"The runs of {summary.result.model} differ in more than the seed: {'; '.join(differing)}.")
    return list(dict.fromkeys(said))


def number(value: float | None) -> str:
    """Return four places of what is near one, two of the rest."""
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def between_markers(text: str, content: str, name: str) -> str:
    """Return a text whose part between the two markers is replaced.

    Raises:
        ValueError: a marker is missing or there twice, or the end stands before the beginning.
    """
    lines = text.splitlines()
    for marker in (BEGIN, END):
        if lines.count(marker) != 1:
            raise ValueError(
                f"{name} must have one line {marker!r}; it has {lines.count(marker)}. The tables go between "
                f"{BEGIN!r} and {END!r}."
            )
    if lines.index(END) < lines.index(BEGIN):
        raise ValueError(f"in {name} the line {END!r} stands before {BEGIN!r}; it must stand after it.")
    first = re.search(rf"^{re.escape(BEGIN)}(?=\r?$)", text, flags=re.MULTILINE)
    last = re.search(rf"^{re.escape(END)}(?=\r?$)", text, flags=re.MULTILINE)
    assert first is not None and last is not None
    return f"{text[: first.end()]}\n\n{content}\n\n{text[last.start() :]}"


def card_entries(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return entries of a card's `results`, as `model_card.py` reads them.

    Raises:
        ValueError: the results are of several models.
    """
    measured = [result for result in results if result.kind == "measured"]
    models = list(dict.fromkeys(result.model for result in measured))
    if len(models) > 1:
        raise ValueError(f"a card is of one model; the results are of {', '.join(models)}: choose one with --models.")
    entries = []
    for summary in summarize(measured):
        result, mean = summary.result, summary.mean
        if mean is None:
            continue
        group = of_subject(results, subject_of(result))
        others = [s for s in summarize(group) if s.result.metric == result.metric and s.result.kind != "measured"]
        beside = {_beside(s): round(s.mean, 4) for s in others if s.mean is not None}
        entry: dict[str, Any] = {
            "task": subject_of(result)[0],
            "dataset": subject_of(result)[1],
            "metric": result.metric.replace("_", " "),
            "value": round(mean, 4),
        }
        if beside:
            entry["baselines"] = beside
        told = [f"{name.replace('_', ' ')} {result.get(name)}" for name in telling(group)]
        entry["note"] = ", ".join([*told, _seeds(summary)])
        entry["command"] = "\n".join(dict.fromkeys(r.command for r in summary.results if r.command))
        entries.append(entry)
    return entries


def _beside(summary: Summary) -> str:
    result = summary.result
    return result.model if result.kind == "baseline" else f"published, full size ({result.source}, {result.model})"


def _seeds(summary: Summary) -> str:
    seeds = sorted(seed for seed in summary.seeds if seed is not None)
    if summary.spread is None:
        return f"seed {seeds[0]}" if seeds else "no seed"
    return f"mean of {len(seeds)} seeds ({', '.join(map(str, seeds))}), standard deviation {number(summary.spread)}"


def with_results(text: str, entries: Sequence[dict[str, Any]], name: str) -> str:
    """Return the text of a card.yaml with entries among its `results`; everything else keeps its letters.

    Entries of a task and data that the card has take the place of the first of those; others follow at the end. An
    entry that is written anew, with the same metric and note, stays a figure of its benchmark.

    Raises:
        ValueError: `results` is no list of mappings, or not written as a block of lines of its own.
    """
    before = yaml.safe_load(text)
    old = before.get("results") or []
    if not isinstance(old, list) or not all(isinstance(entry, dict) for entry in old):
        raise ValueError(f"results of {name} must be a list of mappings.")
    # The maker of a card knows which figure is of a benchmark of the Hub; a result does not.
    known = {_figure(entry): entry["benchmark"] for entry in old if "benchmark" in entry}
    entries = [
        {**entry, **({"benchmark": known[key]} if (key := _figure(entry)) in known else {})} for entry in entries
    ]
    new = {_subject(entry): [other for other in entries if _subject(other) == _subject(entry)] for entry in entries}
    placed: list[dict[str, Any]] = []
    for entry in old:
        if _subject(entry) in new:
            placed += new.pop(_subject(entry))
        elif _subject(entry) not in {_subject(other) for other in entries}:
            placed.append(entry)
    placed += [entry for own in new.values() for entry in own]
    block = yaml.safe_dump({"results": placed}, sort_keys=False, allow_unicode=True, width=CARD_WIDTH)
    lines = text.splitlines(keepends=True)
    first = next((place for place, line in enumerate(lines) if line.startswith("results:")), len(lines))
    if first == len(lines) and lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    end = min(first + 1, len(lines))
    # Up to the next key; items of the list may stand as far left as keys, and a comment belongs to what follows.
    while end < len(lines) and (not lines[end].strip() or lines[end][0] in " \t-#"):
        end += 1
    while end > first + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1
    changed = "".join([*lines[:first], block, *lines[end:]])
    try:
        same = yaml.safe_load(changed) == {**before, "results": placed}
    except yaml.YAMLError:
        same = False
    if not same:
        raise ValueError(f"{name} cannot be changed in place: write its results as a block of lines, not in braces.")
    return changed


def _subject(entry: dict[str, Any]) -> tuple[Any, Any]:
    return entry.get("task"), entry.get("dataset")


def _figure(entry: dict[str, Any]) -> tuple[Any, ...]:
    return *_subject(entry), entry.get("metric"), entry.get("note")


def _read_text(path: Path) -> str:
    """As it is, line ends included."""
    return path.read_bytes().decode("utf-8")
