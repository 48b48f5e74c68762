"""How much each token counts for each other one, in any model."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...models.configuration import check_choice
from ...models.mixers import QueryKey, WeighingMixer
from ...models.pretrained import SeqMixPreTrainedModel
from ...modules.evaluation import in_evaluation
from ...ops.layout import TokenLayout
from .jacobian import jacobian_norms
from .realized import check_head, realized_weights
from .recording import PADS, MixerCall, check_call, record_attention, record_mixers

__all__ = ["SOURCES", "coupling", "jacobian_of", "queries_and_keys"]

SOURCES = ("logits", "weights", "jacobian")
"""What `coupling` may be read from."""


def coupling(
    model: PreTrainedModel,
    batch: Mapping[str, Any],
    layer: int = 0,
    head: int | None = None,
    source: str = "weights",
    probes: int | None = None,
) -> Tensor:
    """Return how much each token counts for each other one in a layer of a model.

    * "logits": S[t, s] = scale q_t . k_s + bias before any normalization and mask, for attention and IPA: the rho of
      Jiang and Li (arXiv 2305.18475), equation 8.
    * "weights": with what the mixer multiplies values, see `realized_weights`. Not for polynomials of other degrees
      than 2 < d <= 3.
    * "jacobian": |d y_t / d x_s|, see `jacobian_norms`, y the mixer's output and x its input. The one source that is
      defined for all mixers.

    Models of the library have "logits" and "weights" only, where their attention follows `attn_implementation`.

    Args:
        model: a model of this package, or of the library.
        batch: its arguments, on its device: `input_ids` (batch, length), `inputs_embeds` or `pixel_values`. Rows have
            equal length and no pads.
        layer: number of the layer, from 0 on; negative numbers count from the end.
        head: head of attention, center of IPA, or channel of a Toeplitz operator; None for all. Not for "jacobian".
        source: one of `SOURCES`.
        probes: for "jacobian", random vectors an output place instead of the exact norms.

    Returns:
        (batch, heads, queries, keys); (batch, queries, keys) for one head and for "jacobian". Batch is 1 where the
        weights do not depend on the input.

    Raises:
        TypeError: for anything but a model, a batch that is no mapping, and a layer that is no integer.
        ValueError: for an unknown source, a layer or head that is not there, rows with pads, logits or weights of a
            mixer that has none, and a model of this package that is compiled or wrapped.
    """
    check_call(model, batch)
    check_choice("source", source, SOURCES)
    if source == "jacobian" and head is not None:
        raise ValueError(f"head is {head}, but the Jacobian is one of all heads of a layer: leave head out.")
    if not isinstance(model, SeqMixPreTrainedModel):
        if source == "jacobian":
            raise ValueError(
                "source is 'jacobian', which asks for a model of this package: for another one, give its layer to "
                "`jacobian_norms`."
            )
        attention = _at(record_attention(model, batch), layer)
        return _only(attention.pairs.logits() if source == "logits" else attention.weights, head)
    call = _at(record_mixers(model, batch), layer)
    if source == "jacobian":
        return jacobian_of(model, call, probes)
    if source == "weights":
        with torch.no_grad():
            weights = realized_weights(call, head)
        return weights if head is None else weights[:, 0]
    return _only(_pairs(call).logits(), head)


def queries_and_keys(model: PreTrainedModel, batch: Mapping[str, Any], layer: int = 0, head: int = 0) -> QueryKey:
    """Return the queries and keys of one head of attention or IPA, to pool over many inputs.

    rho(x_t, x_s) = scale q_t . k_s is a function of two tokens (and positions), so that the queries and keys of
    different inputs may be paired: see `cross_spectrum`.

    Args:
        model: as for `coupling`.
        batch: as for `coupling`.
        layer: number of the layer.
        head: number of the head or center.

    Returns:
        Queries and keys, (batch, 1, length, width), with the scale, and the bias where there is one.

    Raises:
        TypeError: as for `coupling`.
        ValueError: likewise.
    """
    check_call(model, batch)
    if isinstance(model, SeqMixPreTrainedModel):
        pairs = _pairs(_at(record_mixers(model, batch), layer))
    else:
        pairs = _at(record_attention(model, batch), layer).pairs
    check_head(head, pairs.query.shape[1])
    one = slice(head, head + 1)
    bias = None if pairs.bias is None else pairs.bias[:, one]
    return QueryKey(pairs.query[:, one], pairs.key[:, one], pairs.scale, bias)


def _pairs(call: MixerCall) -> QueryKey:
    if not isinstance(call.mixer, WeighingMixer):
        raise ValueError(
            f"{type(call.mixer).__name__} has no logits, since it weighs no tokens by their content: ask for "
            "source='weights' or 'jacobian'."
        )
    _check_whole(call)
    with torch.no_grad():
        return call.mixer.query_key(call.hidden_states, call.position_ids)


def jacobian_of(model: nn.Module, call: MixerCall, probes: int | None = None) -> Tensor:
    """Return the norms of the Jacobian of a mixer at what it was called with, (batch, queries, keys).

    Args:
        model: the mixer's, which has no dropout meanwhile.
        call: of the mixer, with rows without pads.
        probes: see `jacobian_norms`.
    """
    _check_whole(call)
    layout = TokenLayout(grid_size=call.layout.grid_size)

    def norms(inputs: Tensor, position_ids: Tensor | None) -> Tensor:
        return jacobian_norms(
            lambda x: call.mixer(x, attention_mask=layout, position_ids=position_ids), inputs, probes
        )

    with in_evaluation(model):
        if call.position_ids is None or len(call.position_ids) == 1:
            return norms(call.hidden_states, call.position_ids)
        rows = zip(call.hidden_states.split(1), call.position_ids.split(1), strict=True)
        return torch.cat([norms(*row) for row in rows])


def _check_whole(call: MixerCall) -> None:
    if not call.is_whole:
        raise ValueError(PADS)


def _at(calls: list[Any], layer: Any) -> Any:
    if not isinstance(layer, Integral):
        raise TypeError(f"layer is {layer!r}; it must be an integer, the number of a layer.")
    layer = int(layer)
    if not -len(calls) <= layer < len(calls):
        raise ValueError(f"layer is {layer}, but the model has {len(calls)} layers, 0 to {len(calls) - 1}.")
    return calls[layer]


def _only(x: Tensor, head: int | None) -> Tensor:
    """Choose one head of (batch, heads, queries, keys), or none."""
    if head is None:
        return x
    check_head(head, x.shape[1])
    return x[:, head]
