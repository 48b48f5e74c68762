"""Divergence of a run: noticed at the update where it shows, ended with advice, or answered by a lower rate."""

import copy
import json
import logging
import math
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_callback import ExportableState

from ..._files import write_json
from ..folders.checkpoints import fault_of, fault_of_best, saved_checkpoints, set_aside_later
from ..folders.run_files import DIVERGENCE_FILE
from .error import DivergenceError, advice
from .loss_watch import LossWatch, uninformed_loss

__all__ = ["ON_DIVERGENCE", "DivergenceWatch"]

ON_DIVERGENCE = ("stop", "back-off", "ignore")

logger = logging.getLogger(__name__)


class DivergenceWatch(TrainerCallback):
    """Watches a `ResumableTrainer`: the real losses, gradient norms and weights, not those that the library logs.

    A run has diverged when the loss of an update or its gradient norm is not finite, when the loss has exploded
    (`LossWatch`), or when weights that are to be saved are not finite. A gradient whose update the scaler of float16
    skips is no divergence. Nothing is saved of weights after such an update.

    "stop" raises `DivergenceError`. "back-off" goes back to the newest whole checkpoint before the trouble to which
    the run has not yet gone back, or to the start, multiplies the learning rates by a factor and goes on with the same
    data in the same order; after so many times it stops. Checkpoints after the trouble are renamed in either case.
    "ignore" goes on, but seals no checkpoint whose loss or weights are not finite. To go back to the start, "back-off"
    holds a copy of the first weights in the memory of the host; sharded models go back to checkpoints only.

    Losses are read once an update, after `StepClock` has waited for the device; several processes judge their mean.

    Args:
        on_divergence: one of `ON_DIVERGENCE`.
        factor: of the learning rates, at each back-off.
        max_back_offs: at most so many.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, on_divergence: str = "stop", factor: float = 0.5, max_back_offs: int = 3) -> None:
        if on_divergence not in ON_DIVERGENCE:
            raise ValueError(f"--on-divergence is {on_divergence!r}; it must be one of {', '.join(ON_DIVERGENCE)}.")
        if not 0 < factor < 1:
            raise ValueError(f"--back-off-factor is {factor}; it must lie between 0 and 1.")
        if max_back_offs < 0:
            raise ValueError(f"--max-back-offs is {max_back_offs}; it must not be negative.")
        self.on_divergence = on_divergence
        self.factor = factor
        self.max_back_offs = max_back_offs
        self.back_offs: list[dict[str, Any]] = []
        """Each back-off of the run: what was seen at which update, where the run went back to, the rates' factor."""
        self.gradient_norm: Any = 0.0
        self._rate: float | None = None
        self._loss: Any = None
        self._last: tuple[float, float] = (0.0, 0.0)

    def attach(self, trainer: Any) -> None:
        """Watch a trainer.

        Raises:
            ValueError: the run is to go back, and the trainer was given an optimizer, which would not go back with it.
        """
        if self.on_divergence == "back-off" and trainer.optimizer is not None:
            raise ValueError(
                "on_divergence is 'back-off', and the trainer was given an optimizer: a run that goes back makes its "
                "optimizer anew. Leave out `optimizers` (see `optimizer_cls_and_kwargs`), or choose 'stop'."
            )
        self.trainer = trainer
        self.rule = LossWatch(uninformed_loss(trainer.model))
        self._start: dict[str, Any] | None = None
        self._resumes = False

    def recall(self) -> None:
        """Take up the back-offs of an interrupted run, which perhaps had no checkpoint yet."""
        self._resumes = True
        record = Path(self.trainer.args.output_dir) / DIVERGENCE_FILE
        if record.is_file():
            self.back_offs = json.loads(record.read_text(encoding="utf-8"))["back_offs"]

    @property
    def scale(self) -> float:
        """What the learning rates have been multiplied by."""
        return math.prod(entry["factor"] for entry in self.back_offs)

    def add(self, loss: torch.Tensor) -> None:
        """Take the loss of a part of an update, on its device."""
        self._loss = loss if self._loss is None else self._loss + loss

    def begin(self, checkpoint: str | None) -> None:
        """Remember the start, to which a run may go back; forget the back-offs of another run in the folder."""
        if checkpoint:
            self.recall()
            self._inherit(Path(checkpoint))
        elif not self._resumes:
            self.back_offs = []  # of an earlier call; its optimizer, if kept, has the lowered rates already
            if self.trainer.args.process_index == 0:
                (Path(self.trainer.args.output_dir) / DIVERGENCE_FILE).unlink(missing_ok=True)
        self._resumes = False
        shared = [self.back_offs]
        broadcast_object_list(shared)
        self.back_offs = shared[0]
        if self.back_offs and self.trainer.is_world_process_zero():
            logger.warning(
                f"The learning rates are {self.scale:g} times those given, after {len(self.back_offs)} back-offs of "
                "the run that is resumed; --overwrite-output-dir begins anew without them."
            )
        sharded = self.trainer.is_fsdp_enabled or self.trainer.is_deepspeed_enabled
        if self.on_divergence == "back-off" and checkpoint is None and not sharded:
            weights = {name: value.to("cpu", copy=True) for name, value in self.trainer.model.state_dict().items()}
            handler = self.trainer.callback_handler
            exported = [
                (entry, copy.deepcopy(entry.state()))
                for entry in handler.callbacks
                if isinstance(entry, ExportableState)
            ]
            self._start = {"weights": weights, "callbacks": exported}

    def _inherit(self, checkpoint: Path) -> None:
        """Take up the back-offs of a checkpoint from the folder of another run: rates stay as low as they were."""
        record = checkpoint / DIVERGENCE_FILE
        own = Path(self.trainer.args.output_dir) / DIVERGENCE_FILE
        if not own.is_file() and record.is_file():
            self.back_offs = json.loads(record.read_text(encoding="utf-8")).get("back_offs", [])

    def save(self, checkpoint: Path) -> None:
        """Write what a run that goes on from a checkpoint needs."""
        write_json(
            checkpoint / DIVERGENCE_FILE, {"scale": self.scale, "back_offs": self.back_offs, "rule": self.rule.state()}
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Go on from a checkpoint's losses; lower rates that were not lowered when it was written."""
        self._loss = None
        self.rule = LossWatch(self.rule.uninformed)
        self.rule.step = self.rule.calm = state.global_step
        entry: dict[str, Any] = {}
        if self.trainer.resumed_from is not None and (self.trainer.resumed_from / DIVERGENCE_FILE).is_file():
            entry = json.loads((self.trainer.resumed_from / DIVERGENCE_FILE).read_text(encoding="utf-8"))
            self.rule.load(entry["rule"])
        ratio = self.scale / entry.get("scale", 1.0)
        if ratio != 1:
            for group in self.trainer.optimizer.param_groups:
                for name in ("lr", "initial_lr"):
                    if name in group:
                        group[name] = group[name] * ratio
            for name in ("base_lrs", "_last_lr"):
                if hasattr(self.trainer.lr_scheduler, name):
                    rates = [rate * ratio for rate in getattr(self.trainer.lr_scheduler, name)]
                    setattr(self.trainer.lr_scheduler, name, rates)

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Note the learning rate of the update."""
        self._rate = float(self.trainer.optimizer.param_groups[0]["lr"])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Judge the update, before anything of it is logged or saved."""
        loss, norm = self._read()
        if self.on_divergence == "ignore":
            self.trainer.remove_outdated()
            return
        skipped = self.trainer.accelerator.optimizer_step_was_skipped
        if not math.isfinite(loss):
            seen: str | None = f"the training loss is {loss}"
        elif not math.isfinite(norm) and not skipped:
            seen = f"the gradient norm is {norm}"
        else:
            seen = self.rule.see(state.global_step, loss)
        if seen is not None:
            raise self._error(seen)
        if self.rule.is_calm:
            self.trainer.remove_outdated()

    def _read(self) -> tuple[float, float]:
        """Return loss and gradient norm of the update, the mean over processes."""
        norm = self.gradient_norm
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        loss = torch.zeros((), device=self.trainer.args.device) if self._loss is None else self._loss.detach().float()
        pair = torch.stack([loss, torch.as_tensor(norm, device=loss.device, dtype=loss.dtype)])
        self._loss = None
        if self.trainer.args.world_size > 1:
            pair = self.trainer.accelerator.reduce(pair, "mean")
        values = pair.tolist()
        self._last = values[0], values[1]
        return self._last

    def may_save(self) -> bool:
        """Say whether a checkpoint may be written; with "ignore" the user is told where it may not.

        Raises:
            DivergenceError: weights are not finite.
        """
        step = self.trainer.state.global_step
        sound = self._finite_weights()
        if sound and math.isfinite(self._last[0]):
            return True
        if self.on_divergence != "ignore":
            raise self._error("weights are not finite")
        logger.warning(f"No checkpoint is written at update {step}: weights or loss are not finite.")
        return False

    def require_finite_weights(self) -> None:
        """Judge the weights at the end of training.

        Raises:
            DivergenceError: weights are not finite.
        """
        if self.on_divergence != "ignore" and not self._finite_weights():
            raise self._error("weights are not finite")

    @torch.no_grad()
    def _finite_weights(self) -> bool:
        parts = (part.to_local() if hasattr(part, "to_local") else part for part in self.trainer.model.parameters())
        finite = torch.tensor(float(all(part.isfinite().all() for part in parts)), device=self.trainer.args.device)
        if self.trainer.args.world_size > 1:
            finite = self.trainer.accelerator.reduce(finite, "mean")
        return bool(finite.item() == 1)

    def _error(self, seen: str) -> DivergenceError:
        loss, norm = self._last
        step, rate = self.trainer.state.global_step, self._rate or 0.0
        message = (
            f"the run diverged at update {step}: {seen} (loss {loss:.4g}, gradient norm {norm:.4g}, learning rate "
            f"{rate:.3g})"
        )
        return DivergenceError(message, step, seen)

    def go_back(self, error: DivergenceError) -> str | None:
        """Prepare the trainer to go on from before the trouble, at lower rates.

        Returns:
            The checkpoint to go on from; None for the start.

        Raises:
            DivergenceError: the run stops, with advice.
        """
        trainer = self.trainer
        answer: list[Any] = [None]
        if trainer.args.process_index == 0:
            answer[0] = self._decide(error)
        broadcast_object_list(answer)
        message, entry, checkpoint = answer[0]
        if message is not None:
            raise DivergenceError(message, error.step, error.seen) from error
        self.back_offs = [*self.back_offs, entry]
        trainer.optimizer = trainer.lr_scheduler = None
        set_seed(trainer.args.seed)  # as in a process that begins here
        if checkpoint is None:
            assert self._start is not None
            trainer.model.load_state_dict(self._start["weights"])
            for callback, state in self._start["callbacks"]:
                vars(callback).update(copy.deepcopy(state["attributes"]))
        return checkpoint

    def _decide(self, error: DivergenceError) -> tuple[str | None, dict[str, Any] | None, str | None]:
        """Return a message to stop with, or the entry of a back-off and the checkpoint to go on from."""
        folder = Path(self.trainer.args.output_dir)
        good = self.rule.good_until()
        before = [path for path in saved_checkpoints(folder) if _step(path) <= good and fault_of(path) is None]
        if self.trainer.args.load_best_model_at_end:
            before = [path for path in before if fault_of_best(path) is None]
        left = len(self.back_offs) < self.max_back_offs
        used = {entry["back_to"] for entry in self.back_offs}
        unused = [path for path in before if _step(path) not in used]
        if self.on_divergence != "back-off" or not left or not (unused or self._start):
            newest = before[0] if before else None
            aside = set_aside_later(folder, newest or folder / "checkpoint-0")
            message = advice(
                error,
                self.trainer.args,
                lowered=len(self.back_offs),
                scale=self.scale,
                stops=self.on_divergence == "stop",
                good=newest,
                aside=aside,
            )
            return message, None, None
        target = unused[0] if unused else None
        set_aside_later(folder, target or folder / "checkpoint-0")
        loss, norm = self._last
        entry = {
            "step": error.step,
            "seen": error.seen,
            "loss": loss if math.isfinite(loss) else None,
            "gradient_norm": norm if math.isfinite(norm) else None,
            "learning_rate": self._rate,
            "back_to": _step(target) if target else 0,
            "factor": self.factor,
        }
        write_json(folder / DIVERGENCE_FILE, {"back_offs": [*self.back_offs, entry]})
        logger.warning(
            f"{error}. Going back to {target or 'the start'} with {self.factor:g} times the learning rate, "
            f"back-off {len(self.back_offs) + 1} of {self.max_back_offs}."
        )
        return None, entry, str(target) if target else None


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))
