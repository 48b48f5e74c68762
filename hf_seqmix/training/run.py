"""What runs: a `Run` is data, not a command line: task, model, data, training and seed."""

import argparse
import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .json_fields import canonical, checked, plain

__all__ = ["Run", "run_of"]

_PRIVATE = {"output_dir", "run"}


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


def run_of(arguments: argparse.Namespace, task: str) -> Run:
    """Return the arguments of a command as a run, but for its folder."""
    given = {name: value for name, value in vars(arguments).items() if name not in _PRIVATE}
    fields = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    return Run(task, training=fields)
