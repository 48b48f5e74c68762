"""What ran and what came of it: `Run` and `Result`, their files and their table.

A `Run` is data, not a command line: task, model, data, training and seed. A `Result` is one figure, with the run that
gave the figure. Every benchmark and study writes results as JSON lines, reads them with `read_results` and shows them
with `results_table`; `hf_seqmix.analysis.result_plots` draws them.
"""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from hf_seqmix._files import write_text

__all__ = [
    "Kind",
    "Result",
    "ResultFile",
    "Run",
    "Summary",
    "group_results",
    "markdown_table",
    "read_results",
    "results_table",
    "run_environment",
    "summarize",
    "write_results",
]

Kind = Literal["measured", "baseline", "published"]
Scalar = str | int | float | bool | None

KINDS: tuple[str, ...] = get_args(Kind)
_PACKAGES = ("hf-seqmix", "torch", "transformers", "datasets", "evaluate", "accelerate", "scikit-learn")


@dataclass(frozen=True)
class Run:
    """What runs, as data: JSON scalars, lists and dicts only.

    Attributes:
        task: what is learned or measured, such as "listops".
        model: the model, such as {"model_type": "tnn", "config_overrides": {...}} or {"model": "cards/tnn-listops"}.
        data: what the model reads.
        training: fields of the training arguments, such as {"max_steps": 500, "learning_rate": 2e-3}.
        seed: of weights and order.

    Raises:
        ValueError: a field holds what JSON does not have.
    """

    task: str
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("model", "data", "training"):
            object.__setattr__(self, name, _plain(getattr(self, name), f"{name} of a run"))

    @property
    def digest(self) -> str:
        """12 hexadecimal digits that change with any field."""
        return hashlib.sha256(_canonical(self.to_json()).encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Return the fields, ready for `json.dumps`."""
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "a run") -> "Run":
        """Return the run that `to_json` wrote.

        Args:
            values: what `json.loads` gave.
            where: file and line, for the message of an error.

        Raises:
            ValueError: a field is missing, unknown or of another type.
        """
        kinds = {"task": str, "model": Mapping, "data": Mapping, "training": Mapping, "seed": int}
        return cls(**_checked(values, kinds, {"task"}, where))


@dataclass(frozen=True)
class Result:
    """One figure of one model.

    Attributes:
        task: what was measured, such as "listops".
        model: name of the model, of the baseline, or of the published model.
        metric: name of the figure, such as "accuracy".
        value: None for what could not be measured; NaN and infinity become None.
        seed: of the run; None where nothing is drawn.
        size: of the benchmark: "fast", "reduced", "full", or empty.
        kind: measured here, a baseline on the same data, or a figure that a paper gives.
        setting: what else tells figures apart: length, batch, dtype, context, split, data, step.
        unit: of the value, such as "ms"; empty for a bare number.
        run: what ran, if a run gave the figure.
        source: of a published figure.
        command: that gave the figure.
        environment: what `run_environment` returns.
    """

    task: str
    model: str
    metric: str
    value: float | None
    seed: int | None = None
    size: str = ""
    kind: Kind = "measured"
    setting: Mapping[str, Scalar] = field(default_factory=dict)
    unit: str = ""
    run: Run | None = None
    source: str = ""
    command: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind of a result is {self.kind!r}; it must be one of {', '.join(KINDS)}.")
        for name, value in self.setting.items():
            if not isinstance(value, (str, int, float, bool, type(None))):
                raise ValueError(f"setting {name!r} of a result is {value!r}; it must be a string or a number.")
        object.__setattr__(self, "setting", dict(self.setting))
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "value", None)
        object.__setattr__(self, "environment", _plain(self.environment, "environment of a result"))

    @property
    def figure(self) -> tuple[Any, ...]:
        """What tells the figure from others, its seeds together."""
        setting = tuple(sorted(self.setting.items()))
        return (self.task, self.model, self.metric, self.size, self.kind, self.source, setting)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells the result from others: the figure and the seed."""
        return (*self.figure, self.seed)

    def get(self, name: str) -> Any:
        """Return a field, or else an entry of `setting`; None if there is neither."""
        if name in _RESULT_KINDS:
            return getattr(self, name)
        return self.setting.get(name)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are not empty, ready for `json.dumps`."""
        values: dict[str, Any] = {"task": self.task, "model": self.model, "metric": self.metric, "value": self.value}
        for entry in dataclasses.fields(self)[4:]:
            value = getattr(self, entry.name)
            if value is not None and value != "" and value != {} and (entry.name, value) != ("kind", "measured"):
                values[entry.name] = value.to_json() if isinstance(value, Run) else value
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "a result") -> "Result":
        """Return the result that `to_json` wrote.

        Args:
            values: what `json.loads` gave.
            where: file and line, for the message of an error.

        Raises:
            ValueError: a field is missing, unknown or of another type.
        """
        checked = _checked(values, _RESULT_KINDS, {"task", "model", "metric", "value"}, where)
        if "run" in checked:
            checked["run"] = Run.from_json(checked["run"], f"{where}, field 'run'")
        try:
            return cls(**checked)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error


_RESULT_KINDS: dict[str, Any] = {
    "task": str,
    "model": str,
    "metric": str,
    "value": (int, float, type(None)),
    "seed": (int, type(None)),
    "size": str,
    "kind": str,
    "setting": Mapping,
    "unit": str,
    "run": Mapping,
    "source": str,
    "command": str,
    "environment": Mapping,
}


def group_results(values: Mapping[str, Any], over: str = "step", **shared: Any) -> list[Result]:
    """Return the results of one run.

    Args:
        values: metric -> value, or a curve: pairs (place, value) or a mapping.
        over: the setting whose values are the places of a curve.
        **shared: fields of all results; `setting` is added to that of a curve.

    Returns:
        A result a value, in order; the last of a curve's values wins where a place is there twice.
    """
    setting = dict(shared.pop("setting", {}))
    found = []
    for metric, value in values.items():
        if value is None or isinstance(value, (int, float)):
            found.append(Result(metric=metric, value=value, setting=setting, **shared))
            continue
        points: dict[Any, Any] = dict(value)
        found += [
            Result(metric=metric, value=of, setting={**setting, over: place}, **shared) for place, of in points.items()
        ]
    return found


class ResultFile:
    """Results of a long evaluation as JSON lines, so that an interrupted evaluation goes on where it stopped.

    A line is `{"key": ..., "shared": ..., "results": [...]}`: the results of one run, the fields that they share
    written once. The key says everything that the results depend on. A line cut short by a kill is dropped when the
    file is opened.

    Args:
        path: of the file, which need not exist.

    Raises:
        ValueError: a line other than the last is not of that form; the message names file, line and field.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._groups: dict[str, list[Result]] = {}
        if not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            os.truncate(self.path, self.path.stat().st_size - len(lines.pop().encode("utf-8")))
        for number, line in enumerate(lines, start=1):
            key, group = _read_line(line, f"{self.path}, line {number}")
            self._groups.pop(_canonical(key), None)
            self._groups[_canonical(key)] = group

    @property
    def results(self) -> list[Result]:
        """All results, the newest of each key."""
        return list({result.key: result for group in self._groups.values() for result in group}.values())

    def get(self, key: Mapping[str, Any] | Run) -> list[Result] | None:
        """Return the newest results with that key, or None."""
        return self._groups.get(_canonical(_as_key(key)))

    def forget(self, key: Mapping[str, Any] | Run) -> None:
        """Have no results with that key any more; the file keeps their line until a newer line replaces it."""
        self._groups.pop(_canonical(_as_key(key)), None)

    def append(self, key: Mapping[str, Any] | Run, results: Result | Iterable[Result]) -> None:
        """Add the results of a key, on the disk before this returns."""
        group = [results] if isinstance(results, Result) else list(results)
        line = _write_line(_as_key(key), group)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._groups.pop(_canonical(_as_key(key)), None)
        self._groups[_canonical(_as_key(key))] = group


def read_results(paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str]) -> list[Result]:
    """Return the results of files, in their order; of one file the newest of each key.

    Args:
        paths: files that `ResultFile` or `write_results` wrote; one path is a list of one.

    Raises:
        ValueError: a file cannot be read or holds something else, or two files hold one measured result with two
            values.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    found: dict[tuple[Any, ...], tuple[Result, Path]] = {}
    for path in map(Path, paths):
        own: dict[tuple[Any, ...], Result] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read as a file of results: {error}.") from error
        for number, line in enumerate(lines, start=1):
            if number == len(lines) and not line.endswith("\n"):
                break  # cut short by a kill
            own |= {result.key: result for result in _read_line(line, f"{path}, line {number}")[1]}
        for key, result in own.items():
            known = found.setdefault(key, (result, path))
            if known[0].kind == "measured" and known[0].value != result.value:
                raise ValueError(
                    f"{path} repeats {result.metric} of {result.model} on {result.task}, seed {result.seed}, with "
                    f"another value than {known[1]}: give one of the files."
                )
    return [result for result, _ in found.values()]


def write_results(path: str | os.PathLike[str], results: Iterable[Result]) -> None:
    """Write results as a file that is whole or untouched, a line a run."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        fields = dataclasses.replace(result, metric="", value=None, setting={}).to_json()
        groups.setdefault(_canonical(fields), []).append(result)
    lines = [_write_line({"results": place}, group) for place, group in enumerate(groups.values())]
    write_text(Path(path), "".join(lines))


