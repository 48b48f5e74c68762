"""What kernels and couplings IPA has, and the factors of a radial kernel."""

import torch
from torch import Tensor

__all__ = [
    "COUPLINGS",
    "IPA_KERNEL_NORMS",
    "KERNEL_TYPES",
    "MAX_PAIR_POSITIONS",
    "check_options",
    "check_sizes",
    "distance_factor",
]

COUPLINGS = ("shared", "toeplitz", "absolute_scalar", "separable", "full")
KERNEL_TYPES = ("bilinear", "rbf", "static", "separable")
IPA_KERNEL_NORMS = ("p", "j", "prod", "mix", "none")
MAX_PAIR_POSITIONS = 32
"""Positions that the coupling "full" may have."""


def check_options(coupling: str, kernel_type: str, kernel_norm: str, output_norm: bool, max_positions: int) -> None:
    """Raise a `ValueError` for an unknown option, or options that exclude each other."""
    for name, value, allowed in (
        ("coupling", coupling, COUPLINGS),
        ("kernel_type", kernel_type, KERNEL_TYPES),
        ("kernel_norm", kernel_norm, IPA_KERNEL_NORMS),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")
    if kernel_type == "separable" and kernel_norm != "p":
        raise ValueError(
            f"kernel_norm is {kernel_norm!r}, but kernel_type 'separable' is normalised over centres: it must be 'p'."
        )
    if coupling == "full" and (output_norm or max_positions > MAX_PAIR_POSITIONS):
        raise ValueError(
            "coupling 'full' is an oracle for tests: it has no result of centres to normalise, so set output_norm=False, and "
            f"at most {MAX_PAIR_POSITIONS} positions (max_position_embeddings; given {max_positions})."
        )


def check_sizes(token_shift: int, **sizes: int | None) -> None:
    """Raise a `ValueError` for a size, by name, below 1 (None is a default), and for a negative number of taps."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1.")
    if token_shift < 0:
        raise ValueError(f"token_shift is {token_shift}; it must be a number of taps, or 0 for none.")


def distance_factor(x: Tensor, centers: Tensor, widths: Tensor) -> Tensor:
    """Return (-|x - c|^2 / (2 r h^2), 1), whose product with (1, -d) of a key is minus the sum of both distances.

    With the rank r in the denominator, widths of 1 suit projections of unit variance.

    Args:
        x: (batch, length, centres, r).
        centers: c, (centres, r).
        widths: h, (centres,).

    Returns:
        (batch, length, centres, 2).
    """
    far = (x - centers).square().sum(dim=-1) / (2 * centers.shape[-1] * widths.square())
    return torch.stack([-far, torch.ones_like(far)], dim=-1)
