"""The matrices that mixers realize: with which weight each token goes into each other one."""

import torch
from torch import Tensor, nn

from ...models.mixers import WeighingMixer
from ...models.poly_transformer.gated_group import GatedGroup
from ...models.poly_transformer.mixer import PolynomialMixer
from ...ops.layout import TokenLayout
from ...ops.polynomial.power_attention import power_attention_weights
from .recording import PADS, MixerCall

__all__ = ["check_head", "has_weights", "realized_operator", "realized_weights"]

_MOST_NUMBERS = 2**24
"""Of one call of an operator."""


def realized_weights(call: MixerCall, head: int | None = None) -> Tensor:
    """Return the weights with which a mixer sums values.

    * Attention and IPA: those of `output_attentions`.
    * TNN, FD-TNN, SKI-TNN and the short convolution: the matrix of the operator, T[t, s] = k(t - s), each channel a
      head. Also for polynomials with static mixing, whose factors lie side by side.
    * Polynomials of degree 2 < d <= 3: <q_t, k_s> / (n_t sqrt(width)), n_t the number of tokens that t sees; with
      gates, powers and denominators, the matrix of `power_attention_weights`.

    Args:
        call: of the mixer, with rows without pads.
        head: only this head, center or channel.

    Returns:
        (batch, heads, queries, keys), 0 at hidden keys; batch is 1 where the weights do not depend on the input.

    Raises:
        ValueError: for rows with pads or several sequences, a head that is not there, or a mixer without weights.
    """
    if not call.is_whole:
        raise ValueError(PADS)
    mixer, hidden_states = call.mixer, call.hidden_states
    if isinstance(mixer, WeighingMixer):
        _, weights = mixer(
            hidden_states, attention_mask=TokenLayout(), position_ids=call.position_ids, output_attentions=True
        )
        return _of_head(weights, head)
    operator = getattr(mixer, "operator", None)
    if operator is not None:
        channels = _channels(mixer, hidden_states)
        if head is not None:
            check_head(head, channels)
        like = hidden_states.new_empty(hidden_states.shape[1], channels)
        return realized_operator(operator, like, head, call.layout.grid_size).unsqueeze(0)
    if isinstance(mixer, PolynomialMixer) and has_weights(mixer):
        return _of_head(_bilinear_weights(mixer, hidden_states), head)
    raise ValueError(
        f"{type(mixer).__name__} does not sum values with weights of pairs of tokens: ask for the Jacobian "
        "(source='jacobian') instead."
    )


def has_weights(mixer: nn.Module) -> bool:
    """Return whether a mixer sums values with weights of pairs of tokens, see `realized_weights`."""
    if isinstance(mixer, WeighingMixer) or getattr(mixer, "operator", None) is not None:
        return True
    # Of three factors, whatever power makes of their degree.
    return isinstance(mixer, PolynomialMixer) and all(len(group.factors) == 3 for group in mixer.groups)


def check_head(head: int, heads: int) -> None:
    """Raise a `ValueError` unless a layer with so many heads has this one."""
    if not 0 <= head < heads:
        raise ValueError(f"head is {head}, but the layer has {heads}, 0 to {heads - 1}.")


@torch.no_grad()
def realized_operator(
    operator: nn.Module, like: Tensor, channel: int | None = None, grid_size: tuple[int, int] | None = None
) -> Tensor:
    """Return the matrix of a linear operator along the sequence, by its values for unit vectors.

    Args:
        operator: called with (batch, length, channels) and a layout; channels do not meet.
        like: (length, channels), which says the sizes, the dtype and the device.
        channel: only this one.
        grid_size: (height, width) where the tokens are the patches of an image.

    Returns:
        (channels, queries, keys).
    """
    length, channels = like.shape
    at_once = max(1, _MOST_NUMBERS // max(1, length * channels))
    columns = []
    for keys in torch.arange(length, device=like.device).split(at_once):
        units = like.new_zeros(len(keys), length, channels)
        units[torch.arange(len(keys)), keys] = 1
        values = operator(units, TokenLayout(grid_size=grid_size), None)  # (keys, queries, channels)
        columns.append(values if channel is None else values[..., channel : channel + 1])
    return torch.cat(columns).permute(2, 1, 0)


@torch.no_grad()
def _channels(mixer: nn.Module, hidden_states: Tensor) -> int:
    """Return how many channels the operator of a mixer mixes."""
    if isinstance(mixer, PolynomialMixer):
        return sum(len(group.factors) * group.num_heads * group.head_dim for group in mixer.groups)
    # Of its output, since an adapter may wrap the layer.
    assert isinstance(mixer.v_proj, nn.Module)
    return mixer.v_proj(hidden_states[:1, :1]).shape[-1]


@torch.no_grad()
def _bilinear_weights(mixer: PolynomialMixer, hidden_states: Tensor) -> Tensor:
    length = hidden_states.shape[1]
    visible = torch.ones((length, length), dtype=torch.bool, device=hidden_states.device)
    if mixer.is_causal:
        visible = visible.tril()
    counts = visible.sum(dim=-1, keepdim=True)
    parts = []
    for group in mixer.groups:
        if isinstance(group, GatedGroup):
            parts.append(_gated_weights(group, hidden_states, mixer.is_causal))
            continue
        query, key = (
            factor.unflatten(-1, (-1, group.head_dim))
            .transpose(1, 2)
            .to(torch.promote_types(factor.dtype, torch.float32))
            for factor in group.project(hidden_states)[:2]
        )
        parts.append(query @ key.transpose(-1, -2) * group.head_dim**-0.5 * visible / counts)
    return torch.cat(parts, dim=1)


def _gated_weights(group: GatedGroup, hidden_states: Tensor, causal: bool) -> Tensor:
    query, key, _, *gates = group.project(hidden_states)
    return power_attention_weights(
        query.unflatten(-1, (-1, group.head_dim)),
        key.unflatten(-1, (-1, group.head_dim)),
        gates[0] if gates else None,
        power=group.power,
        denominator=group.denominator,
        causal=causal,
    )


def _of_head(weights: Tensor, head: int | None) -> Tensor:
    if head is None:
        return weights
    check_head(head, weights.shape[1])
    return weights[:, head : head + 1]