@dataclass(frozen=True)
class Summary:
    """A figure over its seeds.

    Attributes:
        result: the first result of the figure.
        mean: over seeds; None if no seed has a value.
        spread: standard deviation over seeds, of a sample; None for fewer than two seeds.
        seeds: that have a value.
        results: all results of the figure.
    """

    result: Result
    mean: float | None
    spread: float | None
    seeds: tuple[int | None, ...]
    results: tuple[Result, ...]


def summarize(results: Iterable[Result]) -> list[Summary]:
    """Return every figure with its mean and standard deviation over seeds, in order of first appearance.

    Of results with one key, such as a baseline that several runs found, the last counts.
    """
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in {result.key: result for result in results}.values():
        groups.setdefault(result.figure, []).append(result)
    found = []
    for group in groups.values():
        known = [result for result in group if result.value is not None]
        values = [result.value for result in known if result.value is not None]
        mean = statistics.mean(values) if values else None
        spread = statistics.stdev(values) if len(values) > 1 else None
        found.append(Summary(group[0], mean, spread, tuple(result.seed for result in known), tuple(group)))
    return found


def results_table(
    results: Iterable[Result],
    rows: Sequence[str] | Mapping[str, str] = ("model",),
    columns: Sequence[Any] | Mapping[Any, str] | None = None,
    over: str = "metric",
) -> str:
    """Return results as a Markdown table: means over seeds, and standard deviations where there are several seeds.

    Baselines stand in brackets and published figures say so; both follow what was measured.

    Args:
        results: of one task or several.
        rows: fields or settings that tell the rows apart, perhaps with their headers.
        columns: values of `over` that are shown, perhaps with their headers, which may end in a format as in
            "accuracy:.4f"; by default all that there are.
        over: the field or setting whose values are the columns.

    Returns:
        The table, without a final newline.

    Raises:
        ValueError: two figures with two values fall into one cell.
    """
    row_headers = dict(rows) if isinstance(rows, Mapping) else {name: name.replace("_", " ") for name in rows}
    summaries = sorted(summarize(results), key=lambda summary: KINDS.index(summary.result.kind))
    if columns is None:
        columns = list(dict.fromkeys(summary.result.get(over) for summary in summaries))
    headers = (
        dict(columns) if isinstance(columns, Mapping) else {name: str(name).replace("_", " ") for name in columns}
    )
    table: dict[tuple[Any, ...], dict[str, Any]] = {}
    spreads: set[Any] = set()
    for summary in summaries:
        column = summary.result.get(over)
        if column not in headers:
            continue
        labels = {name: _label(summary.result, name) for name in row_headers}
        row = table.setdefault(tuple(labels.values()), {**labels, "seeds": 0})
        if row.get(f"value {column}", summary.mean) != summary.mean:
            raise ValueError(
                f"two figures fall into the cell {', '.join(map(str, labels.values()))}, {column}: name in `rows` "
                f"what tells {summary.result.setting} from the other."
            )
        row[f"value {column}"] = summary.mean
        row[f"spread {column}"] = summary.spread
        row["seeds"] = max(row["seeds"], len(set(summary.seeds) - {None}))
        if summary.spread:
            spreads.add(column)
    shown = dict(row_headers)
    for column, header in headers.items():
        name, _, spec = header.partition(":")
        shown[f"value {column}"] = f"{name}:{spec or _default_format(table.values(), f'value {column}')}"
        if column in spreads:
            shown[f"spread {column}"] = f"±:{spec or '.2g'}"
    if any(row["seeds"] > 1 for row in table.values()):
        shown["seeds"] = "seeds"
    return markdown_table([{**row, "seeds": row["seeds"] or None} for row in table.values()], shown)


