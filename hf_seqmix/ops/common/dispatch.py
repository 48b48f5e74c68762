"""Whether a call may be served by an `autograd.Function` of ours."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .backend import route

__all__ = ["own_backward_serves"]


def own_backward_serves(*tensors: Tensor) -> bool:
    """Whether a function with a backward pass of its own may stand for ordinary operations.

    It may not where others are to see or transform these: under tracers, `torch.func`, and forward-mode differentiation.

    Args:
        *tensors: arguments of the call.
    """
    # The route first: a tracer follows nothing of the rest.
    if route(*tensors) != "eager":
        return False
    return forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active()
