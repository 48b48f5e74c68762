"""A model without dropout for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["in_evaluation"]


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Have a model in evaluation mode, and leave each of its modules in the mode it was in, frozen ones too."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