def _label(result: Result, name: str) -> Any:
    """Return the cell of a field; a name in brackets is a baseline."""
    value = result.get(name)
    if name != "model" or result.kind == "measured":
        return value
    return f"({value})" if result.kind == "baseline" else f"{value} (published)"


def _default_format(rows: Iterable[Mapping[str, Any]], key: str) -> str:
    values = [row[key] for row in rows if row.get(key) is not None]
    if all(float(value).is_integer() for value in values) and any(value > 1 for value in values):
        return ",.0f"
    return ".4f" if all(abs(value) < 10 for value in values) else ",.4g"


def markdown_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Return a Markdown table, aligned so that the table reads well unrendered too.

    Args:
        rows: one mapping per row; a missing or None value, or NaN, is shown as "-".
        columns: key of a value -> its header, which may end in a format, as in "bits/byte:.3f".

    Returns:
        The table, without a final newline.
    """
    headers = [header.partition(":")[0] for header in columns.values()]
    formats = [header.partition(":")[2] for header in columns.values()]
    cells = [[_cell(row.get(key), spec) for key, spec in zip(columns, formats, strict=True)] for row in rows]
    numeric = [all(_is_number(row.get(key)) for row in rows) for key in columns]
    widths = [max(3, *map(len, column)) for column in zip(headers, *cells, strict=True)]

    def line(values: Sequence[str]) -> str:
        aligned = [
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        ]
        return "| " + " | ".join(aligned) + " |"

    rule = ["-" * (width - 1) + (":" if right else "-") for width, right in zip(widths, numeric, strict=True)]
    return "\n".join([line(headers), line(rule), *map(line, cells)])


def run_environment() -> dict[str, Any]:
    """Return what a result depends on besides its arguments: command, versions, device, threads, date (UTC)."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": versions,
        "machine": platform.machine(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
    }


