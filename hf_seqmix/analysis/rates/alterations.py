"""Targets whose inputs are put in another order, or mixed over time, before the relationship is applied."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...ops.toeplitz.product import toeplitz_matrix
from .targets import LinearTarget, Target

__all__ = ["AlteredTarget", "exchange_ends", "mix", "permute"]


@dataclass(frozen=True, eq=False)
class AlteredTarget(Target):
    """Apply a target to recombined positions: H~(x) = H(A x), (A x)(t) = sum_s A[t, s] x(s).

    `is_causal` is exact where H is linear. For other targets it is true where H is causal and A is zero above its
    diagonal, which suffices.

    Args:
        target: H.
        recombination: A, (length, length), float64.
        alteration: a name for A.
    """

    target: Target
    recombination: Tensor = field(repr=False)
    alteration: str

    def __post_init__(self) -> None:
        matrix = self.matrix()
        causal = (
            self.target.is_causal and not self.recombination.triu(1).any()
            if matrix is None
            else not matrix.triu(1).any()
        )
        self._derive(
            length=self.target.length,
            width=self.target.width,
            num_outputs=self.target.num_outputs,
            is_causal=bool(causal),
        )

    def inputs(self, rows: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw inputs (rows, length, width), those of the target."""
        return self.target.inputs(rows, generator, dtype)

    def matrix(self) -> Tensor | None:
        """Return the matrix of the target times A, (length, length); None where the target is not linear."""
        matrix = self.target.matrix()
        return None if matrix is None else matrix @ self.recombination

    def _outputs(self, inputs: Tensor) -> Tensor:
        return self.target.outputs(self.recombination.to(inputs) @ inputs)


def exchange_ends(length: int, count: int = 10) -> list[int]:
    """Return the permutation that exchanges the first and the last `count` of `length` tokens, in their order.

    Source: Jiang, Li 2023 (arXiv 2305.18475), appendix C (10 of 32).

    Raises:
        ValueError: `count` is below 1, or the ends overlap.
    """
    if not 1 <= count <= length // 2:
        raise ValueError(
            f"length {length} has no two ends of {count} tokens; give 1 to {length // 2}, or a permutation."
        )
    ends = list(range(length - count, length)), list(range(count))
    return [*ends[0], *range(count, length - count), *ends[1]]


def permute(target: Target, permutation: Sequence[int] | None = None, mode: str = "input") -> Target:
    """Return the target in another temporal order, H~(x o p) = H(x), or with its kernel in another order.

    - mode "input": H~(x) = H(x o p^-1), where (x o q)(t) = x(q(t)). Not causal unless p is the identity, as a rule:
      tokens of the past of H may lie ahead in x.
    - mode "kernel": rho~(s) = rho(p(s)) of a `LinearTarget`, which stays causal and linear.

    Source: Jiang, Li 2023 (arXiv 2305.18475), section 6. The text permutes the function rho, appendix C the inputs,
    and no reported number tells which was done; hence both modes.

    Args:
        target: H.
        permutation: p, p(0), ..., p(length - 1); `exchange_ends(length)` by default.
        mode: "input" or "kernel".

    Raises:
        ValueError: p is no permutation of the positions, the mode is unknown, or "kernel" is asked of a target that is
            no `LinearTarget`.
    """
    order = exchange_ends(target.length) if permutation is None else list(permutation)
    if sorted(order) != list(range(target.length)):
        raise ValueError(f"permutation is {order}; give each of 0, ..., {target.length - 1} once.")
    if mode == "input":
        # Row t of A picks p^-1(t), so column t has its 1 in row p(t).
        return AlteredTarget(target, torch.eye(target.length, dtype=torch.float64)[:, order], "permuted inputs")
    if mode != "kernel":
        raise ValueError(f'mode is {mode!r}; give "input" or "kernel".')
    if not isinstance(target, LinearTarget):
        raise ValueError(f'mode "kernel" needs a LinearTarget, not {type(target).__name__}; use mode "input".')
    return LinearTarget(tuple(target.taps[place] for place in order))


def mix(target: Target, theta: Sequence[float], causal: bool = True) -> AlteredTarget:
    """Return the target of inputs mixed over time, H~(x) = H(theta * x), with zeros beyond the ends.

    (theta * x)(t) = sum_s theta(s) x(t - s) if `causal`, else sum_s theta(s) x(t + s).

    Source: Jiang, Li 2023 (arXiv 2305.18475), section 6, which writes x(t + s): no causal model can follow that, yet a
    recurrent one does in the paper's table 2. Hence x(t - s) by default.

    Args:
        target: H.
        theta: theta(0), theta(1), ..., at most `length` of them.
        causal: whether inputs are mixed with earlier ones.

    Raises:
        ValueError: theta has no values, more than tokens, or one that is not finite.
    """
    values = [float(value) for value in theta]
    if not 1 <= len(values) <= target.length or not all(map(math.isfinite, values)):
        raise ValueError(f"theta is {values}; give 1 to {target.length} finite values.")
    taps = torch.tensor([values + [0.0] * (target.length - len(values))], dtype=torch.float64)
    behind = toeplitz_matrix(taps, target.length)[0]
    return AlteredTarget(target, behind if causal else behind.T, "mixed" if causal else "mixed with look-ahead")
