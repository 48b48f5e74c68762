"""Transformers of the approximation theory: attention layers between dense networks, without norms."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ...models.hybrid.attention import rotate
from .targets import require_at_least

__all__ = ["ACTIVATIONS", "POSITIONS", "Coupling", "MultiHeadTransformer", "SingleHeadTransformer", "dense_net"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
"""Name -> module."""

POSITIONS = ("learned", "sinusoidal", "shift", "rotary", "none")
"""Position encodings of `MultiHeadTransformer`."""

_ROTARY_BASE = 10000.0


class Coupling(NamedTuple):
    """What an attention layer computes from one batch.

    Attributes:
        logits: (batch, heads, length, length), (W_Q h(t))^T W_K h(s) at [t, s], for all s, later ones too.
        weights: (batch, heads, length, length), what the softmax makes of them; rows sum to 1.
        queries: (batch, heads, length, head_size), W_Q h(t), rotated where positions are.
        keys: (batch, heads, length, head_size), W_K h(s), the same.
    """

    logits: Tensor
    weights: Tensor
    queries: Tensor
    keys: Tensor


def dense_net(inputs: int, outputs: int, width: int, depth: int, activation: str = "relu") -> nn.Sequential:
    """Return a dense network of `depth` linear layers, `width` units between them, as PyTorch initializes it.

    Raises:
        ValueError: a number is below 1, or the activation is unknown.
    """
    require_at_least(inputs=(inputs, 1), outputs=(outputs, 1), width=(width, 1), depth=(depth, 1))
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; give one of {', '.join(ACTIVATIONS)}.")
    sizes = [inputs, *[width] * (depth - 1), outputs]
    layers: list[nn.Module] = []
    for size, following in itertools.pairwise(sizes):
        layers += [nn.Linear(size, following), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


class MultiHeadTransformer(nn.Module):
    """Layers of attention with several heads between dense networks, without norms and a scale of the logits.

    H_t(x) = F(a_L(h_L)(t)),   h_1(s) = f_1(x(s)) + e(s),   h_(l + 1) = f_(l + 1)(a_l(h_l)) [+ h_l],

    a_l(h)(t) = heads side by side of sum_s softmax_s[(W_Q h(t))^T W_K h(s)] W_V h(s),

    f_1: R^d -> R^n, f_l: R^(heads m_v) -> R^n and F: R^(heads m_v) -> R dense, W_Q, W_K in R^(m_h x n) and W_V in
    R^(m_v x n) of each head. The logits of a head have at most the rank m_h. With `residual`, h_l is added between
    layers; F reads the last sums alone in both cases, as in the paper.

    Positions: e(s) is a parameter ("learned"), sin and cos of s / 10000^(2 i / n) ("sinusoidal"), or 0. "shift" is the
    literal theory, which wants x(s) in disjoint sets: f_1 reads x(s) + 2 s. "rotary" turns pairs of channels of
    queries and keys of every layer by angles s / 10000^(2 i / m_h), so logits depend on t - s. With "none", the model
    commutes with permutations of the tokens.

    Source: Jiang, Li 2023 (arXiv 2305.18475), whose equation 5 is the case of one head and one layer. Several heads
    and layers are among the paper's open directions, so this form is ours. Open choices, made here: codes are added to
    f_1(x(s)), activations are ReLUs, and a depth of 3 is three linear layers.

    Args:
        input_size: d.
        num_heads: heads of each layer.
        num_layers: attention layers.
        residual: whether h_l is added to what the layer makes of h_l.
        hidden_size: n.
        head_size: m_h of each head, even for rotary positions.
        value_size: m_v of each head.
        ff_width: m_FF.
        ff_depth: linear layers of each dense network.
        num_outputs: outputs a token; None for outputs (batch, length).
        positions: one of `POSITIONS`.
        max_length: longest input of learned positions.
        is_causal: whether the softmax is over s <= t.
        activation: one of `ACTIVATIONS`.

    Raises:
        ValueError: a number is below 1, a name is unknown, or positions are rotary and `head_size` is odd.
    """

    def __init__(
        self,
        input_size: int = 1,
        *,
        num_heads: int = 1,
        num_layers: int = 1,
        residual: bool = False,
        hidden_size: int = 32,
        head_size: int = 32,
        value_size: int = 32,
        ff_width: int = 128,
        ff_depth: int = 3,
        num_outputs: int | None = None,
        positions: str = "learned",
        max_length: int = 32,
        is_causal: bool = False,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        require_at_least(
            hidden_size=(hidden_size, 1),
            head_size=(head_size, 1),
            value_size=(value_size, 1),
            num_heads=(num_heads, 1),
            num_layers=(num_layers, 1),
            max_length=(max_length, 1),
        )
        if positions not in POSITIONS:
            raise ValueError(f"positions is {positions!r}; give one of {', '.join(POSITIONS)}.")
        is_rotary = positions == "rotary"
        if is_rotary and head_size % 2:
            raise ValueError(
                f"head_size is {head_size}; rotary positions turn pairs of channels, so give an even one."
            )
        self.input_size, self.hidden_size, self.num_heads, self.residual = input_size, hidden_size, num_heads, residual
        self.num_outputs, self.positions, self.is_causal = num_outputs, positions, is_causal
        if positions == "learned":
            self.position_codes = nn.Parameter(torch.randn(max_length, hidden_size))
        sums = num_heads * value_size
        self.dense = nn.ModuleList(
            dense_net(size, hidden_size, ff_width, ff_depth, activation)
            for size in [input_size, *[sums] * (num_layers - 1)]
        )
        self.attention = nn.ModuleList(
            _Attention(hidden_size, head_size, value_size, num_heads, is_causal, is_rotary) for _ in range(num_layers)
        )
        self.outer = dense_net(sums, 1 if num_outputs is None else num_outputs, ff_width, ff_depth, activation)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return H(x), (batch, length) or (batch, length, num_outputs), of inputs (batch, length, input_size).

        Raises:
            ValueError: the inputs have another shape, or are longer than learned positions reach.
        """
        last = len(self.attention) - 1
        hidden = self.attention[last](self._hidden(inputs, last))
        outputs = self.outer(hidden)
        return outputs.squeeze(-1) if self.num_outputs is None else outputs

    def coupling(self, inputs: Tensor, layer: int = -1) -> Coupling:
        """Return logits, weights, queries and keys of a layer, by default the last, of inputs as `forward` has.

        Raises:
            ValueError: there is no such layer, or `inputs` has another shape.
        """
        count = len(self.attention)
        if not -count <= layer < count:
            raise ValueError(f"layer is {layer}; the model has the layers 0 to {count - 1}.")
        attention = cast("_Attention", self.attention[layer])
        return attention.coupling(self._hidden(inputs, layer % count))

    def _hidden(self, inputs: Tensor, layer: int) -> Tensor:
        """Return h of a layer, (batch, length, hidden_size)."""
        if inputs.ndim != 3 or inputs.shape[-1] != self.input_size:
            raise ValueError(f"inputs have the shape {tuple(inputs.shape)}; give (batch, length, {self.input_size}).")
        places = torch.arange(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)
        if self.positions == "shift":
            hidden = self.dense[0](inputs + 2 * places[:, None])
        else:
            hidden = self.dense[0](inputs) + self._codes(places)
        for attention, dense in zip(self.attention[:layer], self.dense[1 : layer + 1], strict=True):
            following = dense(attention(hidden))
            hidden = hidden + following if self.residual else following
        return hidden

    def _codes(self, places: Tensor) -> Tensor:
        """Return e(s), (length, hidden_size), of places (length,)."""
        if self.positions in ("none", "rotary"):
            return places.new_zeros(len(places), self.hidden_size)
        if self.positions == "sinusoidal":
            return _sinusoids(places, self.hidden_size)
        if len(places) > len(self.position_codes):
            raise ValueError(
                f"inputs have {len(places)} tokens and there are {len(self.position_codes)} learned positions; give a"
                " larger max_length."
            )
        return self.position_codes[: len(places)]


