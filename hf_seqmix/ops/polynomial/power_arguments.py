"""What the arguments of `power_attention` must be; `power_attention.py` says what they are."""

import torch
from torch import Tensor

from ..common.dispatch import can_be_read, cast, check_real
from .power_chunks import PowerSums
from .symmetric_power import LARGEST_POWER, number_of_features

__all__ = ["check_arguments", "flags_of"]

_ROUNDING = 1e-6
"""Up to which the logarithm of a gate of 1 may be, rounded."""


def check_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_gates: Tensor | None,
    power: int,
    denominator: bool,
    causal: bool,
    sums: PowerSums | None = None,
) -> None:
    """Raise a `ValueError` unless arguments fit one another, see `power_attention`."""
    fits = q.ndim == k.ndim == v.ndim == 4 and k.shape[:3] == v.shape[:3] and q.shape[2:] == k.shape[2:]
    if not fits or q.shape[0] != k.shape[0] or (log_gates is not None and log_gates.shape != k.shape[:3]):
        given = "none" if log_gates is None else tuple(log_gates.shape)
        raise ValueError(
            "q and k must be (batch, length, heads, width), v (batch, length, heads, values), and log_gates (batch, "
            f"length, heads) of the keys; got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} and {given}."
        )
    check_real(q=q, k=k, v=v)
    if q.shape[-1] == 0:
        raise ValueError(f"q and k have the width 0, {tuple(q.shape)}: give at least one channel a head.")
    if not torch.compiler.is_compiling() and k.shape[1] < q.shape[1]:
        raise ValueError(f"there are {q.shape[1]} queries but {k.shape[1]} keys: each query needs one beside it.")
    if not isinstance(power, int) or not 1 <= power <= LARGEST_POWER:
        raise ValueError(f"power is {power}; it must be an integer from 1 to {LARGEST_POWER}.")
    if denominator and power % 2:
        raise ValueError(
            f"denominator is True, but power is {power}, so that weights may be negative and their sum zero: take an "
            "even power."
        )
    if log_gates is not None and not causal:
        raise ValueError("log_gates are given, but causal is False: gates let the past fade; leave them out.")
    if sums is not None and not torch.compiler.is_compiling():
        batch, _, heads, width = k.shape
        shape = (batch, heads, number_of_features(width, power), v.shape[3] + int(denominator))
        if sums.products.shape != shape or sums.tokens.shape != shape[:2]:
            raise ValueError(
                f"sums have the shapes {tuple(sums.products.shape)} and {tuple(sums.tokens.shape)}; they must be "
                f"{shape} and {shape[:2]}, as `power_sums` returns them for this power and denominator."
            )
    if log_gates is not None and log_gates.numel() and can_be_read(log_gates):
        largest = float(log_gates.detach().max())
        if largest > _ROUNDING:
            raise ValueError(
                f"log_gates are up to {largest:g}; they are logarithms of gates, at most 0: take gate.log()."
            )


def flags_of(real: Tensor | None, k: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 1 at real tokens and 0 at pads, (batch, keys), for keys (batch, keys, heads, width).

    Raises:
        ValueError: for flags of another shape.
    """
    if real is not None and not torch.compiler.is_compiling() and real.shape != k.shape[:2]:
        raise ValueError(f"real has shape {tuple(real.shape)}; it must be (batch, keys), {tuple(k.shape[:2])}.")
    return k.new_ones(k.shape[:2], dtype=dtype) if real is None else cast(real, dtype)
