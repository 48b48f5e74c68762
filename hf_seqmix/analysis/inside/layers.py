"""A view of each layer: the weights and the Jacobian of its mixer on a text, their spectra, and its memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...models.mixers import WeighingMixer
from ...models.pretrained import SeqMixPreTrainedModel
from ..couplings.coupling import jacobian_of
from ..couplings.realized import has_weights, realized_weights
from ..couplings.recording import MixerCall, check_call, record_attention, record_mixers
from ..spectra import DecayFit, SpectrumReport, fit_decay, spectrum
from .memory import Memory, memory_of

__all__ = ["LayerView", "look_inside"]


@dataclass(frozen=True)
class LayerView:
    """One layer of a model.

    Attributes:
        layer: its number.
        mixer: name of the mixer's class.
        weights: (batch, heads, queries, keys), with which the mixer sums values; None where it has none. Of many heads
            or channels, some evenly spread ones; batch is 1 where the weights do not depend on the input.
        heads: their numbers.
        logits: (batch, heads, queries, keys), of all pairs, before any normalization; None where there are none.
        jacobian: (batch, queries, keys), norms; None for models of the library.
    """

    layer: int
    mixer: str
    weights: Tensor | None
    heads: list[int]
    logits: Tensor | None
    jacobian: Tensor | None

    @property
    def spectrum(self) -> SpectrumReport | None:
        """Singular values of the weights, or else of the Jacobian's norms, over their Frobenius norm."""
        coupling = self.jacobian if self.weights is None else self.weights
        return None if coupling is None else spectrum(coupling, normalize="fro")

    @property
    def logit_spectrum(self) -> SpectrumReport | None:
        """Singular values of the logits less the mean of each row, which no softmax sees, over sqrt(queries keys)."""
        return None if self.logits is None else spectrum(self.logits, center="row")

    @property
    def memory(self) -> Memory | None:
        """How far the mixer looks, by its Jacobian, or by its weights for models of the library."""
        coupling = self.weights if self.jacobian is None else self.jacobian
        return None if coupling is None else memory_of(coupling)

    def figures(self) -> dict[str, Any]:
        """Return the layer's row of a table: ranks, decay of the singular values, and memory."""
        row: dict[str, Any] = {"layer": self.layer, "mixer": self.mixer, "heads": len(self.heads)}
        seen, logits, memory = self.spectrum, self.logit_spectrum, self.memory
        if seen is not None:
            row |= {
                "stable_rank": seen.stable_rank.mean().item(),
                "entropy_rank": seen.entropy_rank.mean().item(),
                "eps_rank": seen.eps_rank(0.1).double().mean().item(),
            }
            row |= _decay("weights", seen)
        if logits is not None:
            row |= _decay("logits", logits)
        if memory is not None:
            row |= {"memory": memory.mean, "reach": memory.reach()}
        return row


def look_inside(
    model: PreTrainedModel, batch: Mapping[str, Any], heads: int = 8, probes: int | None = 8
) -> list[LayerView]:
    """Look at every layer of a model while it reads a batch.

    Args:
        model: a model of this package, or one of the library whose attention follows `attn_implementation`.
        batch: its arguments, such as `input_ids` (batch, length) or `pixel_values`; rows without pads.
        heads: at most so many heads, centers or channels of a layer.
        probes: random vectors an output place for the Jacobian; None for its exact norms, see `jacobian_norms`.

    Raises:
        TypeError: for anything but a model, and a batch that is no mapping.
        ValueError: for rows with pads or several sequences, for models whose attention cannot be recorded, and for a
            model of this package that is compiled or wrapped.
    """
    check_call(model, batch)
    if isinstance(model, SeqMixPreTrainedModel):
        return [_view(model, layer, call, heads, probes) for layer, call in enumerate(record_mixers(model, batch))]
    views = []
    for layer, attention in enumerate(record_attention(model, batch)):
        kept = _spread(attention.weights.shape[1], heads)
        weights, logits = attention.weights[:, kept], attention.pairs.logits()[:, kept]
        views.append(LayerView(layer, "softmax attention", weights, kept, logits, None))
    return views


@torch.no_grad()
def _view(model: PreTrainedModel, layer: int, call: MixerCall, heads: int, probes: int | None) -> LayerView:
    weights = realized_weights(call) if has_weights(call.mixer) else None
    kept = [] if weights is None else _spread(weights.shape[1], heads)
    logits = None
    if isinstance(call.mixer, WeighingMixer):
        logits = call.mixer.query_key(call.hidden_states, call.position_ids).logits()[:, kept]
    return LayerView(
        layer,
        type(call.mixer).__name__,
        None if weights is None else weights[:, kept],
        kept,
        logits,
        jacobian_of(model, call, probes),
    )


def _spread(count: int, wanted: int) -> list[int]:
    """Choose at most so many numbers below `count`, from the first to the last."""
    return torch.linspace(0, count - 1, min(count, wanted)).round().long().tolist()


def _decay(name: str, seen: SpectrumReport) -> dict[str, float]:
    """Return the exponent of a power law through the singular values, where there are enough of them to fit one."""
    try:
        fit: DecayFit = fit_decay(seen.samples, floor=seen.resolution)
    except ValueError:
        return {}
    return {f"{name}_exponent": fit.exponent, f"{name}_r2": fit.r2}
