"""How fast a kernel given by its frequency response decays: the tail that its ends and its kinks predict."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.fd_tnn.kernel import FREQUENCY_INPUTS
from ...models.toeplitz.encoder import RelativePositionEncoder

__all__ = ["ResponseTail", "activation_inputs", "kinks", "response_at", "response_tail"]

_STEP = 1e-9  # away from a kink: far above rounding and far below the usual distance to the next one
_ONE_KINK = 4 * _STEP  # as close, and kinks of several units are one, whose jump is that of all of them


@dataclass(frozen=True)
class ResponseTail:
    """What decides the leading tail of k[t] = (1 / 2 pi) int K(w) exp(i w t) dw, for t far from 0.

    A response R + i I on [0, pi], continued as an even R and an odd I, has a kernel that falls like 1 / t where I does
    not vanish at the ends, and like 1 / t^2 where R has a slope there or where either has a kink inside. Elsewhere it
    falls faster. Integrating by parts,

        k[t] ~ [(-1)^t I(pi) - I(0)] / (pi t)
             + [(-1)^t R'(pi) - R'(0) - sum_j dR'_j cos(w_j t) + sum_j dI'_j sin(w_j t)] / (pi t^2),

    dR'_j the jump of the slope at w_j. A causal kernel has I = -H{R}, which is not given here: its taps are twice
    those of R alone, so the second line doubles (R alone) and the first is absent. The bounds of Moreno, Mei, Walters
    2023 (arXiv 2305.09028), theorems 2 and 3, need a response that is smooth as a periodic function, which an encoder
    of the raw frequency is not; so there the tail is 1 / t^2 for every activation. Holds for lags far below the grid's
    F / 2.

    Attributes:
        slopes: (channels, 2), R' at 0 and pi.
        values: (channels, 2), I at 0 and pi; None for a causal kernel.
        kinks: (kinks,) frequencies inside (0, pi) at which a slope jumps, that of several units once.
        jumps: (channels, kinks), slope of R right of the kink minus slope left of it.
        imaginary_jumps: (channels, kinks), the same of I; None for a causal kernel.
    """

    slopes: Tensor
    values: Tensor | None
    kinks: Tensor
    jumps: Tensor
    imaginary_jumps: Tensor | None

    def taps(self, lags: Tensor, with_kinks: bool = True) -> Tensor:
        """Return the predicted taps.

        Args:
            lags: (lags,), none of them 0; only positive ones for a causal kernel.
            with_kinks: False leaves the terms of kinks inside the interval out.

        Returns:
            (channels, lags) in float64.
        """
        t = lags.to(torch.float64)
        sign = torch.cos(math.pi * t)  # (-1)^t
        second = sign * self.slopes[:, 1:] - self.slopes[:, :1]
        angles = self.kinks[:, None] * t  # (kinks, lags)
        if with_kinks:
            second = second - self.jumps @ angles.cos()
        if self.values is None or self.imaginary_jumps is None:
            return 2 * second / (math.pi * t.square())
        if with_kinks:
            second = second + self.imaginary_jumps @ angles.sin()
        first = sign * self.values[:, 1:] - self.values[:, :1]
        return first / (math.pi * t) + second / (math.pi * t.square())


def response_at(
    encoder: RelativePositionEncoder, frequencies: Tensor, frequency_input: str, is_causal: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return the response of a `FrequencyKernel` at any frequencies, R and I, before I is set to 0 at the ends.

    With "omega" the encoder reads w itself, (R, I) = RPE(w); with "cosine" R = RPE_1(cos w) and I = sin(w) RPE_2(cos
    w).

    Args:
        encoder: maps (points,) coordinates to (channels, points), or to (2 channels, points), R first, when not
            causal.
        frequencies: (points,) in [0, pi].
        frequency_input: "omega" or "cosine".
        is_causal: whether the imaginary part follows from the real one.

    Returns:
        (channels, points) each; None in place of I when causal.

    Raises:
        ValueError: `frequency_input` is neither.
    """
    if frequency_input not in FREQUENCY_INPUTS:
        raise ValueError(f"frequency_input is {frequency_input!r}; it must be 'omega' or 'cosine'.")
    cosine = frequency_input == "cosine"
    response = encoder(frequencies.cos() if cosine else frequencies)
    if is_causal:
        return response, None
    real, imaginary = response.chunk(2)
    return real, imaginary * frequencies.sin() if cosine else imaginary


def activation_inputs(encoder: RelativePositionEncoder, coordinates: Tensor) -> Tensor:
    """Return the inputs of an encoder's activations, (points, units): where one is 0, a ReLU has its kink."""
    inputs: list[Tensor] = []
    hook = encoder.activation.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    try:
        encoder(coordinates)
    finally:
        hook.remove()
    return torch.cat(inputs, dim=-1)


