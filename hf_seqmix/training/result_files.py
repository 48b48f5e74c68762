"""Files of results: JSON lines that an interrupted evaluation goes on from, read together and written whole."""

import argparse
import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._files import write_text
from .json_fields import canonical, checked
from .results import Result, with_run
from .run import Run, run_of
from .tables import markdown_table

__all__ = ["ResultFile", "read_results", "write_report", "write_results"]

logger = logging.getLogger(__name__)

_LINE_START = b'{"key": '
"""How every line begins, by which a line cut short is told from a line of another file."""


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
        content = self.path.read_bytes()
        lines, cut = _split_lines(content)
        for number, line in enumerate(lines, start=1):
            key, group = _read_line(line, f"{self.path}, line {number}")
            self._groups.pop(canonical(key), None)
            self._groups[canonical(key)] = group
        if cut:
            if not (cut.startswith(_LINE_START) or _LINE_START.startswith(cut)):
                raise ValueError(f"{self.path}, line {len(lines) + 1} is not of a file of results: give another path.")
            os.truncate(self.path, self.path.stat().st_size - len(cut))
        elif content and not content.endswith(b"\n"):
            with open(self.path, "ab") as file:
                file.write(b"\n")

    @property
    def results(self) -> list[Result]:
        """All results, the newest of each key."""
        return list({result.key: result for group in self._groups.values() for result in group}.values())

    def get(self, key: Mapping[str, Any] | Run) -> list[Result] | None:
        """Return the newest results with that key, or None."""
        return self._groups.get(canonical(_as_key(key)))

    def forget(self, key: Mapping[str, Any] | Run) -> None:
        """Have no results with that key any more; the file keeps their line until a newer line replaces it."""
        self._groups.pop(canonical(_as_key(key)), None)

    def remove(self, unwanted: Callable[[Result], bool]) -> None:
        """Have no group with an unwanted result any more, in the file, too, which is whole or untouched."""
        self._groups = {key: group for key, group in self._groups.items() if not any(map(unwanted, group))}
        write_text(self.path, "".join(_write_line(json.loads(key), group) for key, group in self._groups.items()))

    def append(self, key: Mapping[str, Any] | Run, results: Result | Iterable[Result]) -> None:
        """Add the results of a key, on the disk before this returns."""
        group = [results] if isinstance(results, Result) else list(results)
        line = _write_line(_as_key(key), group)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._groups.pop(canonical(_as_key(key)), None)
        self._groups[canonical(_as_key(key))] = group


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
            lines, cut = _split_lines(path.read_bytes())
        except OSError as error:
            advice = f"name a file in it, such as {path / 'results.jsonl'}" if path.is_dir() else "check the spelling"
            raise ValueError(
                f"{path} cannot be read as a file of results: {error.strerror}; {advice}. Paths start from "
                f"{Path.cwd()}."
            ) from error
        if cut:
            logger.warning(f"{path}: the last line is cut short, and its results are left out.")
        for number, line in enumerate(lines, start=1):
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
        groups.setdefault(canonical(fields), []).append(result)
    lines = [_write_line({"results": place}, group) for place, group in enumerate(groups.values())]
    write_text(Path(path), "".join(lines))


def write_report(
    arguments: argparse.Namespace,
    stem: str,
    sections: Sequence[tuple[str, Sequence[Mapping[str, Any]], Mapping[str, str]]],
    results: Iterable[Result] | None = None,
) -> Path:
    """Print the tables of a command, and write tables (`stem`.md) and results (`stem`.jsonl) into its folder.

    Args:
        arguments: of the command line; all but the folder are the run of results that have none.
        stem: name of the files.
        sections: (title, rows, columns as `markdown_table` takes them).
        results: of the command; None where a `ResultFile` holds them already.

    Returns:
        The folder.
    """
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(f"{title}\n\n{markdown_table(rows, columns)}" for title, rows, columns in sections)
    print(text)
    write_text(folder / f"{stem}.md", text + "\n")
    if results is not None:
        write_results(folder / f"{stem}.jsonl", with_run(results, run_of(arguments, stem)))
    return folder


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


def _split_lines(content: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole lines of a file, and what a kill has left of the last one.

    Lines end in a newline and nothing else: JSON may hold other characters that end lines of a text. A last line
    without a newline that is whole JSON was cut by no kill.
    """
    *lines, last = content.split(b"\n")
    try:
        json.loads(last)
    except ValueError:
        return lines, last
    return [*lines, last], b""


def _read_line(line: bytes, where: str) -> tuple[Mapping[str, Any], list[Result]]:
    """Return key and results of a line.

    Raises:
        ValueError: the line is something else; the message begins with `where`.
    """
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(
            f"{where} is not JSON; results are JSON lines that this package wrote. Delete the line, and its results "
            "are measured again, or name another file or folder."
        ) from error
    kinds = {"key": Mapping, "shared": Mapping, "results": list}
    found = checked(entry, kinds, set(kinds), where)
    results: list[Result] = []
    runs: dict[str, Run] = {}
    for place, values in enumerate(found["results"], start=1):
        own = f"{where}, result {place}"
        if not isinstance(values, Mapping):
            raise ValueError(f"{own} is {values!r}; it must be an object.")
        setting = [entry.get("setting", {}) for entry in (found["shared"], values)]
        merged = {**found["shared"], **values}
        if all(isinstance(part, Mapping) for part in setting):  # or `from_json` says what is wrong
            merged["setting"] = {**setting[0], **setting[1]}
        results.append(Result.from_json(merged, own, runs))
    return found["key"], results
