"""The page of a session on a GPU: what holds, what fails, which goals are met, which crossovers to commit."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timing.crossover_table import table_text

from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.results import Result
from hf_seqmix.training.tables import markdown_table

__all__ = ["page", "said"]


def said(outcome: dict[str, Any]) -> str:
    """Return what became of a part, in words."""
    status, seconds = outcome["status"], f"{outcome['seconds']:.0f} s"
    if status == "not begun":
        return "not begun: no time was left"
    if status is None:
        return f"stopped at its limit after {seconds}; what was measured until then is kept"
    return f"ended after {seconds}" if status == 0 else f"FAILED with status {status} after {seconds}; see session.log"


def page(machine: str, outcomes: Sequence[dict[str, Any]], work: Path) -> str:
    """Return the page.

    Args:
        machine: what the session ran on.
        outcomes: of the parts so far.
        work: folder with a folder for each part.
    """
    sections = [f"# A session on {machine}", _list(f"{o['part']}: {said(o)}" for o in outcomes)]
    sections += _kernels(work / "kernels" / "check_kernels.jsonl")
    for part, stem in (("products", "benchmark_ops"), ("layers", "benchmark_models")):
        sections += _goals(part, work / part / f"{stem}.md")
    sections += _crossovers(work / "crossovers" / "tune.json")
    sections += _whole_table("Decoding", work / "decoding" / "decoding.md")
    sections += _training(work / "training" / "results.json")
    return "\n\n".join(sections) + "\n"


def _list(lines: Any) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _kernels(path: Path) -> list[str]:
    """Return how many cases were right for each implementation, and every wrong one."""
    if not path.exists():
        return []
    cases = [result for result in read_results(path) if result.metric == "error"]
    groups: dict[tuple[str, str, Any], list[Result]] = {}
    for case in cases:
        groups.setdefault((case.task, case.model, case.setting["dtype"]), []).append(case)
    rows: list[dict[str, Any]] = []
    for (op, name, dtype), group in groups.items():
        wrong = [case for case in group if not case.setting["right"]]
        row: dict[str, Any] = {"op": op, "name": name, "dtype": dtype, "cases": len(group), "wrong": len(wrong)}
        row["worst"] = max((case.value for case in group if case.value is not None), default=None)
        row["lengths"] = ", ".join(str(case.setting["length"]) for case in wrong) or "-"
        rows.append(row | {"fault": next((str(case.setting["fault"]) for case in wrong), "")[:120]})
    rows.sort(key=lambda row: -row["wrong"])
    columns = {"op": "operation", "name": "implementation", "dtype": "dtype", "cases": "cases", "wrong": "wrong"}
    columns |= {"worst": "largest error:.2g", "lengths": "wrong at", "fault": "first fault"}
    return ["## Kernels against float64", markdown_table(rows, columns)]


def _goals(part: str, path: Path) -> list[str]:
    """Return the lines of the table of goals that were measured, those not met first."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    table = text.split("\n\n")[1].splitlines()
    lines = [line for line in table[2:] if "unmeasured" not in line]
    lines.sort(key=lambda line: line.rstrip(" |").endswith("yes"))
    return [f"## Goals of {part}", "\n".join([*table[:2], *lines])]


def _crossovers(path: Path) -> list[str]:
    """Return the crossovers to commit, where they differ from those in force."""
    if not path.exists():
        return []
    written = json.loads(path.read_text(encoding="utf-8"))
    changed: dict[str, dict[str, Any]] = {}
    for op, entry in written["crossovers"].items():
        for kind, rows in entry.items():
            if [list(row) for row in written["in_force"][op][kind]] != [list(row) for row in rows]:
                changed.setdefault(op, {})[kind] = rows
    if not changed:
        return ["## Crossovers", "The table in force is the one that was measured."]
    return ["## Crossovers to commit", f"```python\n{table_text(changed)}\n```"]


def _whole_table(title: str, path: Path) -> list[str]:
    return [f"## {title}", path.read_text(encoding="utf-8").strip()] if path.exists() else []


def _training(path: Path) -> list[str]:
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    scores = found["evaluation"] or {}
    lines = [f"{found['num_parameters']:,} parameters, {found['num_train_tokens']:,} tokens"]
    lines += [f"{found['train_seconds']:.0f} s, {found['tokens_per_second']:,.0f} tokens/s"]
    lines += [f"{name}: {scores[name]:.4f}" for name in ("token_loss", "bits_per_byte") if name in scores]
    return ["## Training", _list(lines)]
