"""Decay of random and fitted frequency-domain kernels, per activation and input mode, beside what theory predicts."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...models.fd_tnn.kernel import FREQUENCY_INPUTS, FrequencyKernel
from ...models.toeplitz.encoder import RelativePositionEncoder
from .response_tails import response_at, response_tail

__all__ = [
    "ACTIVATIONS",
    "DECAY_COLUMNS",
    "decay_row",
    "decay_table",
    "fit_response",
    "kernel_taps",
    "lags_of",
    "random_encoders",
    "resonance",
    "resonance_taps",
    "some_channels",
    "spread_channels",
    "tail_agreement",
]

ACTIVATIONS = ("relu", "silu", "gelu")
DECAY_COLUMNS = {
    "direction": "direction",
    "frequency_input": "input",
    "activation": "activation",
    "at_64": "k(64) / max:.1e",
    "at_256": "k(256) / max:.1e",
    "at_1024": "k(1024) / max:.1e",
    "reach": "reach (1e-6):.0f",
    "tail_ratio": "measured / predicted:.4f",
    "tail_error": "error of prediction:.2%",
    "tail_error_worst": "worst:.2%",
    "tail_error_ends_only": "without kinks:.0%",
}
"""Columns of `decay_row` for `markdown_table`."""

_TAIL = (256, 1024)  # lags between which the prediction is compared


def random_encoders(
    activation: str, seeds: Sequence[int], *, channels: int = 8, hidden_size: int = 64, num_layers: int = 3
) -> list[RelativePositionEncoder]:
    """Return encoders at PyTorch's initialization, drawn in float32 and turned to float64, one a seed."""
    with torch.random.fork_rng(devices=[]):
        made = []
        for seed in seeds:
            torch.manual_seed(seed)
            made.append(RelativePositionEncoder(channels, hidden_size, num_layers, activation).double())
    return made


def spread_channels(channels: int, count: int) -> Tensor:
    """Return the numbers of `count` evenly spread channels, at most those that there are: (count,)."""
    return torch.linspace(0, channels - 1, min(count, channels)).round().long()


def some_channels(encoder: RelativePositionEncoder, count: int, is_causal: bool = True) -> RelativePositionEncoder:
    """Return a copy of an encoder in float64 with `count` evenly spread channels, at most those that there are."""
    thin = copy.deepcopy(encoder).double()
    rows = thin.out_proj.weight.shape[0]
    channels = rows if is_causal else rows // 2
    kept = spread_channels(channels, count)
    if not is_causal:
        kept = torch.cat([kept, kept + channels])  # real parts first, then imaginary ones
    projection = thin.out_proj
    projection.weight = torch.nn.Parameter(projection.weight.detach()[kept])
    projection.bias = torch.nn.Parameter(projection.bias.detach()[kept])
    projection.out_features = len(kept)
    return thin


@torch.no_grad()
def kernel_taps(
    encoder: RelativePositionEncoder, frequency_input: str, fft_length: int, is_causal: bool = True
) -> Tensor:
    """Return the taps of the `FrequencyKernel` of an encoder on a grid of `fft_length` / 2 + 1 frequencies.

    Args:
        encoder: gives `channels` outputs when causal, else twice as many, real parts first.
        frequency_input: "omega" or "cosine".
        fft_length: F, even.
        is_causal: whether the response is R - i H{R}, or R + i I with I = 0 at 0 and pi.

    Returns:
        (channels, F / 2 + 1), lags from 0, when causal; else (channels, F + 1), lags from -F / 2.

    Raises:
        ValueError: `fft_length` is odd or less than 2, or `frequency_input` is unknown.
    """
    if fft_length < 2 or fft_length % 2:
        raise ValueError(f"fft_length is {fft_length}; it must be even and at least 2.")
    half = fft_length // 2
    return FrequencyKernel(encoder, half, frequency_input, is_causal)(half + 1)


