"""How much the output at one place changes with the input at another, for any function of a sequence."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["jacobian_norms"]

_MOST_NUMBERS = 2**22
"""Of the inputs of one call."""


def jacobian_norms(f: Callable[[Tensor], Tensor], inputs: Tensor, probes: int | None = None) -> Tensor:
    """Compute J[t, s] = |d y_t / d x_s|, the Frobenius norm of the block of the Jacobian, for y = f(x).

    Each row of the Jacobian is one row of a batch: the input is repeated, and each copy is differentiated for another
    output. So any function whose rows do not meet will do, whatever it is made of. With `probes`, the squared norm is
    estimated by the mean of |d (v . y_t) / d x_s|^2 over random signs v (Hutchinson 1990), the same in every call; it
    takes `probes` rows an output place instead of one for each of its channels.

    Args:
        f: from (rows, length, channels in) to (rows, length, channels out), each row alone.
        inputs: (batch, length, channels in), real floating-point numbers.
        probes: random vectors an output place; None for the exact norms.

    Returns:
        (batch, outputs, inputs), one norm a pair of places; 0 where y does not depend on x.

    Raises:
        ValueError: for inputs of other dimensions or no rows, of integers or complex numbers, and fewer than one
            probe.
    """
    if inputs.ndim != 3 or len(inputs) == 0:
        raise ValueError(
            f"inputs have shape {tuple(inputs.shape)}; they must be (batch, length, channels), of one row or more."
        )
    if not inputs.is_floating_point():
        raise ValueError(f"inputs are {inputs.dtype}; they must be real floating-point numbers, such as embeddings.")
    if probes is not None and probes < 1:
        raise ValueError(f"probes is {probes}; give at least 1, or None for the exact norms.")
    # Whatever the caller's mode: a copy, since tensors of inference mode have no derivatives.
    with torch.inference_mode(False):
        return torch.stack([_norms_of_row(f, row, probes) for row in inputs.clone()])


def _norms_of_row(f: Callable[[Tensor], Tensor], row: Tensor, probes: int | None) -> Tensor:
    with torch.no_grad():
        length, channels = f(row.unsqueeze(0)).shape[1:]
    if probes is None:
        count = channels
        directions = torch.eye(channels, dtype=row.dtype, device=row.device).expand(length, -1, -1)
    else:
        count = probes
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(2, (length, probes, channels), generator=generator, device="cpu")
        directions = (2 * signs - 1).to(row)
    squares = row.new_zeros(length, len(row), dtype=torch.promote_types(row.dtype, torch.float32))
    places = torch.arange(length, device=row.device).repeat_interleave(count)
    at_once = max(1, _MOST_NUMBERS // max(1, row.numel()))
    for part, vectors in zip(places.split(at_once), directions.reshape(-1, channels).split(at_once), strict=True):
        copies = row.detach().expand(len(part), -1, -1).clone().requires_grad_()
        with torch.enable_grad():
            outputs = f(copies)
            chosen = (outputs[torch.arange(len(part)), part] * vectors).sum()
        if not chosen.requires_grad:  # of nothing at all
            continue
        (gradient,) = torch.autograd.grad(chosen, copies, materialize_grads=True)
        squares.index_add_(0, part, gradient.to(squares.dtype).square().sum(dim=-1))
    return (squares if probes is None else squares / probes).sqrt()