def _as_key(key: Mapping[str, Any] | Run) -> Mapping[str, Any]:
    return {"run": key.digest} if isinstance(key, Run) else key


def _write_line(key: Mapping[str, Any], group: Sequence[Result]) -> str:
    """Return the line of a group, the fields and settings that all of its results have with one value written once."""
    entries = [result.to_json() for result in group]
    settings = [entry.pop("setting", {}) for entry in entries]
    common, own = _without_shared(settings)
    shared, fields = _without_shared(entries, kept=("metric", "value"))
    if common:
        shared["setting"] = common
    results = [{**entry, "setting": setting} if setting else entry for entry, setting in zip(fields, own, strict=True)]
    line = {"key": key, "shared": shared, "results": results}
    return json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"


def _without_shared(
    entries: Sequence[Mapping[str, Any]], kept: Sequence[str] = ()
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the items that all entries have, but for those kept, and each entry without them."""
    first = entries[0] if entries else {}
    shared = {
        name: value
        for name, value in first.items()
        if name not in kept and all(name in entry and entry[name] == value for entry in entries)
    }
    return shared, [{name: value for name, value in entry.items() if name not in shared} for entry in entries]


def _read_line(line: str, where: str) -> tuple[Mapping[str, Any], list[Result]]:
    """Return key and results of a line.

    Raises:
        ValueError: the line is something else; the message begins with `where`.
    """
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON; results are JSON lines that this package wrote.") from error
    kinds = {"key": Mapping, "shared": Mapping, "results": list}
    found = _checked(entry, kinds, set(kinds), where)
    results = []
    for place, values in enumerate(found["results"], start=1):
        own = f"{where}, result {place}"
        if not isinstance(values, Mapping):
            raise ValueError(f"{own} is {values!r}; it must be an object.")
        setting = [entry.get("setting", {}) for entry in (found["shared"], values)]
        merged = {**found["shared"], **values}
        if all(isinstance(part, Mapping) for part in setting):  # or `from_json` says what is wrong
            merged["setting"] = {**setting[0], **setting[1]}
        results.append(Result.from_json(merged, own))
    runs: dict[str, Run] = {}  # one object for equal runs
    unique = [
        dataclasses.replace(result, run=runs.setdefault(result.run.digest, result.run)) if result.run else result
        for result in results
    ]
    return found["key"], unique


def _checked(values: Any, kinds: Mapping[str, Any], required: set[str], where: str) -> dict[str, Any]:
    """Return the fields of a JSON object whose types are as `kinds` says.

    Raises:
        ValueError: a field is missing, unknown or of another type.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} is {str(values)[:40]!r}; it must be an object with {', '.join(kinds)}.")
    for name in required:
        if name not in values:
            raise ValueError(f"{where} has no field {name!r}; is the file one of results?")
    for name, value in values.items():
        if name not in kinds:
            raise ValueError(f"{where} has the unknown field {name!r}; fields are {', '.join(kinds)}.")
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise ValueError(
                f"{where}, field {name!r} is {str(value)[:60]!r}, which is of another type than results have."
            )
    return dict(values)


def _plain(value: Any, where: str) -> Any:
    """Return mappings as dicts and tuples as lists.

    Raises:
        ValueError: a value is none of those that JSON has.
    """
    if isinstance(value, Mapping):
        return {str(name): _plain(entry, f"{where}, {name}") for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry, where) for entry in value]
    if value is None or isinstance(value, (str, int, bool)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{where} is {value!r}; it must be a string, a finite number, a list or a mapping.")


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _cell(value: Any, spec: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return format(value, spec).replace("|", "\\|")
