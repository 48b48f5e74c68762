"""Couplings of two tokens in [0, 1] whose singular values are known exactly."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["SHEARED_SINGULAR_VALUES", "planted_coupling", "planted_features", "sheared_coupling"]

SHEARED_SINGULAR_VALUES = (math.sqrt((7 + math.sqrt(33)) / 8), 0.5, math.sqrt((7 - math.sqrt(33)) / 8))
"""Singular values of [`sheared_coupling`]: 1.26217, 0.5 and 0.39614. The paper prints 1.265, 0.5 and 0.4."""


def planted_features(u: Tensor, v: Tensor, singular_values: Sequence[float] | Tensor) -> tuple[Tensor, Tensor]:
    """Return queries sigma_k phi_k(u) and keys phi_k(v), whose products are [`planted_coupling`].

    phi_k(x) = sqrt(2) sin(2 pi k x), k = 1 ... r, are orthonormal in L2 of the uniform measure on [0, 1].

    Args:
        u: (..., N), tokens of the queries in [0, 1].
        v: (..., M), tokens of the keys in [0, 1].
        singular_values: (r,): sigma_k, at least 0.

    Returns:
        Queries (..., N, r) and keys (..., M, r), float64.

    Raises:
        ValueError: there are no singular values or not in one dimension, one is negative or not finite, or a token
            lies outside [0, 1].
    """
    sigma = torch.as_tensor(singular_values, dtype=torch.float64)
    if sigma.ndim != 1 or not len(sigma) or not sigma.isfinite().all() or (sigma < 0).any():
        raise ValueError(f"singular_values are {sigma.tolist()}; give a list of finite numbers of at least 0.")
    for name, tokens in (("u", u), ("v", v)):
        if not ((tokens >= 0) & (tokens <= 1)).all():
            raise ValueError(f"{name} has tokens outside [0, 1], or NaN; draw tokens from the unit interval.")
    frequencies = 2 * math.pi * torch.arange(1, len(sigma) + 1, dtype=torch.float64)
    queries, keys = (math.sqrt(2) * torch.sin(x.double()[..., None] * frequencies.to(x.device)) for x in (u, v))
    return queries * sigma.to(queries.device), keys


def planted_coupling(u: Tensor, v: Tensor, singular_values: Sequence[float] | Tensor) -> Tensor:
    """Return rho(u, v) = sum_k sigma_k phi_k(u) phi_k(v), phi_k(x) = sqrt(2) sin(2 pi k x), at all pairs of tokens.

    The coupling of the rate experiment in Appendix B.2 of Jiang and Li, arXiv 2305.18475. Its singular values in L2
    of the uniform measure on [0, 1]^2 are the sigma_k in descending order. The mean over u or v is 0, so centering
    changes nothing there.

    Args:
        u: (..., N), tokens of the queries in [0, 1].
        v: (..., M), tokens of the keys in [0, 1].
        singular_values: (r,): sigma_k, at least 0.

    Returns:
        (..., N, M), float64.

    Raises:
        ValueError: an argument is wrong as in [`planted_features`].
    """
    queries, keys = planted_features(u, v, singular_values)
    return queries @ keys.mT


def sheared_coupling(u: Tensor, v: Tensor) -> Tensor:
    """Return rho(u, u + v) of rho(u, v) = 1 + 2 sin(2 pi u) sin(2 pi v), elementwise.

    Appendix D.3 of Jiang and Li, arXiv 2305.18475: rho has the singular values 1 and 1, and after the map
    (u, v) -> (u, u + v) of the input the values are `SHEARED_SINGULAR_VALUES`.

    Args:
        u: tokens of the queries.
        v: tokens of the keys; both shapes broadcast.

    Returns:
        The broadcast shape, float64.
    """
    return 1 + 2 * torch.sin(2 * math.pi * u.double()) * torch.sin(2 * math.pi * (u.double() + v.double()))
