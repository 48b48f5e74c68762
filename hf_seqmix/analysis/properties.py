"""What holds for a model whatever its weights: whether it is causal, whether it keeps the order, its degree."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

__all__ = ["Degree", "Violation", "check_causal", "check_equivariance", "polynomial_degree"]

_ROUNDING = 1e-9
"""Relative differences in float64 that count as rounding, of many layers and of transforms."""


@dataclass(frozen=True)
class Violation:
    """How far a model is from having a property.

    Attributes:
        largest: difference over the root mean square of the outputs; 0 where none was found.
        output: place of that difference.
        tolerance: what counts as rounding.
    """

    largest: float
    output: int
    tolerance: float = _ROUNDING

    def __bool__(self) -> bool:
        """Whether the property holds: `if check_causal(model): ...`."""
        return self.largest <= self.tolerance


def check_causal(model: PreTrainedModel, length: int = 17, batch: int = 2, seed: int = 0) -> Violation:
    """Find out whether outputs depend on later inputs.

    Inputs from place s on are drawn anew, for each s, and the last hidden states before s are compared.

    Args:
        model: reads `inputs_embeds`; it is copied, and runs in float64 without dropout.
        length: tokens of the random inputs.
        batch: rows of the random inputs.
        seed: of the random inputs.

    Returns:
        True as a condition where nothing leaks; else it says how much, and to where.

    Raises:
        ValueError: there are fewer than two tokens, or no rows.
    """
    run, inputs, generator = _exact(model, batch, length, seed)
    expected = run(inputs)
    worst = Violation(0.0, 0)
    for place in range(1, length):
        changed = inputs.clone()
        changed[:, place:] = torch.randn(changed[:, place:].shape, dtype=inputs.dtype, generator=generator)
        worst = _worse(worst, run(changed)[:, :place], expected[:, :place], expected)
    return worst


def check_equivariance(model: PreTrainedModel, length: int = 17, batch: int = 2, seed: int = 0) -> Violation:
    """Find out whether permuted inputs give outputs that are permuted alike, as in an encoder without positions.

    Args:
        model: reads `inputs_embeds`; it is copied, and runs in float64 without dropout.
        length: tokens of the random inputs.
        batch: rows of the random inputs.
        seed: of the random inputs and of three random permutations.

    Returns:
        True as a condition where the order does not matter; else it says how much it does.

    Raises:
        ValueError: there are fewer than two tokens, or no rows.
    """
    run, inputs, generator = _exact(model, batch, length, seed)
    expected = run(inputs)
    worst = Violation(0.0, 0)
    for _ in range(3):
        order = torch.randperm(length, generator=generator)
        worst = _worse(worst, run(inputs[:, order]), expected[:, order], expected)
    return worst


@dataclass(frozen=True)
class Degree:
    """How fast a function grows along a ray.

    Attributes:
        slope: d log |f(s x)| / d log s, between the two largest scales.
        slopes: the same between neighboring scales, from the smallest on.
    """

    slope: float
    slopes: list[float]

    @property
    def degree(self) -> int | None:
        """The degree of a polynomial; None where the slopes do not settle at an integer."""
        nearest = round(self.slope)
        return nearest if all(abs(slope - nearest) < 1e-2 for slope in self.slopes[-2:]) else None


@torch.no_grad()
def polynomial_degree(f: Callable[[Tensor], Tensor], x: Tensor, largest: float = 2.0**16) -> Degree:
    """Measure the degree of a polynomial by its growth, slope = log2(|f(2 s x)| / |f(s x)|), |.| the 2-norm.

    The slope of a homogeneous polynomial is its degree at every scale s. With biases and residual connections it comes
    near the degree of the highest term as s grows. A function with norms or bounded activations is no polynomial, and
    grows like a power below its number of factors.

    Args:
        f: maps a tensor like `x` to a tensor, such as a mixer without a norm, or a model.
        x: any shape; in float64, with entries of about 1.
        largest: the last scale, at least 2; scales are powers of 2 from 1 on. They end earlier where f overflows.

    Raises:
        ValueError: if `largest` is below 2 or infinite, or f is zero or not finite already at the first scales.
    """
    if not 2 <= largest < math.inf:
        raise ValueError(
            f"largest is {largest}; it must be a finite number of at least 2, since a slope takes two scales."
        )
    scales = [2.0**k for k in range(int(math.log2(largest)) + 1)]
    sizes: list[float] = []
    for scale in scales:
        size = f(scale * x).double().norm().item()
        if not 0 < size < math.inf:
            break
        sizes.append(size)
    if len(sizes) < 2:
        raise ValueError("f is zero or not finite along this ray, so it has no degree there: give another x.")
    slopes = [math.log2(after / before) for before, after in pairwise(sizes)]
    return Degree(slopes[-1], slopes)


def _exact(
    model: PreTrainedModel, batch: int, length: int, seed: int
) -> tuple[Callable[[Tensor], Tensor], Tensor, torch.Generator]:
    """Return a model's last hidden states as a function in float64, inputs for it, and what drew them."""
    if length < 2 or batch < 1:
        raise ValueError(f"length is {length} and batch {batch}: give at least 2 tokens, to compare, and a row.")
    backbone: nn.Module = copy.deepcopy(model.base_model).double().eval()
    generator = torch.Generator().manual_seed(seed)
    hidden_size = model.config.get_text_config().hidden_size
    device = next(backbone.parameters()).device
    inputs = torch.randn(batch, length, hidden_size, dtype=torch.float64, generator=generator)

    @torch.no_grad()
    def run(x: Tensor) -> Tensor:
        return backbone(inputs_embeds=x.to(device), use_cache=False).last_hidden_state.cpu()

    return run, inputs, generator


def _worse(worst: Violation, actual: Tensor, expected: Tensor, whole: Tensor) -> Violation:
    """Return the larger of a violation and the difference of (batch, places, channels)."""
    differences = (actual - expected).abs().amax(dim=(0, 2)) / whole.square().mean().sqrt()
    largest, place = (x.item() for x in differences.max(dim=0))
    return Violation(largest, int(place)) if largest > worst.largest or math.isnan(largest) else worst