class SingleHeadTransformer(MultiHeadTransformer):
    """Attention of one head between two dense networks, without norms, residuals and a scale of the logits.

    H_t(x) = F(sum_s softmax_s[(W_Q h(t))^T W_K h(s)] W_V h(s)),   h(s) = f(x(s)) + e(s),

    f: R^d -> R^n and F: R^m_v -> R dense, W_Q, W_K in R^(m_h x n), W_V in R^(m_v x n). The budget is (n, m_h, m_v,
    m_FF) = (hidden_size, head_size, value_size, ff_width).

    Source: Jiang, Li 2023 (arXiv 2305.18475), equation 5, with the sizes of tables 2 and 3 by default. For the choices
    that the paper leaves open, see `MultiHeadTransformer`.

    Args:
        input_size: d.
        **sizes: as `MultiHeadTransformer` but for heads, layers and residuals.

    Raises:
        ValueError: as `MultiHeadTransformer`.
    """

    def __init__(self, input_size: int = 1, **sizes: Any) -> None:
        super().__init__(input_size, num_heads=1, num_layers=1, residual=False, **sizes)


class _Attention(nn.Module):
    """sum_s softmax_s[(W_Q h(t))^T W_K h(s)] W_V h(s), heads side by side: (batch, length, heads value_size)."""

    def __init__(
        self, hidden_size: int, head_size: int, value_size: int, num_heads: int, is_causal: bool, is_rotary: bool
    ) -> None:
        super().__init__()
        self.num_heads, self.is_causal, self.is_rotary = num_heads, is_causal, is_rotary
        self.query = nn.Linear(hidden_size, num_heads * head_size, bias=False)
        self.key = nn.Linear(hidden_size, num_heads * head_size, bias=False)
        self.value = nn.Linear(hidden_size, num_heads * value_size, bias=False)

    def coupling(self, hidden: Tensor) -> Coupling:
        queries, keys = self._heads(self.query(hidden)), self._heads(self.key(hidden))
        if self.is_rotary:
            places = torch.arange(hidden.shape[1], device=hidden.device)[None]
            queries, keys = rotate(queries, places, _ROTARY_BASE), rotate(keys, places, _ROTARY_BASE)
        logits = queries @ keys.transpose(-1, -2)
        masked = logits
        if self.is_causal:
            later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
            masked = logits.masked_fill(later, -math.inf)
        return Coupling(logits, masked.softmax(dim=-1), queries, keys)

    def forward(self, hidden: Tensor) -> Tensor:
        sums = self.coupling(hidden).weights @ self._heads(self.value(hidden))
        return sums.transpose(1, 2).flatten(2)

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (batch, heads, length, size)


def _sinusoids(places: Tensor, size: int) -> Tensor:
    """Return (length, size): sin and cos of s / 10000^(2 i / size), all sines first."""
    half = (size + 1) // 2
    rates = 10000 ** (-torch.arange(half, dtype=places.dtype, device=places.device) / half)
    angles = places[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :size]
