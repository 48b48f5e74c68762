"""Rows of trainings and evaluations: every row, in an order that is known."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import Trainer
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import has_length

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

    Trainings that group rows by length have an order that is the same for all processes and for resumed runs.
    """

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
