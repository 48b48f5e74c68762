"""Markdown tables: of results, with means over seeds, and of any rows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .results import KINDS, Result, summarize

__all__ = ["markdown_table", "results_table"]


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


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _cell(value: Any, spec: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return format(value, spec).replace("|", "\\|")
