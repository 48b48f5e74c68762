"""Plots of the responses of frequency-domain kernels, with their decay beside the predicted one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.toeplitz.encoder import RelativePositionEncoder
from ..plots.figures import COLORS, PathLike, draw_grid
from .decay import kernel_taps
from .response_tails import response_at, response_tail

__all__ = ["ResponseExample", "plot_responses", "response_example"]

_WINDOW = 1.15  # an envelope is the largest tap between t and 1.15 t, of four at least, since taps pass through zero


@dataclass(frozen=True)
class ResponseExample:
    """What is drawn of some encoders: the first channel of the first, and the typical decay of all.

    Attributes:
        frequencies, response: (points,) in [0, pi], and R.
        taps: (lags,) of the same channel, from lag 0.
        lags: (places,) at which envelopes are given.
        envelope: (places,) largest |k| / max |k| just above each lag, median over encoders and channels.
        predicted: (places,) the same of the predicted tail; None where there is no prediction.
    """

    frequencies: Tensor
    response: Tensor
    taps: Tensor
    lags: Tensor
    envelope: Tensor
    predicted: Tensor | None


def response_example(
    encoders: Sequence[RelativePositionEncoder], frequency_input: str, is_causal: bool = True, fft_length: int = 2**15
) -> ResponseExample:
    """Evaluate encoders, in float64, for `plot_responses`; of bidirectional kernels R and the lags from 0 on.

    Args:
        encoders: one or more, all with the same activation.
        frequency_input: "omega" or "cosine".
        is_causal: direction.
        fft_length: F; lags to F / 8 are used.
    """
    frequencies = torch.linspace(0, math.pi, 1025, dtype=torch.float64)
    with torch.no_grad():
        response = response_at(encoders[0], frequencies, frequency_input, is_causal)[0][0]
    longest = fft_length // 8
    places = torch.logspace(0, math.log2(longest / _WINDOW), 120, base=2).round().long().unique()
    predictable = frequency_input == "omega" or isinstance(encoders[0].activation, torch.nn.ReLU)
    measured, predicted, first = [], [], torch.empty(0)
    for number, encoder in enumerate(encoders):
        taps = kernel_taps(encoder, frequency_input, fft_length, is_causal)
        start = 0 if is_causal else fft_length // 2
        taps = taps[:, start : start + longest + 1]
        first = taps[0] if number == 0 else first
        largest = taps.abs().amax(dim=1, keepdim=True)
        measured.append(_envelope(taps / largest, places))
        if predictable:
            lags = torch.arange(longest + 1).clamp(min=1)
            tail = response_tail(encoder, frequency_input, is_causal)
            predicted.append(_envelope(tail.taps(lags) / largest, places))
    return ResponseExample(
        frequencies,
        response,
        first,
        places,
        torch.cat(measured).median(dim=0).values,
        torch.cat(predicted).median(dim=0).values if predicted else None,
    )


def _envelope(taps: Tensor, places: Tensor) -> Tensor:
    """Return (channels, places): the largest magnitude from each place to 1.15 times as far, or three lags on."""
    windows = [taps[:, t : max(t + 4, math.ceil(_WINDOW * t))].abs().amax(dim=1) for t in places.tolist()]
    return torch.stack(windows, dim=1)


def plot_responses(
    examples: Mapping[str, Mapping[str, ResponseExample]],
    path: PathLike,
    *,
    title: str | None = None,
    target: tuple[Tensor, Tensor] | None = None,
    shown_lags: int = 24,
) -> None:
    """Draw a row of panels for each input mode: responses, impulse responses, decay with predicted tails (dotted).

    Args:
        examples: input mode -> activation -> example.
        path: image file; the extension gives the format.
        title: above the figure.
        target: response (1025 frequencies from 0 to pi) and taps (F / 8 or more) that the encoders were fitted to,
            drawn in gray.
        shown_lags: lags of the impulse responses.

    Raises:
        ValueError: there is nothing to draw.
    """
    if not examples or not all(examples.values()):
        raise ValueError("there is nothing to draw: give at least one example for each input mode.")
    lowest = min(example.envelope.min().item() for group in examples.values() for example in group.values())
    floor = max(1e-18, lowest / 10)  # the same in every row
    with draw_grid(path, 12.5, 3.4 * len(examples), len(examples), 3, title) as (_, rows):
        for (mode, by_activation), (response, impulse, decay) in zip(examples.items(), rows, strict=True):
            if target is not None:
                x = torch.linspace(0, 1, target[0].shape[0])
                response.plot(x, target[0], color="#999999", linewidth=4, alpha=0.6, label="target")
                impulse.plot(target[1][:shown_lags], color="#999999", linewidth=4, alpha=0.6)
                places = next(iter(by_activation.values())).lags
                envelope = _envelope((target[1] / target[1].abs().max())[None], places)[0]
                decay.loglog(places, envelope, color="#999999", linewidth=4, alpha=0.6)
            for index, (activation, example) in enumerate(by_activation.items()):
                color = COLORS[index % len(COLORS)]
                response.plot(example.frequencies / math.pi, example.response, color=color, label=activation)
                taps = example.taps[:shown_lags]
                impulse.plot(
                    taps / example.taps.abs().max() if target is None else taps,
                    color=color,
                    marker="o",
                    markersize=3,
                    linewidth=1.2,
                )
                decay.loglog(example.lags, example.envelope, color=color, linewidth=1.6)
                if example.predicted is not None:
                    far = example.lags >= 8
                    style = {"color": "black", "linewidth": 1.1, "linestyle": (0, (1, 2))}
                    decay.loglog(example.lags[far], example.predicted[far], **style)
            read = "cos ω" if mode == "cosine" else "ω"
            response.set(title=f"encoder of {read}: response", xlabel="frequency (of Nyquist)", ylabel="R")
            response.legend(fontsize=9)
            scale = "k(t) / max |k|" if target is None else "k(t)"
            impulse.set(title="impulse response", xlabel="lag (tokens)", ylabel=scale)
            decay.set(title="decay; dotted: predicted tail", xlabel="lag (tokens)", ylabel="|k| / max |k|")
            decay.set_ylim(floor, 3)
