"""What a candidate must show before it is timed: its output and gradients are right."""

import sys

import torch
from op_candidates import Candidate, Sizes, make_inputs, supported
from torch import Tensor

from hf_seqmix.ops import forced
from hf_seqmix.training.timing import Clock, Timed, relative_error

__all__ = ["BOUNDS", "check", "error_of", "under"]

BOUNDS = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-2}
"""Largest error of each dtype, relative to the norm of the exact result."""


def error_of(sizes: Sizes, candidate: Candidate) -> float:
    """Return the largest relative error, of the output and each gradient, against float64."""
    if candidate.checked == "row":
        sizes = sizes._replace(batch=1)
    *tensors, upstream = make_inputs(sizes, candidate)
    with forced(**dict(candidate.names)):
        y = supported(candidate)(*tensors)
        found = [y, *torch.autograd.grad(y, tensors, upstream.to(y.dtype))]

    def part(tensor: Tensor) -> Tensor:
        if candidate.checked != "head":
            return tensor
        return tensor[:1, :, :1] if candidate.layout == "heads" else tensor[:1, :1]

    exact = [part(tensor.detach()).double().requires_grad_() for tensor in tensors]
    y = candidate.reference(*exact)
    expected = [y, *torch.autograd.grad(y, exact, part(upstream).double())]
    return max(relative_error(part(a), b) for a, b in zip(found, expected, strict=True))


def check(op: str, sizes: Sizes, candidates: dict[str, Candidate]) -> tuple[dict[str, float], dict[str, str]]:
    """Return each candidate's error, and why some were left out, which are then taken out of `candidates`.

    Raises:
        RuntimeError: if ours, as the table chooses it, or a baseline is wrong.
    """
    bound = BOUNDS[sizes.dtype]
    errors: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name, candidate in list(candidates.items()):
        spare = bool(candidate.names) or candidate.needs is not None
        try:
            errors[name] = error_of(sizes, candidate)
            fault = "" if errors[name] < bound else f"relative error {errors[name]:.2g} (bound {bound})"
        except Exception as error:
            if not spare:
                raise
            fault = f"{type(error).__name__}: {error}"[:300]
        if not fault:
            continue
        if not spare:
            raise RuntimeError(f"{op}: {name} is wrong at length {sizes.length}: {fault}.")
        print(f"{op}, length {sizes.length}: {name} is left out: {fault}", file=sys.stderr)
        left_out[name] = fault
        del candidates[name]
    return errors, left_out


def under(candidate: Candidate, once: Timed) -> Timed:
    """Measure by the implementations that a candidate names."""

    def call(clock: Clock) -> tuple[float, ...]:
        with forced(**dict(candidate.names)):
            return once(clock)

    return call
