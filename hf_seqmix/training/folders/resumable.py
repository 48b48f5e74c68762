"""A `Trainer` whose runs survive a kill at any moment."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy, PredictionOutput, TrainOutput, has_length

from ...models.heads import SeqMixForCausalLM
from ..batch_averages import BATCH_NORM_BATCHES, BatchAverages
from ..divergence.error import DivergenceError
from ..divergence.response import DivergenceWatch
from ..segments.carried_losses import CarriedLosses
from ..step_clock import StepClock
from ..training_arguments import SeqMixTrainingArguments
from .checkpoints import (
    best_checkpoint,
    open_checkpoint_folder,
    remove_old_checkpoints,
    seal_checkpoint,
    set_aside_later,
)
from .continuation import given_checkpoint, newest_checkpoint, shares_as_steps
from .same_run import refuse_other_model
from .whole_weights import WholeWeightsTrainer

__all__ = ["LAST", "ResumableTrainer"]

LAST = "last"
"""What to continue from: the newest whole checkpoint, if there is one."""


class ResumableTrainer(WholeWeightsTrainer):
    """A `Trainer` whose checkpoints are sealed when they are whole, and whose resumed runs log the same losses.

    The library's checkpoints are written in place, and the older ones removed before all processes have written their
    part. Here a checkpoint begins with a manifest that calls it unfinished and ends with one that lists its files;
    only then are older ones removed. The losses summed up since the last log entry are kept, too: the library forgets
    them, so that the first entry of a resumed run would be a mean over fewer steps.

    Args:
        schedule_steps: updates of the learning rate's whole schedule; None for those of the run.
        weight_decay_on_all_parameters: whether biases and norms decay, too, as in published settings.
        batch_norm_batches: over how many training batches the averages of batch norms are made anew before they are
            used, see `BatchAverages`; 0 leaves the running averages.
        divergence: what happens when the run diverges; it stops by default.
        *args, **kwargs: as for `Trainer`.
    """

    def __init__(
        self,
        *args: Any,
        schedule_steps: int | None = None,
        weight_decay_on_all_parameters: bool = False,
        batch_norm_batches: int = BATCH_NORM_BATCHES,
        divergence: DivergenceWatch | None = None,
        **kwargs: Any,
    ) -> None:
        self.schedule_steps = schedule_steps
        self.weight_decay_on_all_parameters = weight_decay_on_all_parameters
        super().__init__(*args, **kwargs)
        if self.optimizer_cls_and_kwargs is None and isinstance(self.args, SeqMixTrainingArguments):
            self.optimizer_cls_and_kwargs = self.args.optimizer_factory(self.get_decay_parameter_names)
        self.averages = BatchAverages(self, batch_norm_batches)
        self.first_step = 0
        """Updates of the run before this call."""
        self.resumed_from: Path | None = None
        """The checkpoint that training went on from."""
        self.losses = CarriedLosses(self)
        self._goes_back: str | None = None
        self._outdated: tuple[Any, ...] | None = None
        self.clock = StepClock()
        """How fast the updates of this call were."""
        self.divergence = divergence or DivergenceWatch()
        """What was seen of divergence."""
        self.divergence.attach(self)
        # The clock waits for the device, so that the watch need not.
        for callback in (self.losses, self.clock, self.divergence, _SaveLast()):
            self.add_callback(callback)

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """Return the names of the parameters that decay."""
        if self.weight_decay_on_all_parameters:
            return [name for name, _ in model.named_parameters()]
        return super().get_decay_parameter_names(model)

    def check_optimizer(self) -> None:
        """Make the optimizer and let it go, so that what refuses the model does so before anything is trained.

        Raises:
            OptimizerError: the model has no parameters of a kind that the arguments name.
        """
        self.create_optimizer()
        self.optimizer = None

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Return the schedule, laid out for `schedule_steps`."""
        return super().create_scheduler(self.schedule_steps or num_training_steps, optimizer)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load both, and take the rates of the next update from the schedule that is given now.

        The library leaves the rates at which the checkpoint was written: 0 where its schedule had ended.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        schedule: Any = self.lr_scheduler
        if checkpoint is None or not isinstance(schedule, LambdaLR):
            return
        factors = [factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
        schedule._last_lr = [rate * factor for rate, factor in zip(schedule.base_lrs, factors, strict=True)]
        assert self.optimizer is not None
        for group, rate in zip(self.optimizer.param_groups, schedule._last_lr, strict=True):
            group["lr"] = rate

    def find_checkpoint(self, resume_from: str | None) -> tuple[str | None, str | None]:
        """Return what to continue from, for all processes as the first one sees the folder.

        Args:
            resume_from: None for nothing, `LAST` for the newest whole checkpoint of the output folder, or a
                checkpoint's folder. When training goes on from there, later ones of the run are set aside.

        Returns:
            The checkpoint, or None to start anew; a line that tells the user.

        Raises:
            ValueError: no checkpoint is whole, or the one asked for is not, or it is of another model.
        """
        if resume_from is None:
            return None, None
        self.divergence.recall()
        answer: list[Any] = [None, None, None]
        if self.args.process_index == 0:
            try:
                answer[:2] = (
                    newest_checkpoint(self.args) if resume_from == LAST else given_checkpoint(resume_from, self.args)
                )
                refuse_other_model(answer[0], getattr(self.accelerator.unwrap_model(self.model), "config", None))
            except (ValueError, OSError) as error:
                answer[2] = str(error)
        broadcast_object_list(answer)  # or the others would wait for a process that has given up
        checkpoint, line, refusal = answer
        if refusal is not None:
            raise ValueError(refusal)
        self._goes_back = checkpoint if resume_from != LAST else None
        return checkpoint, line

    def restore_finished(self, checkpoint: str) -> bool:
        """Say whether a checkpoint is the last of its run; if so, load the model, or the best one, as if just trained.

        The library would train one update more, or, after an early stop, as many as were left.
        """
        state = TrainerState.load_from_json(str(Path(checkpoint) / "trainer_state.json"))
        control = state.stateful_callbacks.get("TrainerControl", {})
        control = control[-1] if isinstance(control, list) else control
        stopped = control.get("args", {}).get("should_training_stop", False) and state.global_step < state.max_steps
        if not stopped and state.global_step < self._planned_updates():
            return False
        if checkpoint == self._goes_back and self.args.process_index == 0:
            set_aside_later(str(self.args.output_dir), checkpoint)
        self.state = state
        self.first_step = state.global_step
        self._load_from_checkpoint(checkpoint)
        if self.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            state.best_model_checkpoint = str(best_checkpoint(Path(checkpoint), state.best_model_checkpoint))
            self._load_best_model()
        self.losses.take_total(Path(checkpoint))
        return True

    def _planned_updates(self) -> float:
        """Return how many updates the arguments ask for, as the library counts them; endless where none can say."""
        if self.args.max_steps > 0:
            return self.args.max_steps
        loader: Any = self.get_train_dataloader()
        if not has_length(loader):
            return math.inf
        an_epoch = max(1, math.ceil(len(loader) / self.args.gradient_accumulation_steps))
        return math.ceil(self.args.num_train_epochs * an_epoch)

    @property
    def mean_train_loss(self) -> float:
        """Mean loss over all updates of the run, those before an interruption, too."""
        return self.losses.total / max(self.state.global_step, 1)

    def train(
        self, resume_from_checkpoint: str | PathLike[str] | bool | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train as `Trainer.train` does, log the same losses as a run that was not interrupted, and meet divergence.

        Args:
            resume_from_checkpoint: a checkpoint's folder; True for the newest whole one of the output folder.
            *args: as for `Trainer.train`.
            **kwargs: as for `Trainer.train`.

        Raises:
            ValueError: the newest whole checkpoint was asked for, and there is none.
            DivergenceError: the run diverged, and stops.
        """
        checkpoint: Any = resume_from_checkpoint or None
        if checkpoint is True:
            checkpoint = self.find_checkpoint(LAST)[0]
            if checkpoint is None:
                raise ValueError(f"resume_from_checkpoint is True, and {self.args.output_dir} has no checkpoint.")
        if checkpoint is not None:
            checkpoint = str(checkpoint)
            if checkpoint == self._goes_back and self.args.process_index == 0:
                set_aside_later(str(self.args.output_dir), checkpoint)
        self.divergence.begin(checkpoint)
        seconds, begun = 0.0, None
        while True:
            start = time.perf_counter()
            self.averages.forget()
            self._outdated = None
            self.resumed_from = Path(checkpoint) if isinstance(checkpoint, str) else None
            try:
                output = super().train(checkpoint, *args, **kwargs)
                self.divergence.require_finite_weights()
                self.remove_outdated()
                if begun is not None:  # seconds and updates of what was gone back from count, too
                    output.metrics["train_runtime"] += seconds
                    self.first_step = begun
                return output
            except DivergenceError as error:
                begun = self.first_step if begun is None else begun
                checkpoint = self.divergence.go_back(error)
                seconds += time.perf_counter() - start

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        with shares_as_steps(self.args, max_steps):
            return super()._init_training_state(max_steps, *args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the loss of a batch, as the library does, and show it to the watch before it is filtered."""
        loss = super().training_step(*args, **kwargs)
        self.divergence.add(loss)
        return loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        """Return the loss of a batch, as the library does; a copy head then computes no logits beside the loss."""
        trained: Any = self.model
        base = trained.get_base_model() if hasattr(trained, "get_base_model") else trained  # of PEFT
        asks_for_loss = self.label_smoother is None and self.compute_loss_func is None and not return_outputs
        if model.training and asks_for_loss and isinstance(base, SeqMixForCausalLM) and base.copy_head is not None:
            inputs = {**inputs, "skip_logits": True}
        return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        self.divergence.gradient_norm = super()._get_grad_norm(*args, **kwargs)
        return self.divergence.gradient_norm

    def remove_outdated(self) -> None:
        """Remove checkpoints beyond those to be kept, now that an update has shown that the newest one is good."""
        outdated, self._outdated = self._outdated, None
        if outdated is not None and self.args.should_save:
            folder, limit, newest, best = outdated
            remove_old_checkpoints(folder, limit, newest=newest, best=best)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as the library does, with averages of batch norms that fit the weights."""
        self.averages.refresh()  # before the clock of the evaluation starts
        return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> PredictionOutput:
        """Predict as the library does, with averages of batch norms that fit the weights."""
        self.averages.refresh()
        return super().predict(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save as the library does, checkpoints too, with averages of batch norms that fit the weights."""
        self.averages.refresh()
        super().save_model(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if not self.divergence.may_save():
            return
        run_folder = Path(self._get_output_dir(trial=trial))
        checkpoint = run_folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            open_checkpoint_folder(checkpoint)
        unlogged = self.losses.gather()  # and nobody writes before the folder is clear
        if self.args.should_save:
            self.losses.save(checkpoint, unlogged)
            self.divergence.save(checkpoint)
        # The library removes old checkpoints before other processes have written their part.
        with self._without_limit() as limit:
            super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            seal_checkpoint(checkpoint, num_processes=self.args.world_size)
        self._outdated = run_folder, limit, checkpoint, self.state.best_model_checkpoint
        if self.args.push_to_hub:
            super()._push_from_checkpoint(str(checkpoint))

    @contextmanager
    def _without_limit(self) -> Iterator[int | None]:
        """Hide from the library how many checkpoints are kept, and give that number."""
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            yield limit
        finally:
            self.args.save_total_limit = limit

    def _finalize_training(self, *args: Any, **kwargs: Any) -> TrainOutput:
        # The library would remove the newest checkpoint where another is the best, and a finished run would go on.
        with self._without_limit():
            library: Any = super()
            return library._finalize_training(*args, **kwargs)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Do nothing: the library calls this while the checkpoint has no seal; the checkpoint is pushed afterwards."""


class _SaveLast(TrainerCallback):
    """Saves after what else is due at the end of an epoch.

    The library saves every so many steps as soon as the last step of an epoch is done, and only then logs and
    evaluates, if that is due once an epoch; a run resumed from there would do neither.
    """

    def __init__(self) -> None:
        self.is_due = False

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        at_end = control.should_training_stop or float(state.epoch or 0).is_integer()
        if control.should_save and at_end and IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy):
            control.should_save, self.is_due = False, True

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        control.should_save = control.should_save or self.is_due
        self.is_due = False
