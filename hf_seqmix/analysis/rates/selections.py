"""Tasks in which each token selects what it averages: the nearest point, its segment, a set of positions."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .targets import Target, require_at_least, uniform

__all__ = ["NearestPoint", "SegmentMean", "SelectAverage"]


@dataclass(frozen=True)
class NearestPoint(Target):
    """Find the nearest point of the other set.

    A row is a set U of n points, then a set V of n points, all independent and uniform on [0, 1]^k; x(t) is the point
    and 0 in U, 1 in V (d = k + 1). y(t) in R^k is the point of the other set that is nearest to the point t. The
    limit of a softmax coupling -beta |u - v|^2, whose rank is k + 1 up to what a softmax ignores.

    Source: Jiang, Li 2023 (arXiv 2305.18475), appendix B.1 (n = 6, k = 2). The encoding of the sets is ours, and so is
    that points of V are asked, too.

    Args:
        num_points: n.
        dimension: k.

    Raises:
        ValueError: a number is below 1.
    """

    num_points: int = 6
    dimension: int = 2

    def __post_init__(self) -> None:
        require_at_least(num_points=(self.num_points, 1), dimension=(self.dimension, 1))
        self._derive(length=2 * self.num_points, width=self.dimension + 1, num_outputs=self.dimension, is_causal=False)

    def inputs(self, rows: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw inputs (rows, 2 num_points, dimension + 1)."""
        points = uniform((rows, self.length, self.dimension), generator, dtype)
        sets = (torch.arange(self.length, device=points.device) >= self.num_points).to(dtype)
        return torch.cat([points, sets[:, None].expand(rows, -1, 1)], dim=-1)

    def _outputs(self, inputs: Tensor) -> Tensor:
        points, sets = inputs[..., :-1], inputs[..., -1]
        distances = (points[:, :, None] - points[:, None]).square().sum(dim=-1)  # (rows, length, length)
        nearest = distances.masked_fill(sets[:, :, None] == sets[:, None], math.inf).argmin(dim=-1)
        return points.take_along_dim(nearest[..., None], dim=1)


@dataclass(frozen=True)
class SegmentMean(Target):
    """Average the points of one's own segment.

    A row is K segments of n points, uniform on [0, 1], then a prediction token, which names a segment at random.
    x(t) = (point, e_k, 0) for a point of segment k, and (0, e_k, 1) for the token that asks for segment k (d = K + 2).
    y(t) = sum_{s: s is a point, k(s) = k(t)} x_1(s) / n. The limit of the coupling beta <e_k(t), e_k(s)>, of rank K.

    Source: Jiang, Li 2023 (arXiv 2305.18475), appendix B.1 (n = 10, K at least 2). The encoding is ours, and so is
    that points are asked, too.

    Args:
        num_segments: K, at least 2.
        segment_length: n.

    Raises:
        ValueError: a number is too small.
    """

    num_segments: int = 2
    segment_length: int = 10

    def __post_init__(self) -> None:
        require_at_least(num_segments=(self.num_segments, 2), segment_length=(self.segment_length, 1))
        self._derive(
            length=self.num_segments * self.segment_length + 1,
            width=self.num_segments + 2,
            num_outputs=None,
            is_causal=False,
        )

    def inputs(self, rows: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw inputs (rows, num_segments segment_length + 1, num_segments + 2)."""
        inputs = torch.zeros(rows, self.length, self.width, dtype=dtype, device=generator.device)
        inputs[:, :-1, 0] = uniform((rows, self.length - 1), generator, dtype)
        segments = torch.arange(self.length - 1, device=generator.device) // self.segment_length
        asked = torch.randint(self.num_segments, (rows, 1), generator=generator, device=generator.device)
        labels = torch.cat([segments.expand(rows, -1), asked], dim=1)
        inputs[..., 1:-1] = torch.nn.functional.one_hot(labels, self.num_segments).to(dtype)
        inputs[:, -1, -1] = 1
        return inputs

    def _outputs(self, inputs: Tensor) -> Tensor:
        points, labels, is_point = inputs[..., 0], inputs[..., 1:-1], 1 - inputs[..., -1]
        sums = torch.einsum("bsk,bs->bk", labels, is_point * points)
        return torch.einsum("btk,bk->bt", labels, sums) / self.segment_length


@dataclass(frozen=True)
class SelectAverage(Target):
    """Average the points that each token selects (q-sparse averaging, qSA).

    x(t) = (z(t), 1[1 in S(t)], ..., 1[T in S(t)]) with z(t) uniform on [0, 1]^m and S(t) a set of q of the T
    positions, uniform among all (d = m + T). y(t) = 1/q sum_{s in S(t)} z(s) in R^m.

    Source: Sanford, Hsu, Telgarsky 2023 (arXiv 2306.02896); Jiang, Li 2023 (arXiv 2305.18475), appendix B.1 (T = 8,
    m = 2, q = 3). The encoding of sets by indicators is ours.

    Args:
        length: T.
        dimension: m.
        num_selected: q, at most T.

    Raises:
        ValueError: a number is below 1, or more positions are selected than there are.
    """

    length: int = 8
    dimension: int = 2
    num_selected: int = 3

    def __post_init__(self) -> None:
        require_at_least(dimension=(self.dimension, 1), num_selected=(self.num_selected, 1))
        if self.length < self.num_selected:
            raise ValueError(
                f"num_selected is {self.num_selected} of length {self.length} positions; select at most all."
            )
        self._derive(width=self.dimension + self.length, num_outputs=self.dimension, is_causal=self.length == 1)

    def inputs(self, rows: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw inputs (rows, length, dimension + length)."""
        points = uniform((rows, self.length, self.dimension), generator, dtype)
        order = uniform((rows, self.length, self.length), generator, dtype).argsort(dim=-1).argsort(dim=-1)
        return torch.cat([points, (order < self.num_selected).to(dtype)], dim=-1)

    def _outputs(self, inputs: Tensor) -> Tensor:
        points, selected = inputs.split([self.dimension, self.length], dim=-1)
        return selected @ points / self.num_selected