@torch.no_grad()
def kinks(
    encoder: RelativePositionEncoder,
    low: float,
    high: float,
    coordinate: Callable[[Tensor], Tensor] = lambda x: x,
    cells: int = 2**14,
) -> tuple[Tensor, Tensor]:
    """Return where the input of an activation changes its sign between `low` and `high`.

    Sign changes between neighboring points of a grid, narrowed down by bisection. Two within one cell that belong to
    the same unit are missed.

    Args:
        encoder: the encoder, best in float64.
        low: least argument.
        high: greatest argument.
        coordinate: from the argument to the coordinate that the encoder reads.
        cells: of the grid.

    Returns:
        Two points, (kinks,) each, a last bit or so apart: the last with the old sign, the first with the new.
    """
    dtype = encoder.dtype
    grid = torch.linspace(low, high, cells + 1, dtype=dtype)
    signs = activation_inputs(encoder, coordinate(grid)) > 0
    cell, unit = (signs[1:] != signs[:-1]).nonzero(as_tuple=True)
    before, after = grid[cell], grid[cell + 1]
    old = signs[cell, unit]
    for _ in range(60):
        middle = (before + after) / 2
        stays = (activation_inputs(encoder, coordinate(middle)) > 0).gather(1, unit[:, None])[:, 0] == old
        before, after = torch.where(stays, middle, before), torch.where(stays, after, middle)
    return before, after


def response_tail(encoder: RelativePositionEncoder, frequency_input: str, is_causal: bool = True) -> ResponseTail:
    """Find what decides the tail of an encoder's kernel, by automatic differentiation at the ends and kinks.

    Args:
        encoder: in float64. Kinks are looked for where its activation is ReLU; others are taken to be smooth.
        frequency_input: "omega" or "cosine".
        is_causal: whether the encoder's outputs are R alone, or R and I.

    Raises:
        ValueError: the encoder is not in float64, whose rounding would hide kinks; or `frequency_input` is unknown.
    """
    if encoder.dtype != torch.float64:
        raise ValueError(
            f"the encoder computes in {encoder.dtype}; slopes at kinks need float64: call encoder.double()."
        )
    ends = torch.tensor([0.0, math.pi], dtype=torch.float64)
    # From inside: where biases are zero, units have their kink at 0 itself.
    inside = ends + torch.tensor([_STEP, -_STEP], dtype=torch.float64)
    slopes = _slopes(encoder, inside, frequency_input, is_causal)[0]
    values = response_at(encoder, ends, frequency_input, is_causal)[1]
    if isinstance(encoder.activation, torch.nn.ReLU):
        read = torch.cos if frequency_input == "cosine" else (lambda x: x)
        before, after = _inside_once(*kinks(encoder, 0.0, math.pi, read))
    else:
        before = after = ends[:0]
    left = _slopes(encoder, before - _STEP, frequency_input, is_causal)
    right = _slopes(encoder, after + _STEP, frequency_input, is_causal)
    imaginary_jumps = None if left[1] is None or right[1] is None else right[1] - left[1]
    return ResponseTail(
        slopes, None if values is None else values.detach(), before, right[0] - left[0], imaginary_jumps
    )


def _inside_once(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Return each kink once, and those at the ends not at all: the slopes there know of them.

    Without biases all units of a first layer have their kink at one frequency.
    """
    order = before.argsort()
    before, after = before[order], after[order]
    apart = before[1:] - after[:-1] > _ONE_KINK
    edge = torch.ones_like(before[:1], dtype=torch.bool)
    before, after = before[torch.cat([edge, apart])], after[torch.cat([apart, edge])]
    inside = (before > _ONE_KINK) & (after < math.pi - _ONE_KINK)
    return before[inside], after[inside]


@torch.inference_mode(False)
@torch.enable_grad()
def _slopes(
    encoder: RelativePositionEncoder, frequencies: Tensor, frequency_input: str, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Return R' and I' at the frequencies, (channels, points) each, whatever the caller's mode."""
    points = frequencies.clone().requires_grad_()

    def differentiate(part: Tensor) -> Tensor:
        # Points do not mix, so the gradient of a channel's sum holds its slope at each of them.
        rows = [torch.autograd.grad(channel.sum(), points, retain_graph=True)[0] for channel in part]
        return torch.stack(rows)

    real, imaginary = response_at(encoder, points, frequency_input, is_causal)
    return differentiate(real), None if imaginary is None else differentiate(imaginary)
