"""Results of long evaluations as lines that survive a kill."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["ResultLog"]


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


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
