"""What runs: a `Run` is data, not a command line: task, model, data, training and seed."""

import argparse
import dataclasses
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .environment import file_digest, portable_path
from .json_fields import canonical, checked, plain

__all__ = ["Run", "run_of"]

_PRIVATE = {"output_dir", "run"}
_MODEL = re.compile(
    "models?|families|ops|parts|cases|tables|layers|trust_remote_code|hidden_size|num_layers|layer_size|width|heads|"
    "head_width|channels|decay|embedding_scale|points|taps|half_widths"
)
_DATA = re.compile(
    "tasks?|.*_file|train_characters|tokenizer|block_size|eval_blocks|lengths?|batch|elements|tokens|range|"
    "num_tokens|token_width"
)
"""Arguments of commands that say what the model and the data are; all others are training."""


@dataclass(frozen=True)
class Run:
    """What runs, as data: JSON scalars, lists and dicts only.

    Attributes:
        task: what is learned or measured, such as "listops".
        model: the model, such as {"model_type": "tnn", "config_overrides": {...}} or {"model": "cards/tnn-listops"}.
        data: what the model reads.
        training: fields of the training arguments, such as {"max_steps": 500, "learning_rate": 2e-3}.
        seed: of weights and order.

    Raises:
        ValueError: a field holds what JSON does not have.
    """

    task: str
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("model", "data", "training"):
            object.__setattr__(self, name, plain(getattr(self, name), f"{name} of a run"))

    @property
    def digest(self) -> str:
        """12 hexadecimal digits that change with any field."""
        return hashlib.sha256(canonical(self.to_json()).encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Return the fields, ready for `json.dumps`."""
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "a run") -> "Run":
        """Return the run that `to_json` wrote.

        Args:
            values: what `json.loads` gave.
            where: file and line, for the message of an error.

        Raises:
            ValueError: a field is missing, unknown or of another type.
        """
        kinds = {"task": str, "model": Mapping, "data": Mapping, "training": Mapping, "seed": int}
        return cls(**checked(values, kinds, {"task"}, where))


def run_of(arguments: argparse.Namespace, task: str, model: Mapping[str, Any] | None = None, **data: Any) -> Run:
    """Return the arguments of a command as a run, but for its folder; what is None is left out.

    Files, whose names end in "_file", are data: a portable path and a digest. `seed` is the seed if it is given.

    Args:
        arguments: of the command line.
        task: of the run.
        model: what else tells the model.
        **data: what else tells the data.
    """
    sections: dict[str, dict[str, Any]] = {"model": {}, "data": {}, "training": {}}
    for name, value in vars(arguments).items():
        if name in _PRIVATE or value is None:
            continue
        section = "model" if _MODEL.fullmatch(name) else "data" if _DATA.fullmatch(name) else "training"
        entry = [_portable(each) for each in value] if isinstance(value, (list, tuple)) else _portable(value)
        if name.endswith("_file"):
            entry = {"path": entry, "digest": file_digest(Path(value))}
        sections[section][name] = entry
    seed = sections["training"].pop("seed", 0)
    sections["model"] |= model or {}
    sections["data"] |= data
    return Run(task, seed=seed, **sections)


def _portable(value: Any) -> Any:
    return portable_path(str(value)) if isinstance(value, (str, Path)) else value
