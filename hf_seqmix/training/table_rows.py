"""Rows of a table as results, and back: what a study tabulates is kept as `Result`s."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .environment import environment_of, portable_command
from .results import Result, with_run

__all__ = ["TableRows", "row_of", "row_results"]

TableRows = list[dict[str, Any]]
"""Rows of a table: column -> value."""


def row_results(
    rows: Sequence[Mapping[str, Any]],
    task: str,
    model: str,
    *,
    models: Sequence[str] = (),
    setting: Sequence[str] = (),
    inner: Mapping[str, Sequence[str]] | None = None,
    **shared: Any,
) -> list[Result]:
    """Return a result for each number of the rows of a table.

    Args:
        rows: of the table. Strings and flags are settings of the row; "seed" is the seed; None is left out.
        task: key of the rows under which the task stands, or else the task itself.
        model: key of the rows under which the model stands, or else the model itself.
        models: models that begin a key, as in "ours_forward_ms", or are the keys of a mapping.
        setting: keys of numbers that tell rows apart, such as "length".
        inner: key of a nested value -> a name for each level of keys or places, such as ("seed", "step"). Pairs of
            numbers are a place and a value.
        **shared: fields of all results. A `run` is given each result's own seed and model; the command and the
            environment are those of this process by default.

    Raises:
        ValueError: a value is nested and has no name in `inner`.
    """
    shared = {"command": portable_command(Path(sys.argv[0]).stem), "environment": environment_of()} | shared
    run = shared.pop("run", None)
    common = dict(shared.pop("setting", {}))
    results = []
    for row in rows:
        own = {name: value for name, value in row.items() if isinstance(value, (str, bool)) or name in setting}
        for name in (task, model):
            own.pop(name, None)
        fields = {"task": str(row.get(task, task)), "seed": row.get("seed"), **shared}
        for key, value in row.items():
            if key in own or key in (task, model, "seed") or value is None:
                continue
            who, metric = _split(key, models)
            levels = (inner or {}).get(key, ("model",) if isinstance(value, Mapping) and models else ())
            for places, number in _flat(value, key, levels):
                seed = places.pop("seed", None)
                results.append(
                    Result(
                        model=str(places.pop("model", who or row.get(model, model))),
                        metric=metric,
                        value=number,
                        setting={**common, **own, **places},
                        **(fields if seed is None else {**fields, "seed": int(seed)}),
                    )
                )
    return results if run is None else with_run(results, run)


def row_of(results: Sequence[Result], model: str | None = None) -> dict[str, Any]:
    """Return the row of a table that `row_results` made results of.

    Args:
        results: of one row, without nested values.
        model: key of the model; None if models begin the keys.
    """
    row: dict[str, Any] = {}
    for result in results:
        row |= result.setting
        if model is not None:
            row[model] = result.model
        row[result.metric if model is not None else f"{result.model}_{result.metric}"] = result.value
    return row


def _split(key: str, models: Sequence[str]) -> tuple[str | None, str]:
    """Return the model that a key begins with, and the rest of the key."""
    for name in sorted(models, key=len, reverse=True):
        if key.startswith(f"{name}_"):
            return name, key[len(name) + 1 :]
    return None, key


def _flat(value: Any, key: str, levels: Sequence[str]) -> Iterator[tuple[dict[str, Any], float | None]]:
    """Yield the places and the value of each number."""
    if value is None or isinstance(value, (int, float)):
        yield {}, value
        return
    if not levels:
        raise ValueError(f"the value {key!r} of a row is nested: {str(value)[:60]}; name its levels in `inner`.")
    if isinstance(value, Mapping):
        entries: Sequence[Any] = list(value.items())
    elif all(isinstance(entry, Sequence) and len(entry) == 2 for entry in value) and len(levels) == 1:
        entries = value
    else:
        entries = list(enumerate(value))
    for place, entry in entries:
        for places, number in _flat(entry, key, levels[1:]):
            yield {levels[0]: place, **places}, number
