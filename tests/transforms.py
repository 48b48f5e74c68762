"""Transforms of `torch.func` against those of a definition."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from tests.tolerances import assert_close


def check_transforms(function: Callable[..., Tensor], definition: Callable[..., Tensor], *tensors: Tensor) -> None:
    """Assert that `vmap`, `grad`, `jvp`, gradients a sample, and products with the Hessian are the definition's."""
    each = tuple(range(len(tensors)))
    samples = [torch.stack([x, torch.randn_like(x)]) for x in tensors]
    tangents = tuple(torch.randn_like(x) for x in tensors)
    found = []
    for f in (function, definition):

        def loss(*tensors: Tensor, f: Callable[..., Tensor] = f) -> Tensor:
            return f(*tensors).pow(3).sum()

        gradients = grad(loss, each)
        found.append(
            [
                vmap(f)(*samples),
                *gradients(*tensors),
                *vmap(gradients)(*samples),
                *jvp(f, tensors, tangents),
                *jvp(gradients, tensors, tangents)[1],
            ]
        )
    for ours, exact in zip(*found, strict=True):
        assert_close(ours, exact)
