"""Exact log-rank of polynomial networks against depth, and the depth at which its growth changes."""

import math
from dataclasses import dataclass

from .modular_nets import attention_separation_rank, mlp_separation_rank
from .separation_rank import generic_separation_rank

__all__ = ["FORMS", "DepthRank", "log_rank_curve", "threshold_depth"]

FORMS = ("fully-connected", "attention")

_START = 64
"""Rows of the first sample of `exact_separation_rank`."""


@dataclass(frozen=True)
class DepthRank:
    """Exact separation rank of nets of one depth, first half of the inputs against the second.

    Attributes:
        depth: L.
        rank: of a net with random weights.
        bound: the largest rank of a polynomial of the same degree, d^L for layers of degree d, in these halves.
    """

    depth: int
    rank: int
    bound: int


def threshold_depth(degree: int, width: int) -> float:
    """Return log_d(width), the depth at which the degree d^L of a net reaches the width.

    With h inputs in each half and n = d^L, generic polynomials have a rank of about 2 C(n/2 + h, h). Far below the
    threshold, n << h, the log-rank is about n/2 ln h and grows d-fold with each layer. Far above, n >> h, the log-rank
    is about h ln n and grows by h ln d. The claim, with the width for h: Navon (2021, unpublished notes).

    Args:
        degree: d, at least 2.
        width: at least 1.

    Raises:
        ValueError: a number is too small.
    """
    if degree < 2 or width < 1:
        raise ValueError(
            f"degree is {degree} and width {width}; give a degree of at least 2 and a width of 1 or more."
        )
    return math.log(width, degree)


def log_rank_curve(
    form: str,
    degree: int,
    width: int,
    num_tokens: int = 2,
    *,
    affine: bool = False,
    max_size: int = 600,
    max_depth: int = 12,
    seed: int = 0,
) -> list[DepthRank]:
    """Return exact separation ranks at depth 1, 2, ..., as far as sampled matrices of `max_size` rows can tell.

    Args:
        form: "fully-connected" (`mlp_separation_rank`) or "attention" (`attention_separation_rank`).
        degree: d of each layer; 2, 3 or 4 in attention form.
        width: of the layers. Fully connected nets have as many inputs; nets in attention form that many a token.
        num_tokens: of nets in attention form, even.
        affine: biases and residual connections; without, nets are homogeneous.
        max_size: rows of the largest sample; a net whose rank fills it ends the curve and is left out.
        max_depth: the largest depth.
        seed: of weights and samples.

    Raises:
        ValueError: an argument is out of range.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; give one of {', '.join(map(repr, FORMS))}.")
    flat = form == "fully-connected"
    if degree < 2 or width < 1 + flat or max_size < _START or max_depth < 1:
        raise ValueError(
            f"degree is {degree}, width {width}, max_size {max_size} and max_depth {max_depth}; give at least 2,"
            f" {1 + flat}, {_START} and 1."
        )
    inputs = width if flat else num_tokens * width
    curve = []
    for depth in range(1, max_depth + 1):
        degrees, bound = [degree] * depth, generic_separation_rank(degree**depth, inputs // 2, inputs - inputs // 2)
        size = min(max(bound + 1, _START), max_size)
        if flat:
            found = mlp_separation_rank(degrees, width, residual=affine, bias=affine, seed=seed, max_size=size)
        else:
            biases = {"projection_bias": affine, "output_bias": affine}
            found = attention_separation_rank(
                degrees, width, num_tokens, residual=affine, seed=seed, max_size=size, **biases
            )
        if not found.is_complete:
            break
        curve.append(DepthRank(depth, found.rank, bound))
    return curve
