"""Losses of a run across an interruption: what is logged after it, and their mean over the whole run."""

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState

from ..._files import write_json

__all__ = ["CarriedLosses"]

_FILE = "loss_since_log.json"


class CarriedLosses(TrainerCallback):
    """Keeps in each checkpoint what a `ResumableTrainer` has summed up, and takes it up again.

    The library forgets the losses since the last log entry when a run is interrupted, so that the first entry of a
    resumed run would be a mean over fewer updates. As a callback it runs after the library has set its sums to zero.

    Args:
        trainer: whose sums they are; it reads and writes attributes of the library's `Trainer` that are not public.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._before = 0.0

    @property
    def total(self) -> float:
        """Sum of the losses that were logged, those before an interruption, too."""
        return self._before + self.trainer._total_loss_scalar

    def gather(self) -> list[float]:
        """Return the losses since the last log entry, summed in each process; every process must call this."""
        return self.trainer.accelerator.gather(self.trainer._tr_loss.reshape(1)).tolist()

    def save(self, checkpoint: Path, unlogged: list[float]) -> None:
        """Write the losses of `gather` and the total to a checkpoint."""
        total = self.total + sum(unlogged) / len(unlogged)
        entry = {"sums": unlogged, "last_logged": self.trainer._globalstep_last_logged, "total": total}
        write_json(checkpoint / _FILE, entry)

    def take_total(self, checkpoint: Path) -> None:
        """Take up the total of a finished run, whose state the trainer has."""
        self._before = _read(checkpoint).get("total", _logged_total(self.trainer.state))
        self.trainer._total_loss_scalar = 0.0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Take up the losses since the last log entry where the checkpoint left them."""
        trainer = self.trainer
        trainer.first_step = trainer.state.global_step
        self._before = 0.0
        if trainer.resumed_from is None:
            return
        entry = _read(trainer.resumed_from)
        if not entry:  # a checkpoint of the library's own trainer
            self._before = _logged_total(trainer.state)
            return
        sums = entry["sums"]
        same = len(sums) == trainer.args.world_size
        own = sums[trainer.args.process_index] if same else sum(sums) / len(sums)
        trainer._tr_loss += own
        trainer._globalstep_last_logged = entry["last_logged"]
        self._before = entry["total"] - sum(sums) / len(sums)
        # From where the library averages the loss of this call; 5.18 has no such attribute, and averages over the run.
        trainer._initial_global_step = entry["last_logged"]


def _logged_total(state: TrainerState) -> float:
    """Return the sum of the losses of all updates as far as the log tells: their logged mean times their number."""
    total, last = 0.0, 0
    for entry in state.log_history:
        if "loss" in entry:
            total, last = total + entry["loss"] * (entry["step"] - last), int(entry["step"])
    return total / last * state.global_step if last else 0.0


def _read(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / _FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
