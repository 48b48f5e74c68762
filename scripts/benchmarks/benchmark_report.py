"""Writes what benchmarks found as one table each, into the README and into a checkpoint's card.

    python scripts/benchmarks/benchmark_report.py runs/lra/results.json runs/glue/results.json
    python scripts/benchmarks/benchmark_report.py runs/lra/results.json runs/corpora/results.json --readme README.md
    python scripts/benchmarks/benchmark_report.py runs/lra/results.json --models fd_tnn --seeds 0 --card model_cards/fd-tnn-listops
    python scripts/publishing/model_card.py model_cards/fd-tnn-listops

Reads results.json of the benchmarks lra, glue and corpora of run_benchmarks.py; several files of one benchmark make one table,
their seeds together. The README gets the tables between the lines

    <!-- benchmark results: begin -->
    <!-- benchmark results: end -->

and stays as it is elsewhere. A card gets entries in the results of its card.yaml, in place of those of the same task and
data; the third command renders it. A card is of one model: choose with --models, and with --seeds the run that is kept.
"""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hf_seqmix.hub.kept import CARD_VALUES, read_card_values
from hf_seqmix.training.results import markdown_table

from .report_readers import Result, read_results

BEGIN = "<!-- benchmark results: begin -->"
END = "<!-- benchmark results: end -->"

TABLE = {
    "model": "model",
    "metric": "metric",
    "mean": "mean",
    "spread": "±",
    "seeds": "seeds",
    "published": "published, full size",
}
CARD_WIDTH = 115


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="benchmark_report.py",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, nargs="+", help="results.json of a benchmark")
    parser.add_argument("--readme", type=Path, help="the file between whose two markers the tables go")
    parser.add_argument(
        "--card", type=Path, metavar="FOLDER", help="a folder with card.yaml, such as model_cards/NAME"
    )
    parser.add_argument("--models", nargs="+", help="only results of these models or families")
    parser.add_argument("--seeds", type=int, nargs="+", help="only results of these seeds")
    return parser


def main(argv: Sequence[str] | None = None) -> list[Result]:
    """Print the tables, write what is asked for, and return the results; exits with a message on wrong input."""
    arguments = build_parser().parse_args(argv)
    try:
        results = read_results(arguments.results, arguments.seeds)
        if arguments.models is not None:
            known = list(dict.fromkeys(result.model for result in results))
            results = [result for result in results if result.model in arguments.models]
            if not results:
                raise ValueError(f"--models chooses none of {', '.join(known)}.")
        text = report(results)
        print(text)
        # Everything is made before anything is written.
        written = {}
        if arguments.readme is not None:
            written[arguments.readme] = between_markers(_read_text(arguments.readme), text, str(arguments.readme))
        if arguments.card is not None:
            path = arguments.card / CARD_VALUES
            read_card_values(path)
            written[path] = with_results(_read_text(path), card_entries(results), str(path))
        for path, content in written.items():
            _write_whole(path, content)
    except (ValueError, OSError) as error:
        sys.exit(f"benchmark_report.py: {error}")
    return results


def report(results: Sequence[Result]) -> str:
    """The tables of all benchmarks, one for each task and data, and the numbered commands that they name."""
    parts = []
    for benchmark in dict.fromkeys(result.benchmark for result in results):
        own = [result for result in results if result.benchmark == benchmark]
        commands = list(dict.fromkeys(command for result in own for command in result.commands))
        parts.append(f"### {benchmark}")
        for task, data in dict.fromkeys((result.task, result.data) for result in own):
            group = [result for result in own if (result.task, result.data) == (task, data)]
            numbers = sorted({commands.index(command) + 1 for result in group for command in result.commands})
            by = f"command{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
            rows = [*map(table_row, group), *baseline_rows(group)]
            parts.append(f"{task}: {data} ({by}).\n\n{markdown_table(rows, TABLE)}")
        parts.append("\n".join(f"{number}. `{command}`" for number, command in enumerate(commands, start=1)))
    parts.append(
        "Mean and standard deviation (±) over seeds. Published figures are of the published data, sizes and budgets; they "
        "are no measurements of this package."
    )
    return "\n\n".join(parts)


