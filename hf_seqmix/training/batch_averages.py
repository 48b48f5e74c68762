"""Averages of batch norms that follow the weights: made anew, over a few training batches, before they are used.

A running average of momentum 0.1 is a mean over the weights of the last tens of updates. Where the weights move fast,
an evaluation with such averages normalizes by statistics that its own activations do not have.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import IterableDataset
from transformers import Trainer

from ..modules.evaluation import in_evaluation
from ..modules.norms import MaskedBatchNorm

__all__ = ["BATCH_NORM_BATCHES", "BatchAverages", "average_batch_norms", "batch_norms"]

BATCH_NORM_BATCHES = 16
"""So many forward passes cost little beside the updates between two evaluations."""


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """Return the batch norms of a model that keep averages: `MaskedBatchNorm` and those of torch."""
    return [
        module
        for module in model.modules()
        if isinstance(module, MaskedBatchNorm)
        or (isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None)
    ]


@torch.no_grad()
def average_batch_norms(model: nn.Module, batches: Iterable[Mapping[str, Any]]) -> None:
    """Replace the averages of all batch norms by those over some batches, with the weights as they are.

    mean = E[m],  variance = E[v] + E[m^2] - E[m]^2, with the mean m and the variance v of each batch, all batches
    weighing the same: "precise batch norm", Wu and Johnson 2021 (arXiv 2105.07576), section 3. Batch norms normalize
    by the batch, as in training, so every layer sees what the layers below give in training; all layers are served in
    one pass. All else is in evaluation mode, without dropout, as the averages will be used. A block that is applied
    several times counts each time. Departure: v is the unbiased variance, which batch norms keep.

    Args:
        model: whose modes of training are as before afterwards. A model without batch norms is left alone.
        batches: keyword arguments of the model. None: the averages stay.
    """
    norms: list[Any] = batch_norms(model)
    momenta = [norm.momentum for norm in norms]
    counts = [getattr(norm, "num_batches_tracked", None) for norm in norms]
    kept = [
        (norm.running_mean.clone(), norm.running_var.clone(), None if n is None else n.clone())
        for norm, n in zip(norms, counts, strict=True)
    ]
    moments = [_Moments() for _ in norms]
    with ExitStack() as hooks, in_evaluation(model):
        for norm, moment in zip(norms, moments, strict=True):
            hooks.callback(norm.register_forward_hook(moment.add).remove)
        try:
            for norm in norms:
                norm.train()
                norm.momentum = 1.0  # after a call the averages are those of its batch alone
                norm.running_mean.zero_()  # an infinity would outlast its weight of zero
                norm.running_var.fill_(1.0)
            for batch in batches if norms else ():
                model(**batch)
        finally:
            for norm, momentum, (mean, var, count) in zip(norms, momenta, kept, strict=True):
                norm.momentum = momentum
                norm.running_mean.copy_(mean)
                norm.running_var.copy_(var)
                if count is not None:
                    norm.num_batches_tracked.copy_(count)
    for norm, moment in zip(norms, moments, strict=True):
        moment.give(norm)


class _Moments:
    """Sums over batches, in float64: sums of as many squares cancel."""

    def __init__(self) -> None:
        self.number = 0
        self.mean: Any = 0.0
        self.square: Any = 0.0
        self.var: Any = 0.0

    def add(self, norm: Any, inputs: Any, output: Tensor) -> None:
        """Add the batch whose averages a norm of momentum 1 has just taken."""
        mean = norm.running_mean.to("cpu", torch.float64)
        self.number += 1
        self.mean = self.mean + mean
        self.square = self.square + mean.square()
        self.var = self.var + norm.running_var.to("cpu", torch.float64)

    def give(self, norm: Any) -> None:
        """Set the averages of a norm."""
        if self.number == 0:
            return
        mean = self.mean / self.number
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(self.var / self.number + (self.square / self.number - mean.square()).clamp(min=0))


class BatchAverages:
    """Keeps the batch norms of a `Trainer`'s model up to date: before each evaluation, checkpoint and final model.

    The batches are always the same, drawn from the training data by the seed of the run (of a stream, the first ones),
    as large as those of training in one process. Random numbers of training, its data and its batch norms' statistics
    are not touched: training itself does not read averages. So runs are the same with and without, but for the
    averages, and a resumed run has those of an uninterrupted one. Every process goes through the same batches, and all
    take the averages of the first one.

    Args:
        trainer: whose model, data and collator are taken.
        num_batches: at most so many; 0 leaves the running averages as they are.

    Raises:
        ValueError: `num_batches` is negative.
    """

    def __init__(self, trainer: Trainer, num_batches: int) -> None:
        if num_batches < 0:
            raise ValueError(f"--batch-norm-batches is {num_batches}; give 0 to keep running averages, or more.")
        self.trainer = trainer
        self.num_batches = num_batches
        self._step: int | None = None
        self._first_rows: list[Any] | None = None

    def forget(self) -> None:
        """Make the averages anew when they are next asked for, whatever the update."""
        self._step = None

    def refresh(self) -> None:
        """Make the averages anew, unless no update has been made since they were, or in the run at all."""
        trainer: Any = self.trainer
        step = trainer.state.global_step
        if step in (0, self._step) or trainer.train_dataset is None:
            return
        norms: list[Any] = batch_norms(trainer.model)
        if not norms:
            return
        self._step = step
        if self.num_batches > 0:
            sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
            with _own_random_numbers(trainer.args.seed, trainer.args.device), trainer.accelerator.autocast():
                average_batch_norms(trainer.model_wrapped if sharded else trainer.model, self._batches())
        # Running averages are of each process's own rows, too.
        if trainer.args.world_size > 1:
            for norm in norms:
                broadcast([norm.running_mean, norm.running_var])

    def _batches(self) -> Iterator[Mapping[str, Any]]:
        trainer: Any = self.trainer
        size = trainer.args.train_batch_size
        collate = trainer._get_collator_with_removed_columns(trainer.data_collator, "training")
        for group in self._rows(size):
            yield trainer._prepare_inputs(collate(group))

    def _rows(self, size: int) -> Iterator[list[Any]]:
        dataset: Any = self.trainer.train_dataset
        wanted = self.num_batches * size
        if hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset):
            # Batches of one size; of fewer rows than one batch has, one batch.
            number = min(wanted, len(dataset) // size * size) or len(dataset)
            drawn = random.Random(self.trainer.args.seed).sample(range(len(dataset)), number)
            for begin in range(0, number, size):
                yield [dataset[index] for index in drawn[begin : begin + size]]
            return
        if self._first_rows is None:
            self._first_rows = list(islice(iter(dataset), wanted))
        for begin in range(0, len(self._first_rows), size):
            yield self._first_rows[begin : begin + size]


@contextmanager
def _own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Draw from streams of their own, the same in every call, and leave those of training where they are."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
