"""Results in the folder `.eval_results`, which the Hub shows on the page of a model and on leaderboards.

An entry names a dataset of the Hub that is registered as a benchmark, and a task of that dataset's `eval.yaml`
(https://huggingface.co/docs/hub/eval-results). A result on other data has no such names and stands in the
`model-index` of the card alone. So an entry is made of those results of a card that have a `benchmark`:

    results:
    - task: question answering
      dataset: GSM8K
      metric: accuracy
      value: 0.021
      command: python scripts/examples/harness.py runs/tnn --tasks gsm8k
      benchmark: {dataset: openai/gsm8k, task: gsm8k, date: "2026-11-22"}
"""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml, parse_eval_result_entries
from huggingface_hub.utils import validate_repo_id

__all__ = ["EVAL_RESULTS", "eval_results", "read_eval_results", "write_eval_results"]

EVAL_RESULTS = ".eval_results"
"""The folder of a repository."""

_FIELDS = ("dataset", "task", "revision", "date")


def eval_results(results: Iterable[Mapping[str, Any]]) -> list[EvalResultEntry]:
    """Return the entries of a card's results, one for each result that names a benchmark.

    Args:
        results: as `build_card` takes them. A `benchmark` maps `dataset` to the name of a dataset on the Hub and
            `task` to the name of one of its tasks; `revision` is the commit of the dataset and `date` the day of the
            evaluation, as in 2026-11-22. The `note` of a result goes with the entry.

    Raises:
        ValueError: for a benchmark that lacks a name, or has one that the Hub does not take.
    """
    return [
        _entry(f"results[{number}].benchmark", result)
        for number, result in enumerate(results)
        if result.get("benchmark") is not None
    ]


def _entry(where: str, result: Mapping[str, Any]) -> EvalResultEntry:
    benchmark = result["benchmark"]
    if not isinstance(benchmark, Mapping) or not set(benchmark) <= set(_FIELDS):
        raise ValueError(f"{where} of the card is {benchmark!r}; it must map {', '.join(_FIELDS)} to their values.")
    fields: dict[str, Any] = {name: benchmark.get(name) for name in _FIELDS}
    if isinstance(fields["date"], datetime.date):  # YAML reads an unquoted one so
        fields["date"] = fields["date"].isoformat()
    for name, value in fields.items():
        if (value is not None or name in ("dataset", "task")) and not (isinstance(value, str) and value.strip()):
            raise ValueError(f"{where}.{name} of the card is {value!r}; it must be text.")
    try:
        validate_repo_id(fields["dataset"])
        datetime.datetime.fromisoformat(fields["date"] or "2000-01-01")
    except ValueError as error:
        raise ValueError(f"{where} of the card: {error}") from error
    if "/" not in fields["dataset"]:
        raise ValueError(f"{where}.dataset of the card is {fields['dataset']!r}; it must be 'owner/name' on the Hub.")
    return EvalResultEntry(
        dataset_id=fields["dataset"],
        task_id=fields["task"],
        value=result.get("value"),
        dataset_revision=fields["revision"],
        date=fields["date"],
        notes=result.get("note") or None,
    )


def write_eval_results(folder: Path, entries: Sequence[EvalResultEntry]) -> list[Path]:
    """Write `.eval_results/DATASET.yaml` into the folder of a model, in place of older files.

    Datasets whose names differ in signs alone share a file.

    Args:
        folder: of the model.
        entries: as `eval_results` returns them; without any there is no folder.

    Returns:
        The files.
    """
    place = folder / EVAL_RESULTS
    for path in place.glob("*.yaml"):
        path.unlink()
    if not entries:
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
        return []
    place.mkdir(exist_ok=True)
    files: dict[Path, list[EvalResultEntry]] = {}
    for entry in entries:
        name = re.sub(r"[^a-z0-9]+", "-", entry.dataset_id.lower()).strip("-")
        files.setdefault(place / f"{name}.yaml", []).append(entry)
    for path, own in files.items():
        content = yaml.safe_dump(eval_result_entries_to_yaml(own), sort_keys=False, allow_unicode=True)
        path.write_text(content, encoding="utf-8")
    return list(files)


def read_eval_results(folder: Path) -> list[EvalResultEntry]:
    """Return the entries in `.eval_results` of a model's folder, read as the Hub's own library reads them.

    Raises:
        ValueError: for a file that holds something else.
    """
    entries = []
    for path in sorted((folder / EVAL_RESULTS).glob("*.yaml")):
        try:
            entries += parse_eval_result_entries(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise ValueError(f"{path.name} holds no evaluation results: {' '.join(str(error).split())}.") from error
    return entries
