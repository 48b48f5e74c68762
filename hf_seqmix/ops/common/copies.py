"""Probabilities of a vocabulary, and copies of some tokens added to them.

Where copies are few beside the vocabulary, as in training, only the tokens that are there to copy are computed with.
Ordinary operations compute with the whole vocabulary, forward and backward, some ten times.
"""

from typing import Any

import torch
from torch import Tensor

from .dispatch import dispatch
from .once import once, tie

__all__ = ["add_copies"]


def add_copies(log_model: Tensor, shares: Tensor, ids: Tensor) -> Tensor:
    """Compute log(exp(log_model) + copies), copies[w] = the sum of the shares of the places whose token is w.

    In logarithms, as probabilities of the model may be too small for a number.

    Args:
        log_model: (batch, queries, vocabulary).
        shares: (batch, queries, places), at least 0.
        ids: (batch, places) long, the token of each place.

    Returns:
        (batch, queries, vocabulary), where it was run eagerly with one derivative at most.
    """
    if dispatch(log_model, shares)[0] == "eager":
        added: Tensor = _AddCopies.apply(log_model, shares, ids, tie(log_model, shares))
        return added
    copied = torch.zeros_like(log_model).scatter_add(-1, ids.unsqueeze(1).expand_as(shares), shares)
    return log_sum(log_model, copied)


def log_sum(log_model: Tensor, copied: Tensor) -> Tensor:
    """Compute log(exp(log_model) + copied), `copied` at least 0, both of one shape."""
    log_copied = copied.clamp(min=torch.finfo(copied.dtype).tiny).log()
    return torch.where(copied > 0, torch.logaddexp(log_model, log_copied), log_model)


class _AddCopies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_model: Tensor, shares: Tensor, ids: Tensor, tied: Tensor) -> Tensor:
        target = ids.unsqueeze(1).expand_as(shares)
        copied = torch.zeros_like(log_model).scatter_add_(-1, target, shares).gather(-1, target)
        here = log_model.gather(-1, target)
        both = log_sum(here, copied)
        ctx.save_for_backward(ids, here, both, copied, tied)
        return log_model.scatter(-1, target, both)  # places of one token have one value

    @staticmethod
    @once
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ids, here, both, copied, _ = ctx.saved_tensors
        target = ids.unsqueeze(1).expand_as(here)
        of_both = gradient.gather(-1, target)
        of_shares = torch.where(copied > 0, of_both * torch.exp(-both), 0)
        of_model = torch.where(copied > 0, of_both * torch.exp(here - both), of_both)  # both may be minus infinity
        return gradient.scatter(-1, target, of_model), of_shares, None, None
