"""What compare_mixers.py and compare_lengths.py compare: the options of the command line, and their meaning."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_seqmix.training.command import positive, refuse_twice
from hf_seqmix.training.optimizers import MUON

from .tasks import TASKS

__all__ = ["MUON_FACTOR", "SPLITS", "Options", "add_arguments"]

SPLITS = ("train", "validation", "test")
MUON_FACTOR = 5
"""The rate of hidden matrices over that of the rest under Muon, as in the recipes."""


@dataclass(frozen=True)
class Options:
    """What is compared: the arguments of the command line, by their names there.

    Raises:
        ValueError: if an argument makes no sense.
    """

    task: str
    output_dir: Path
    models: Sequence[str]
    learning_rates: Sequence[float]
    seeds: Sequence[int]
    extend_sweep: int
    train_file: str | None
    validation_file: str | None
    test_file: str | None
    tokenizer: str
    steps: int
    batch_size: int
    block_size: int
    eval_blocks: int
    hidden_size: int
    num_layers: int
    decay: float
    embedding_scale: float
    threads: int
    feed_forward: int | None = None
    optim: str = "adamw_torch"
    bf16: bool | str = False
    time_budget: float | None = None

    @classmethod
    def of(cls, task: str, **given: Any) -> "Options":
        """Return the options of a task; sizes that are missing or None are the task's."""
        return cls(task=task, **given | {n: v for n, v in TASKS[task].defaults.items() if given.get(n) is None})

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "block_size", "eval_blocks", "hidden_size", "num_layers", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give at least 1.")
        if self.feed_forward is not None and self.feed_forward < 1:
            raise ValueError(f"--feed-forward is {self.feed_forward}; give at least 1 unit.")
        refuse_twice(models=self.models, learning_rates=self.learning_rates, seeds=self.seeds)
        if not all(0 < rate < math.inf for rate in self.learning_rates):
            raise ValueError(f"--learning-rates is {self.learning_rates}; rates must be positive and finite.")
        unread = [f"--{split}-file" for split, path in self.files.items() if path is not None]
        if unread and not TASKS[self.task].is_text:
            raise ValueError(f"the task {self.task} draws its own data: leave out {', '.join(unread)}.")
        if self.extend_sweep < 0:
            raise ValueError(f"--extend-sweep is {self.extend_sweep}; give 0 or more.")

    @property
    def files(self) -> dict[str, str | None]:
        """The text of each split."""
        return {split: getattr(self, f"{split}_file") for split in SPLITS}

    def training(self, rate: float) -> dict[str, Any]:
        """Return the fields of the training arguments of a run but its seed."""
        return {
            "max_steps": self.steps,
            "per_device_train_batch_size": self.batch_size,
            "learning_rate": rate,
            "lr_scheduler_type": "cosine",
            "warmup_steps": self.steps // 10,
            "adam_beta2": 0.98,
            "weight_decay": 0.1,
            "max_grad_norm": 1.0,
        } | self.departures(rate)

    def departures(self, rate: float | None = None) -> dict[str, Any]:
        """Return what differs from AdamW in float32, for runs and, without a rate, their keys."""
        changed: dict[str, Any] = {} if self.optim == "adamw_torch" else {"optim": self.optim}
        if self.optim == MUON and rate is not None:
            changed["muon_learning_rate"] = MUON_FACTOR * rate
        return changed | ({"bf16": self.bf16} if self.bf16 else {})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options but task, models, output folder and length."""
    parser.add_argument(
        "--learning-rates",
        nargs="+",
        type=float,
        default=[2e-3, 4e-3, 8e-3],
        metavar="RATE",
        help="learning rates that the first seed tries",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        default=[0, 1, 2],
        metavar="SEED",
        help="seeds; those after the first train with the best rate alone",
    )
    parser.add_argument(
        "--extend-sweep", type=int, default=2, help="learning rates to add, at most, while the best is at an edge"
    )
    for split in SPLITS:
        parser.add_argument(f"--{split}-file", help="a text file, which the tasks lm-causal and lm-masked need")
    parser.add_argument(
        "--tokenizer",
        default="bpe:1024",
        help="byte, bpe:SIZE, or a pretrained one, see pretrain.py; trained once and kept",
    )
    parser.add_argument("--steps", type=int, help="updates of a run; the task's by default")
    parser.add_argument("--batch-size", type=int, help="sequences of an update; the task's by default")
    parser.add_argument(
        "--eval-blocks", type=int, help="sequences of the validation and of the test split; the task's by default"
    )
    parser.add_argument("--hidden-size", type=int, help="width of the models; the task's by default")
    parser.add_argument("--num-layers", type=int, help="layers of each model; the task's by default")
    parser.add_argument(
        "--feed-forward",
        type=int,
        metavar="UNITS",
        help="units of every model's feed-forwards, instead of as many as give each the parameters of tnn",
    )
    parser.add_argument(
        "--decay", type=float, help="decay of the kernels of tnn, a factor for each token; the task's by default"
    )
    parser.add_argument(
        "--embedding-scale", type=float, help="factor on the embeddings of all models; the task's by default"
    )
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument(
        "--optim",
        default="adamw_torch",
        choices=["adamw_torch", MUON],
        help=f"with muon, hidden matrices have {MUON_FACTOR} times the learning rate",
    )
    parser.add_argument("--bf16", nargs="?", const=True, default=False, choices=[True, "auto"], help="see pretrain.py")
    parser.add_argument(
        "--time-budget",
        type=float,
        help="minutes, of each length where there are several; no run begins that would end later",
    )
