"""Checks of fields that are written as JSON: of runs, of results and of the lines of their files."""

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["canonical", "checked", "plain"]

_SCALARS = (str, int, bool, type(None))
"""Types of most entries, which are what JSON has, whatever their values."""


def checked(values: Any, kinds: Mapping[str, Any], required: set[str], where: str) -> dict[str, Any]:
    """Return the fields of a JSON object whose types are as `kinds` says.

    Raises:
        ValueError: a field is missing, unknown or of another type.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} is {str(values)[:40]!r}; it must be an object with {', '.join(kinds)}.")
    for name in kinds:
        if name in required and name not in values:
            raise ValueError(f"{where} has no field {name!r}; is the file one of results?")
    for name, value in values.items():
        if name not in kinds:
            raise ValueError(f"{where} has the unknown field {name!r}; fields are {', '.join(kinds)}.")
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise ValueError(
                f"{where}, field {name!r} is {str(value)[:60]!r}, which is of another type than results have."
            )
    return dict(values)


def plain(value: Any, where: str) -> Any:
    """Return mappings as dicts and tuples as lists.

    Raises:
        ValueError: a value is none of those that JSON has.
    """
    if isinstance(value, Mapping):
        return {
            str(name): entry if type(entry) in _SCALARS else plain(entry, f"{where}, {name}")
            for name, entry in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [plain(entry, where) for entry in value]
    if value is None or isinstance(value, (str, int, bool)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{where} is {value!r}; it must be a string, a finite number, a list or a mapping.")


def canonical(key: Mapping[str, Any]) -> str:
    """Return one JSON text for equal mappings, whatever the order of their keys."""
    return json.dumps(key, sort_keys=True)
