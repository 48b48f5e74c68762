"""What benchmarks leave in an output folder: results with their origin, a log of them, a page of tables."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_seqmix._files import write_json, write_text
from hf_seqmix.training.environment import environment_of, portable_command
from hf_seqmix.training.result_files import ResultFile, write_results
from hf_seqmix.training.results import Result

from .state import read_state

LOG = "runs.jsonl"
"""Every result of an output folder, a line a run; results.jsonl holds those of the last command."""

SCORED = "scored.json"
"""File of an output folder: size -> bytes of the test text that are scored, which runs do not say."""


@dataclass
class Report:
    """What a benchmark found.

    Attributes:
        results: of this command, those that were there already included.
        failures: name of a run or model -> why it has no result.
    """

    results: list[Result] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def origin(benchmark: str) -> dict[str, Any]:
    """Return what results say of where they come from: the command and the environment."""
    return {"command": portable_command(benchmark), "environment": environment_of()}


def keep_test_bytes(arguments: argparse.Namespace, test_bytes: int | None, **redone: Sequence[Any]) -> None:
    """Write how much of the test text is scored, so that all results of a size in an output folder are of as much.

    Args:
        arguments: of the command line. Where `overwrite` changes the number, the results of the former one are removed
            from the log: a command that is killed and resumed would show those that it has not yet redone.
        test_bytes: of the beginning of the text; None for all, 0 for none.
        redone: field or setting of results -> the values of those that `overwrite` runs again.

    Raises:
        ValueError: results that stay are of another number.
    """
    path, log = arguments.output_dir / SCORED, ResultFile(arguments.output_dir / LOG)
    lost = "give the --test-bytes of before, which are taken for those of the results there"
    known: dict[str, int | None] = read_state(path, lost) if path.is_file() else {}
    scored = {"size": arguments.size, "task": "language modeling"}
    there = select(log.results, **scored)
    before = known.get(arguments.size, test_bytes) if there else test_bytes
    if before != test_bytes:
        others = {
            name: sorted({str(r.get(name)) for r in there if r.get(name) not in redone[name]}) for name in redone
        }
        left = "; ".join(f"{name.replace('_', ' ')} {', '.join(values)}" for name, values in others.items() if values)
        if left or not arguments.overwrite:
            then, now = ("all bytes" if number is None else f"{number:,} bytes" for number in (before, test_bytes))
            raise ValueError(
                f"{then} of the test text are scored in {arguments.output_dir}, and {now} would be now, which cannot "
                "be compared: give the --test-bytes of before, another --output-dir, or --overwrite with all that is "
                f"there{left and f'; this command leaves out {left}'}."
            )
        log.remove(lambda result: bool(select([result], **scored)))
    write_json(path, known | {arguments.size: test_bytes})


def write_report(folder: Path, report: Report, parts: Sequence[str]) -> None:
    """Write results.jsonl and results.md, and print the latter; nothing of the kind where there is no result."""
    write_results(folder / "results.jsonl", report.results)
    failures = [f"Not evaluated: {name}: {' '.join(why.split())}" for name, why in report.failures.items()]
    text = "\n\n".join([*parts, *failures])
    if text:
        print(text)
        write_text(folder / "results.md", f"{text}\n")


def select(results: Sequence[Result], **wanted: Any) -> list[Result]:
    """Return the results whose fields or settings have the values wanted; a tuple allows several."""
    return [
        result
        for result in results
        if all(result.get(name) in (v if isinstance(v, tuple) else (v,)) for name, v in wanted.items())
    ]
