"""Evaluations of every row, in the order of the data."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import Trainer
from transformers.trainer_utils import has_length

__all__ = ["EveryRowTrainer"]


class EveryRowTrainer(Trainer):
    """The library's `Trainer`, whose evaluations neither drop rows nor change their order as training may."""

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