def table_row(result: Result) -> dict[str, str]:
    """A result as the cells of its row."""
    seeds = sorted(result.values)
    count = f"{len(seeds)}: " if len(seeds) > 1 else ""
    return {
        "model": result.model,
        "metric": _metric(result),
        "mean": number(result.mean),
        "spread": "-" if result.spread is None else number(result.spread),
        "seeds": f"{count}{', '.join(map(str, seeds))}",
        "published": "; ".join(f"{name} {number(value)}" for name, value in result.published.items()) or "-",
    }


def baseline_rows(group: Sequence[Result]) -> list[dict[str, str]]:
    """What the models of a table have to beat, each value once, in brackets."""
    found = {(name, _metric(result), number(v)): None for result in group for name, v in result.baselines.items()}
    return [{"model": f"({name})", "metric": metric, "mean": value} for name, metric, value in found]


def _metric(result: Result) -> str:
    return f"{result.metric} ({result.note})" if result.note else result.metric


def number(value: float) -> str:
    """Four places of what is near one, two of the rest."""
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
                f"{name} must have one line {marker!r}; it has {lines.count(marker)}. The tables go between {BEGIN!r} and "
                f"{END!r}."
            )
    if lines.index(END) < lines.index(BEGIN):
        raise ValueError(f"In {name} the line {END!r} stands before {BEGIN!r}; it must stand after it.")
    first = re.search(rf"^{re.escape(BEGIN)}$", text, flags=re.MULTILINE)
    last = re.search(rf"^{re.escape(END)}$", text, flags=re.MULTILINE)
    assert first is not None and last is not None
    return f"{text[: first.end()]}\n\n{content}\n\n{text[last.start() :]}"


def card_entries(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Entries of a card's `results`, as `model_card.py` reads them.

    Raises:
        ValueError: the results are of several models.
    """
    models = list(dict.fromkeys(result.model for result in results))
    if len(models) > 1:
        raise ValueError(f"A card is of one model; the results are of {', '.join(models)}: choose one with --models.")
    entries = []
    for result in results:
        seeds = sorted(result.values)
        said = f"seed {seeds[0]}"
        if result.spread is not None:
            listed = ", ".join(map(str, seeds))
            said = f"mean of {len(seeds)} seeds ({listed}), standard deviation {number(result.spread)}"
        beside = {name: round(value, 4) for name, value in result.baselines.items()}
        beside |= {f"published, full size ({name})": round(value, 4) for name, value in result.published.items()}
        entry: dict[str, Any] = {
            "task": result.task,
            "dataset": result.data,
            "metric": result.metric,
            "value": round(result.mean, 4),
        }
        if beside:
            entry["baselines"] = beside
        entry["note"] = f"{result.note}, {said}" if result.note else said
        entry["command"] = "\n".join(result.commands)
        entries.append(entry)
    return entries


def with_results(text: str, entries: Sequence[dict[str, Any]], name: str) -> str:
    """Return the text of a card.yaml with entries among its `results`; everything else keeps its letters.

    Entries of a task and data that the card has take the place of the first of those; others follow at the end.

    Raises:
        ValueError: `results` is no list of mappings, or not written as a block of lines of its own.
    """
    before = yaml.safe_load(text)
    old = before.get("results") or []
    if not isinstance(old, list) or not all(isinstance(entry, dict) for entry in old):
        raise ValueError(f"results of {name} must be a list of mappings.")
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


def _read_text(path: Path) -> str:
    """As it is, line ends included."""
    return path.read_bytes().decode("utf-8")


def _write_whole(path: Path, content: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content.encode("utf-8"))
        shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
