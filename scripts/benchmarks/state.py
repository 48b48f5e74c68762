"""Files by which an output folder remembers what holds for all of its commands."""

import json
from pathlib import Path
from typing import Any


def read_state(path: Path, lost: str) -> dict[str, Any]:
    """Return the object of a JSON file.

    Args:
        path: of the file.
        lost: what becomes of the output folder without it, in words.

    Raises:
        ValueError: the file holds something else, as a full disk or an editor leaves it.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): delete it; {lost}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__} and not an object of JSON: delete it; {lost}.")
    return found
