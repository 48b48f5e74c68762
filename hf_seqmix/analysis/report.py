"""Results on record: lines that survive a kill, Markdown tables, and what a number depends on."""

import datetime
import importlib.metadata
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["ResultLog", "markdown_table", "run_environment"]

_PACKAGES = ("hf-seqmix", "torch", "transformers", "datasets", "evaluate", "accelerate", "scikit-learn")


class ResultLog:
    """Results of a long evaluation, one JSON line each, so that an interrupted one goes on where it stopped.

    A line is `{"key": ..., "result": ...}`; the key says everything that the result depends on. A line cut short by a kill
    is dropped when the file is opened.

    Raises:
        ValueError: a line other than the last is not JSON of that form: the file is something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._results: dict[str, Any] = {}
        if not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            os.truncate(self.path, self.path.stat().st_size - len(lines.pop().encode("utf-8")))
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                self._results[_canonical(entry["key"])] = entry["result"]
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"Line {number} of {self.path} is not a result written by this package; move the file away."
                ) from error

    def get(self, key: Mapping[str, Any]) -> Any | None:
        """The newest result with that key, or None."""
        return self._results.get(_canonical(key))

    def forget(self, key: Mapping[str, Any]) -> None:
        """Have no result with that key any more; the file keeps its line until a newer one replaces it."""
        self._results.pop(_canonical(key), None)

    def append(self, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Add a result and write it to the disk before returning."""
        line = json.dumps({"key": key, "result": result}, ensure_ascii=False)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._results[_canonical(key)] = json.loads(line)["result"]


def markdown_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """A Markdown table, aligned so that it reads well unrendered too.

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
    """What a result depends on besides its arguments: command, versions, device, threads, date (UTC)."""
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


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _cell(value: Any, spec: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return format(value, spec).replace("|", "\\|")