def lags_of(taps: Tensor, is_causal: bool) -> Tensor:
    """Return the lags of taps, (lags,), from 0 or from -(lags - 1) / 2 upwards."""
    count = taps.shape[-1]
    return torch.arange(count) - (0 if is_causal else count // 2)


@dataclass(frozen=True)
class _Agreement:
    ratio: Tensor  # (channels,)
    error: Tensor


def tail_agreement(taps: Tensor, predicted: Tensor, lags: Tensor) -> _Agreement:
    """Compare tails, with t^2 as weight so that no lag counts more than another.

    ratio = <t^2 k, t^2 p> / <t^2 p, t^2 p>, error = |t^2 (k - p)| / |t^2 p|, over the lags given.

    Args:
        taps: (channels, lags), k.
        predicted: (channels, lags), p.
        lags: (lags,).

    Returns:
        `.ratio` and `.error`, (channels,) each.
    """
    weight = lags.to(taps.dtype).square()
    measured, expected = taps * weight, predicted * weight
    square = expected.square().sum(dim=1)
    return _Agreement(
        (measured * expected).sum(dim=1) / square, ((measured - expected).square().sum(1) / square).sqrt()
    )


def decay_row(
    encoders: Sequence[RelativePositionEncoder],
    frequency_input: str,
    is_causal: bool = True,
    fft_length: int = 2**16,
) -> dict[str, Any]:
    """Return the decay of kernels of some encoders: medians over encoders and channels (and both signs of t).

    Args:
        encoders: in float64; see `kernel_taps`.
        frequency_input: "omega" or "cosine".
        is_causal: direction.
        fft_length: F, at least 16384, so that neither the lags compared nor their aliases reach its end.

    Returns:
        at_64, at_256, at_1024: |k(t)| / max |k|. reach: the first lag from which |k| stays below 1e-6 of its maximum.
        tail_ratio, tail_error: agreement with `ResponseTail` for 256 <= |t| <= 1024 (`tail_agreement`).
        tail_error_worst: the largest of all. tail_error_ends_only: the error when kinks inside are left out. None
        where nothing is predicted: a smooth periodic response.

    Raises:
        ValueError: `fft_length` is below 16384, or there is no encoder.
    """
    if fft_length < 2**14 or not encoders:
        raise ValueError(
            f"fft_length is {fft_length}, at least 16384 is needed; {len(encoders)} encoders, at least one."
        )
    samples: dict[str, list[Tensor]] = {}
    predictable = frequency_input == "omega" or isinstance(encoders[0].activation, torch.nn.ReLU)
    for encoder in encoders:
        taps = kernel_taps(encoder, frequency_input, fft_length, is_causal)
        lags = lags_of(taps, is_causal)
        relative = taps.abs() / taps.abs().amax(dim=1, keepdim=True)
        for lag in (64, 256, 1024):
            samples.setdefault(f"at_{lag}", []).append(relative[:, lags.abs() == lag].flatten())
        within = relative >= 1e-6
        samples.setdefault("reach", []).append((within * (lags.abs() + 1)).amax(dim=1).to(taps.dtype))
        if predictable:
            tail = response_tail(encoder, frequency_input, is_causal)
            chosen = (lags.abs() >= _TAIL[0]) & (lags.abs() <= _TAIL[1])
            for name, with_kinks in (("tail", True), ("ends", False)):
                agreement = tail_agreement(taps[:, chosen], tail.taps(lags[chosen], with_kinks), lags[chosen])
                samples.setdefault(f"{name}_ratio", []).append(agreement.ratio)
                samples.setdefault(f"{name}_error", []).append(agreement.error)
    pooled = {name: torch.cat(values) for name, values in samples.items()}
    row: dict[str, Any] = {
        "direction": "causal" if is_causal else "bidirectional",
        "frequency_input": frequency_input,
        "encoders": len(encoders),
        "fft_length": fft_length,
        **{name: pooled[name].median().item() for name in ("at_64", "at_256", "at_1024", "reach")},
    }
    if predictable:
        row["tail_ratio"] = pooled["tail_ratio"].median().item()
        row["tail_error"] = pooled["tail_error"].median().item()
        row["tail_error_worst"] = pooled["tail_error"].max().item()
        if frequency_input == "omega":  # with the cosine nothing is left without the kinks
            row["tail_error_ends_only"] = pooled["ends_error"].median().item()
    return row


def decay_table(
    seeds: Sequence[int] = range(20),
    *,
    fft_length: int = 2**16,
    channels: int = 8,
    hidden_size: int = 64,
    num_layers: int = 3,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Return `decay_row` of random encoders for each direction, input mode and activation.

    Args:
        seeds: one encoder each.
        fft_length: F.
        channels: of the encoders.
        hidden_size: of the encoders.
        num_layers: of the encoders.
        progress: called with what comes next.
    """
    rows = []
    for is_causal in (True, False):
        for frequency_input in FREQUENCY_INPUTS:
            for activation in ACTIVATIONS:
                progress(f"{'causal' if is_causal else 'bidirectional'}, {frequency_input}, {activation}")
                encoders = random_encoders(
                    activation,
                    seeds,
                    channels=channels if is_causal else 2 * channels,
                    hidden_size=hidden_size,
                    num_layers=num_layers,
                )
                rows.append({"activation": activation, **decay_row(encoders, frequency_input, is_causal, fft_length)})
    return rows


_RADIUS, _ANGLE = 0.8, math.pi / 4


def resonance_taps(lags: Tensor) -> Tensor:
    """Return a kernel to fit, k[t] = 0.8^t cos(pi t / 4), at lags from 0 on: (lags,)."""
    t = lags.to(torch.float64)
    return _RADIUS**t * torch.cos(_ANGLE * t)


def resonance(frequencies: Tensor) -> Tensor:
    """Return R(w) = Re (1/2) [1 / (1 - 0.8 e^(i (a - w))) + 1 / (1 - 0.8 e^(-i (a + w)))], (frequencies,).

    a = pi / 4.
    """
    total = torch.zeros_like(frequencies)
    for side in (_ANGLE, -_ANGLE):
        phase = side - frequencies
        real = 1 - _RADIUS * phase.cos()
        total += 0.5 * real / (real.square() + (_RADIUS * phase.sin()).square())
    return total


def fit_response(encoder: RelativePositionEncoder, frequency_input: str, *, steps: int = 500) -> float:
    """Train a causal encoder on `resonance`, all channels alike: Adam, cosine schedule, mean square error.

    Args:
        encoder: changed in place.
        frequency_input: "omega" or "cosine".
        steps: of the optimization.

    Returns:
        The root mean square error reached, relative to that of the target.
    """
    frequencies = torch.linspace(0, math.pi, 512, dtype=encoder.dtype)
    wanted = resonance(frequencies)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (response_at(encoder, frequencies, frequency_input)[0] - wanted).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        error = (response_at(encoder, frequencies, frequency_input)[0] - wanted).square().mean()
    return (error / wanted.square().mean()).sqrt().item()
