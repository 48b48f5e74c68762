"""Reads results.json of the benchmarks that train, each in its own form, into results of one form."""

import json
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import corpora_report, glue_report

REPOSITORY = Path(__file__).resolve().parents[2]

TASKS = {
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "image": "Image",
    "pathfinder": "Pathfinder",
    "path-x": "Path-X",
}
SIZES = {"fast": "fast size", "reduced": "reduced size", "full": "full size"}


@dataclass
class Result:
    """One figure of one model.

    Attributes:
        benchmark: by which it was found.
        task, data, model, metric: what was measured; `data` says in words where it is from, and the size of the benchmark.
        note: under what circumstances, such as "context 512"; may be empty.
        values: seed -> value.
        baselines: name -> value on the same data.
        published: source -> value, of the published data and size.
        commands: that gave the values, without folders of this machine.
    """

    benchmark: str
    task: str
    data: str
    model: str
    metric: str
    note: str = ""
    values: dict[int, float] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)
    published: dict[str, float] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from others."""
        return (self.benchmark, self.task, self.data, self.model, self.metric, self.note)

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.mean(self.values.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds, of a sample; None for one seed."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None


def read_results(paths: Iterable[Path], seeds: Iterable[int] | None = None) -> list[Result]:
    """Return what files say, in their order; seeds of one figure from several files together.

    Args:
        paths: results.json of the benchmarks in `READERS`.
        seeds: only these.

    Raises:
        ValueError: a file cannot be read, is of another benchmark, or repeats a seed of another one.
    """
    found: dict[tuple[str, ...], Result] = {}
    wanted = None if seeds is None else set(seeds)
    for path in paths:
        for result in _read(path):
            result.values = {seed: v for seed, v in result.values.items() if wanted is None or seed in wanted}
            if not result.values:
                continue
            known = found.setdefault(result.key, result)
            if known is result:
                continue
            again = sorted(known.values.keys() & result.values.keys())
            if again:
                raise ValueError(
                    f"{path} repeats seed {again[0]} of {result.model} on {result.task} ({result.data}): give one of the files."
                )
            known.values |= result.values
            known.commands += [command for command in result.commands if command not in known.commands]
    if not found:
        raise ValueError("The files hold no result, or none of the seeds asked for.")
    return list(found.values())


def _read(path: Path) -> list[Result]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        benchmark = report["benchmark"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} cannot be read as results.json of a benchmark: {error!r}.") from error
    if benchmark not in READERS:
        raise ValueError(f"{path} is of the benchmark {benchmark!r}; known are {', '.join(READERS)}.")
    try:
        results = READERS[benchmark](report)
        command = portable_command(report["environment"]["command"], benchmark)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{path} is not as this version of the benchmark {benchmark} writes it ({error!r}): run the benchmark again."
        ) from error
    for result in results:
        result.commands = [command]
    return results


def read_lra(report: Mapping[str, Any]) -> list[Result]:
    """Test accuracies, a result a task and family."""
    found: dict[tuple[str, str], Result] = {}
    published = {(row["task"], row["family"]): row["published"] for row in report["summary"]}
    for row in report["results"]:
        key = (row["task"], row["family"])
        if key not in found:
            data = f"{row['data']}; {row['test_examples']:,} test examples; {SIZES[row['size']]}"
            result = Result("Long Range Arena", TASKS[row["task"]], data, row["family"], "accuracy")
            result.baselines = {**report["data"][row["task"]]["baselines"], **row["baselines"]}
            source = "Tay et al. 2021" if row["family"] == "attention" else "Moreno, Mei, Walters 2023"
            if published.get(key) is not None:
                result.published = {source: published[key]}
            found[key] = result
        found[key].values[row["seed"]] = row["accuracy"]
    return list(found.values())


def read_glue(report: Mapping[str, Any]) -> list[Result]:
    """Scores on the development sets, a result a task, model and metric; a metric that is not defined is left out."""
    found: dict[tuple[str, str, str], Result] = {}
    for row in report["results"]:
        column = glue_report.COLUMNS[row["task"]]
        for place, (split, key, label) in enumerate(column.metrics):
            score = row["scores"].get(split, {}).get(key)
            if score is None:
                continue
            name = (row["task"], row["entry"], label)
            if name not in found:
                data = (
                    f"development set, {row['test_examples']:,} examples; fine-tuned on {row['train_examples']:,}; "
                    f"{SIZES[row['size']]}"
                )
                result = Result("GLUE", column.name, data, row["entry"], label)
                own = [other for other in report["results"] if other["task"] == row["task"]]
                own = [other for other in own if other["entry"] == own[0]["entry"]]
                result.baselines = _mean_baselines([other["baselines"].get(split, {}) for other in own], key)
                for source, figures in glue_report.PUBLISHED.items():
                    value = figures[row["task"]][place] if row["task"] in figures else None
                    if value is not None:
                        result.published[f"Qin et al. 2023, quoted from memory, {source}"] = value / 100
                found[name] = result
            found[name].values[row["seed"]] = score
    return list(found.values())


def _mean_baselines(by_seed: Iterable[Mapping[str, Mapping[str, float | None]]], key: str) -> dict[str, float]:
    """Of baselines that are fitted to each seed's examples, the mean."""
    values: dict[str, list[float]] = {}
    for baselines in by_seed:
        for name, scores in baselines.items():
            score = scores.get(key)
            if score is not None:
                values.setdefault(name, []).append(score)
    return {name: statistics.mean(own) for name, own in values.items()}


