"""The representation of theorem 4.1 by a coupling of rank one, for any relationship between sequences."""

import math
from typing import Any

import torch
from torch import Tensor

from .targets import Target, require_at_least

__all__ = ["RankOneRepresentation"]


class RankOneRepresentation:
    """Write a target as F of a softmax average, with a coupling whose only singular value is as small as one likes.

    H_t(x) = F( sum_s softmax_s[rho(u(t), u(s))] f(u(s)) ),   rho(u, v) = scale a(u) b(v),   u(s) = x(s) + 2 s

    Tokens with their positions lie in disjoint cubes I(s) = [2 s, 2 s + 1]^d. e_s is 1 on I(s), 0 on the others and
    continuous between; a = sum_s s e_s and b = e_0. f(u) holds x(s) e_s(u) and e_s(u) for each s, so its average holds
    w(s) x(s) and w(s), with w the weights of the softmax. F divides, which gives x, reads t from w(0) / w(1) =
    e^(scale t), and returns H_t(x). F is continuous on the averages that occur, whose parts of different t are apart.

    So the theorem holds with n = (d + 1) T numbers, at most the paper's 2 T d + 1, and its coupling need know nothing
    of the target: C1, the infimum over representations in equation 10, is 0 for every H. What a small scale costs is
    the slope of F, see `steepness`.

    Source: Jiang, Li 2023 (arXiv 2305.18475), theorem 4.1, equations 8 and 10. The construction is our own.

    Args:
        target: H, with inputs in [0, 1].
        scale: of rho; float64 tells positions apart from 1e-11 on.

    Raises:
        ValueError: `scale` is not positive, or so large that a weight of the softmax is 0.
    """

    def __init__(self, target: Target, scale: float = 1.0) -> None:
        if not 1e-11 <= scale <= 600 / target.length:
            raise ValueError(f"scale is {scale}; give 1e-11 to {600 / target.length:.3g}, at {target.length} tokens.")
        self.target, self.scale = target, float(scale)

    @property
    def singular_value(self) -> float:
        """The largest singular value of rho in L2 over all I(s), scale |a| |b|; the others are 0."""
        return self.scale * math.sqrt(sum(place**2 for place in range(self.target.length)))

    def encode(self, inputs: Tensor) -> Tensor:
        """Return tokens with their positions, x(s) + 2 s, (rows, length, width), of inputs of this shape in [0, 1].

        Raises:
            ValueError: the inputs have another shape.
        """
        if inputs.ndim != 3 or inputs.shape[1:] != (self.target.length, self.target.width):
            raise ValueError(
                f"inputs have the shape {tuple(inputs.shape)}; the target takes (rows, {self.target.length}, "
                f"{self.target.width})."
            )
        return inputs + 2 * self._places(inputs)[:, None]

    def features(self, tokens: Tensor) -> Tensor:
        """Return f, (..., length, width + 1), in [0, 1], of tokens (..., width) anywhere: e_s x(s), then e_s."""
        near = self._indicators(tokens)[..., None]  # (..., length, 1)
        values = (tokens[..., None, :] - 2 * self._places(tokens)[:, None]).clamp(0, 1)
        return torch.cat([near * values, near], dim=-1)

    def coupling(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return rho(u, v), (..., queries, keys), of tokens (..., queries, width) and (..., keys, width)."""
        places = self._indicators(queries) @ self._places(queries)
        return self.scale * places[..., :, None] * self._indicators(keys)[..., None, :, 0]

    def averages(self, inputs: Tensor) -> Tensor:
        """Return what F is given, (rows, length, length, width + 1), of inputs (rows, length, width)."""
        tokens = self.encode(inputs)
        weights = self.coupling(tokens, tokens).softmax(dim=-1)
        return torch.einsum("rts,rsnc->rtnc", weights, self.features(tokens))

    def decode(self, averages: Tensor) -> Tensor:
        """Return F, (...), or (..., outputs), of averages (..., length, width + 1), each by itself."""
        weights = averages[..., -1]
        inputs = averages[..., :-1] / weights[..., None]
        length = self.target.length
        ratio = weights[..., 0] / weights[..., min(1, length - 1)]
        time = (ratio.log() / self.scale).round().long().clamp(0, length - 1).flatten()
        outputs = self.target.outputs(inputs.flatten(0, -3))  # of every time
        chosen = outputs[torch.arange(len(time), device=time.device), time]
        return chosen.unflatten(0, averages.shape[:-2])

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return H_t(x) by the representation, as `Target.outputs` returns them, of inputs (rows, length, width)."""
        return self.decode(self.averages(inputs))

    def steepness(self, rows: int = 16) -> float:
        """Return a lower bound of the Lipschitz constant of F: its steepest secant between two times of one row.

        Args:
            rows: random rows, the same in every call.

        Raises:
            ValueError: `rows` is below 1, or the target has a single token.
        """
        require_at_least(rows=(rows, 1), length=(self.target.length, 2))
        inputs, outputs = self.target.draw(rows, torch.Generator().manual_seed(0), torch.float64)
        points, values = self.averages(inputs).flatten(2), outputs.reshape(rows, self.target.length, -1)
        apart = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        change = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist")
        return (change / apart.masked_fill(apart == 0, math.inf)).max().item()

    def to_dict(self, rows: int = 64) -> dict[str, Any]:
        """Return scale, singular value, errors on random rows in float64, and steepness, ready for JSON."""
        inputs, outputs = self.target.draw(rows, torch.Generator().manual_seed(0), torch.float64)
        error = (self.outputs(inputs) - outputs).abs().max().item()
        return {
            "scale": self.scale,
            "singular_value": self.singular_value,
            "largest_error": error,
            "steepness": self.steepness(),
        }

    def _places(self, like: Tensor) -> Tensor:
        return torch.arange(self.target.length, dtype=like.dtype, device=like.device)

    def _indicators(self, tokens: Tensor) -> Tensor:
        """Return e_s of tokens (..., width), (..., length): 1 within the cube, falling to 0 at a distance of 1."""
        low = 2 * self._places(tokens)[:, None]
        outside = torch.maximum(low - tokens[..., None, :], tokens[..., None, :] - low - 1).clamp(min=0)
        return (1 - outside.amax(dim=-1)).clamp(min=0)
