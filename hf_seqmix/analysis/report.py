"""Results as files: JSON written in one piece, Markdown tables, and what a number depends on."""

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

__all__ = ["markdown_table", "run_environment", "write_json"]

_PACKAGES = ("hf-seqmix", "torch", "transformers", "datasets", "evaluate", "accelerate", "scikit-learn")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a JSON file in one piece: whoever reads the path sees the old content or the new, never half of it.

    Numbers that are not finite become null, since JSON has none.

    Raises:
        OSError: the disk is full or cannot be written to; what was at `path` is left as it was.
    """
    path = Path(path)
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _cell(value: Any, spec: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return format(value, spec).replace("|", "\\|")
