"""What the mixers of a model are called with: the inputs of each layer, and the queries and keys of attention."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..._compat import register_attention
from ...models.block import SeqMixBlock
from ...models.hybrid.attention import attention_weights
from ...models.mixers import QueryKey
from ...models.pretrained import SeqMixPreTrainedModel
from ...modules.evaluation import in_evaluation
from ...ops.layout import TokenLayout

__all__ = ["PADS", "AttentionCall", "MixerCall", "check_call", "record_attention", "record_mixers"]

PADS = "a row has pads or holds several sequences: give rows of equal length without an attention_mask."
"""What is said of rows that have no weights for each pair of places."""

_NAME = "seqmix_recording"
"""Under which the library knows the attention that is recorded."""

_NOT_RECORDED = ("softcap", "s_aux")
"""Options of attention in the library that change weights otherwise than a bias."""


@dataclass(frozen=True)
class MixerCall:
    """One call of a mixer.

    Attributes:
        mixer: the module.
        hidden_states: (batch, length, hidden_size), what it was given.
        layout: where the real tokens lie.
        position_ids: (batch or 1, length), or None.
    """

    mixer: nn.Module
    hidden_states: Tensor
    layout: TokenLayout
    position_ids: Tensor | None

    @property
    def is_whole(self) -> bool:
        """Whether each row is one sequence without pads."""
        return self.layout.mask is None and self.layout.sequence_ids is None


@dataclass(frozen=True)
class AttentionCall:
    """One call of attention in a model of the library.

    Attributes:
        pairs: queries and keys, (batch, heads, length, head_dim), keys repeated where heads share them.
        weights: (batch, heads, queries, keys), after the softmax.
    """

    pairs: QueryKey
    weights: Tensor


def check_call(model: Any, batch: Any) -> None:
    """Refuse what is no model or no batch.

    Args:
        model: a model of this package, or of the library.
        batch: its arguments.

    Raises:
        TypeError: for anything but a model, and a batch that is no mapping, such as a tensor.
        ValueError: for a model of this package that is compiled or wrapped.
    """
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise TypeError(f"a {kind} was given; it must be a model, such as one that from_pretrained opened.")
    if not isinstance(model, PreTrainedModel) and any(isinstance(x, SeqMixPreTrainedModel) for x in model.modules()):
        raise ValueError(f"{kind} wraps a model of this package: give the model inside.")
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"batch is a {type(batch).__name__}; it must map names of the model's arguments to tensors, such as "
            "{'input_ids': ids}."
        )


def record_mixers(model: nn.Module, batch: Mapping[str, Any]) -> list[MixerCall]:
    """Run a model of this package, and return how the mixer of each layer was called, in order.

    Args:
        model: a model of this package, with or without a head.
        batch: its arguments, such as `input_ids` (batch, length) and `attention_mask`.
    """
    calls: list[MixerCall] = []

    def note(mixer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        layout = options["attention_mask"]
        assert isinstance(layout, TokenLayout)
        calls.append(MixerCall(mixer, inputs[0].detach(), layout, options["position_ids"]))

    blocks = [module for module in model.modules() if isinstance(module, SeqMixBlock)]
    hooks = [block.mixer.register_forward_pre_hook(note, with_kwargs=True) for block in blocks]
    try:
        with in_evaluation(model), torch.no_grad():
            model(**({**batch, "use_cache": False} if "input_ids" in batch else batch))
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def record_attention(model: PreTrainedModel, batch: Mapping[str, Any]) -> list[AttentionCall]:
    """Run a model of the library, and return the attention of each layer, in order.

    For the run, the model computes attention by a function that keeps queries, keys and weights.

    Args:
        model: any model of the library whose attention follows `attn_implementation`.
        batch: its arguments.

    Raises:
        ValueError: for rows with pads, and if no layer of the model called that function, or one does more to its
            logits than that: caps them (Gemma 2), or adds a sink (GPT-OSS).
    """
    mask = batch.get("attention_mask")
    if mask is not None and mask.ndim == 2 and not mask.all():
        raise ValueError(PADS)
    calls: list[AttentionCall] = []
    token = _recorded.set(calls)
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(_NAME)
        with in_evaluation(model), torch.no_grad():
            model(**batch)
    finally:
        model.set_attn_implementation(before)
        _recorded.reset(token)
    if not calls:
        raise ValueError(
            f"{type(model).__name__} has no layer whose attention follows attn_implementation: ask for the Jacobian "
            "(source='jacobian') instead."
        )
    return calls


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Compute attention as the library wants it of a function, and note the call."""
    for name in _NOT_RECORDED:
        if options.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} changes its logits by {name}, so that queries and keys do not tell its "
                "weights: take a model without, or its own output_attentions=True."
            )
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    pairs = QueryKey(query, key, query.shape[-1] ** -0.5 if scaling is None else scaling, position_bias)
    logits = pairs.logits()
    weights = attention_weights(logits if attention_mask is None else logits + attention_mask)
    calls = _recorded.get()
    if calls is not None:
        calls.append(AttentionCall(pairs, weights))
    return (weights.to(value.dtype) @ value).transpose(1, 2).contiguous(), weights


_recorded: ContextVar[list[AttentionCall] | None] = ContextVar("recorded_attention", default=None)

register_attention(_NAME, _attend)