def read_corpora(report: Mapping[str, Any]) -> list[Result]:
    """Bits per byte at the training length and the longest one scored; for WikiText-103 whole also perplexity."""
    trained, text = report["context_length"], report["text"]
    lengths = [row["context_length"] for row in report["results"]]
    shown = [trained, max(lengths, default=trained)]
    metrics = [("bits per byte", "bits_per_byte", length) for length in dict.fromkeys(shown)]
    causal = report["objective"] == "causal"
    if report["corpus"] == "wikitext-103":
        metrics.append(("perplexity per token", "perplexity", trained))
    part = f"{text['bytes']:,} of {text['all_test_bytes']:,} bytes"
    results = []
    for family in dict.fromkeys(row["family"] for row in report["results"]):
        for metric, key, length in metrics:
            result = Result(
                "Corpora",
                "language modeling" if causal else "masked language modeling",
                f"{report['corpus']}: {text['source']}; {part}; {SIZES[report['size']]}",
                family,
                metric,
                f"context {length}, trained at {trained}",
            )
            if key == "bits_per_byte":
                result.baselines = dict(report["references"])
            elif causal:
                figures = corpora_report.PUBLISHED.items()
                result.published = {f"Moreno, Mei, Walters 2023, {name}": test for name, (_, test, _) in figures}
            for row in report["results"]:
                if (row["family"], row["context_length"]) == (family, length) and row[key] is not None:
                    result.values[row["seed"]] = row[key]
            results.append(result)
    return results


READERS: dict[str, Callable[[Mapping[str, Any]], list[Result]]] = {
    "lra": read_lra,
    "glue": read_glue,
    "corpora": read_corpora,
}
"""Name of a benchmark -> what reads its results."""


def portable_command(command: str, benchmark: str) -> str:
    """Return a command as a reader can type it: files of the repository from there, others below DATA, output below runs."""
    words = shlex.split(command)
    kept = []
    for before, word in zip(["", *words], words, strict=False):
        name, equals, value = word.partition("=")
        if before == "--output-dir":
            kept.append(f"runs/{benchmark}")
        elif name == "--output-dir" and equals:
            kept.append(f"--output-dir=runs/{benchmark}")
        elif equals and "/" not in name and "/" in value:
            kept.append(f"{name}={_portable_path(value)}")
        else:
            kept.append(_portable_path(word))
    return shlex.join(kept)


def _portable_path(word: str) -> str:
    path = Path(word)
    if not path.is_absolute() and ".." not in path.parts:
        return word
    if path.suffix == ".py" and (REPOSITORY / "scripts" / path.name).is_file():
        return f"scripts/{path.name}"  # of another clone, perhaps
    if path.resolve().is_relative_to(REPOSITORY):
        return str(path.resolve().relative_to(REPOSITORY))
    return f"DATA/{path.name}"
