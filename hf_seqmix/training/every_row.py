"""Rows of trainings and evaluations: every row once, in an order that is known."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import Trainer
from transformers.trainer_pt_utils import LengthGroupedSampler, find_batch_size
from transformers.trainer_utils import EvalLoopOutput, has_length

from .._labels import IGNORED_LABEL

__all__ = ["EveryRowTrainer", "LengthGroups"]


class LengthGroups(LengthGroupedSampler):
    """Groups of rows of about one length, in an order that a seed and the epoch alone decide.

    The library draws the order from numbers that dropout uses, too. A run that is resumed within an epoch, and
    processes of one run, would have different orders.

    Args:
        groups: of the library, whose lengths and sizes are taken.
        seed: of the order.
    """

    def __init__(self, groups: LengthGroupedSampler, seed: int) -> None:
        super().__init__(groups.batch_size, lengths=groups.lengths)
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return super().__iter__()


class EveryRowTrainer(Trainer):
    """The library's `Trainer`, whose evaluations neither drop rows nor change their order as training may.

    Trainings that group rows by length have an order that is the same for all processes and for resumed runs. Losses
    of evaluations are means over all labels, each once, whatever the batches and the number of processes: over rows,
    or, where tokens have labels, over these.
    """

    _losses: list[Tensor] | None = None
    """Of the batches of an evaluation, (2,): the loss, and how many labels it is a mean over."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        sampler = super()._get_train_sampler(train_dataset)
        if isinstance(sampler, LengthGroupedSampler):
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return LengthGroups(sampler, seed)
        return sampler

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[Any] | None:
        """Keep the order of the data, on which scores rely; the library groups evaluations by length like training."""
        if eval_dataset is None or not has_length(eval_dataset) or self.args.world_size > 1:
            return None
        return SequentialSampler(eval_dataset)

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        """Return batches of every row; the library drops what `dataloader_drop_last` drops in training."""
        with self._every_row():
            return super().get_eval_dataloader(*args, **kwargs)

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        """Return batches of every row, as for an evaluation."""
        with self._every_row():
            return super().get_test_dataloader(*args, **kwargs)

    @contextmanager
    def _every_row(self) -> Iterator[None]:
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            yield
        finally:
            self.args.dataloader_drop_last = drop_last

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate as the library does, with the mean loss over all labels.

        The library's is a mean over batches, and counts the rows again by which processes fill their last batches.
        """
        # Or a loss of the user's would be a process's share of the mean over all processes.
        shared, self.args.average_tokens_across_devices = self.args.average_tokens_across_devices, False
        losses: list[Tensor] = []
        self._losses = losses
        try:
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        finally:
            self.args.average_tokens_across_devices = shared
            self._losses = None
        if losses and output.metrics is not None:
            output.metrics[f"{metric_key_prefix}_loss"] = self._mean_of(losses)
        return output

    def _get_num_items_in_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Leave evaluations the mean over their batch: the library does not count numbers that are -100."""
        if self._losses is not None and self.compute_loss_func is None:
            return None
        return super()._get_num_items_in_batch(*args, **kwargs)

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Any, Any, Any]:
        """Predict as the library does, and keep the loss of the rows that are no repeats."""
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        rows = find_batch_size(inputs)
        if self._losses is None or loss is None or rows is None:
            return loss, logits, labels
        kept = self._rows_once(rows)
        counted: Any = loss
        if kept is not None:
            # Also where all rows are repeats, or processes that share one model in pieces would wait.
            inputs = {
                name: value[: kept or rows] if isinstance(value, Tensor) and value.shape[:1] == (rows,) else value
                for name, value in inputs.items()
            }
            counted = super().prediction_step(model, inputs, True, ignore_keys)[0]
        weight = 0 if kept == 0 else self._number_of_labels(inputs, rows if kept is None else kept)
        self._losses.append(torch.stack([counted.float(), torch.as_tensor(weight).to(counted.device, torch.float32)]))
        return loss, logits, labels

    def _rows_once(self, rows: int) -> int | None:
        """Return how many rows of this process's batch are no repeats; None where no process has any."""
        state = self.accelerator.gradient_state
        if not state.end_of_dataloader or not 0 < state.remainder < rows * self.args.world_size:
            return None
        return min(max(state.remainder - rows * self.args.process_index, 0), rows)

    def _number_of_labels(self, inputs: dict[str, Any], rows: int) -> Tensor | int:
        """Return how many labels a loss is a mean over."""
        labels = inputs.get("shift_labels", inputs.get("labels"))
        if not isinstance(labels, Tensor) or (labels.ndim == 1 and labels.is_floating_point()):
            return rows  # where labels are numbers, -100 is one
        model: Any = self.accelerator.unwrap_model(self.model)
        can_generate = getattr(model, "can_generate", bool)  # models of PEFT pass the question on
        is_causal = can_generate() and not model.config.is_encoder_decoder
        if is_causal and "shift_labels" not in inputs:
            labels = labels[..., 1:]
        return (labels != IGNORED_LABEL).sum()

    def _mean_of(self, losses: list[Tensor]) -> float:
        """Return the mean of the losses of all processes, each with its weight."""
        mean, weight = self.accelerator.gather(torch.stack(losses)).cpu().double().unbind(dim=1)
        counted = weight > 0
        finite = counted & mean.isfinite()
        if self.args.logging_nan_inf_filter and finite.any():  # as the library leaves them out
            counted = finite
        return ((mean * weight)[counted].sum() / weight[counted].sum()).item()
