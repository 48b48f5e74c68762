"""What mixers add to a model's loss, scaled as the loss itself is when a batch is accumulated from several."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..._labels import IGNORED_LABEL

__all__ = ["add_auxiliary", "sum_auxiliary"]


def sum_auxiliary(mixers: Iterable[object]) -> Tensor | None:
    """Sum `auxiliary_loss()` over the mixers that have one; None if none does."""
    total = None
    for mixer in mixers:
        give = getattr(mixer, "auxiliary_loss", None)
        term = give() if callable(give) else None
        if term is not None:
            total = term if total is None else total + term.to(total.device)
    return total


def add_auxiliary(
    loss_function: Callable[..., Tensor], auxiliary: Tensor, shifts_labels: bool
) -> Callable[..., Tensor]:
    """Return a loss function that adds `auxiliary` to another's value.

    With `num_items_in_batch` a loss is a part of a larger batch's: its sum over items divided by the number in the
    whole batch. So `auxiliary` enters in proportion to the items counted here, and once over all parts.

    Args:
        loss_function: one of the library's.
        auxiliary: (), what is added.
        shifts_labels: whether `labels` are shifted inside, so that the first of each row is no item.
    """

    def total(*args: Any, **kwargs: Any) -> Tensor:
        loss = loss_function(*args, **kwargs)
        items = kwargs.get("num_items_in_batch")
        if items is None:
            return loss + auxiliary.to(loss.device)
        labels = kwargs.get("shift_labels")
        if labels is None and kwargs.get("labels") is not None:
            labels = kwargs["labels"][..., 1:] if shifts_labels else kwargs["labels"]
        if labels is None:  # question answering: one item a row
            share = torch.as_tensor(len(args[0]) / items)
        else:
            share = (labels != kwargs.get("ignore_index", IGNORED_LABEL)).sum() / items
        return loss + auxiliary.to(loss.device) * share.to(loss.device)

    return total
