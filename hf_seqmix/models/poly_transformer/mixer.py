"""The polynomial mixer: products of d projections of the tokens, mixed by content or by position."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...modules.norms import MaskedBatchNorm, NoNorm, SimpleRMSNorm, StaticNorm
from ...modules.sharding import whole_values
from ...ops.common.dispatch import cast
from ...ops.layout import TokenLayout
from ..mixers import NumberedModule, layout_of_call
from .content_mixing import Group, continue_sums, mix, mix_packed
from .factor_linear import FactorLinear
from .gated_checks import check_gated
from .gated_group import GatedGroup
from .group import PolynomialGroup
from .mixer_checks import check_mixer
from .static_mixing import build_static_operator

__all__ = ["PolynomialMixer"]


class PolynomialMixer(NumberedModule):
    """Sequence mixing by a polynomial of degree d in the tokens: y = N(product of d projections) W_o + b_o.

    With `mixing` "content" the product is that of `polynomial_product`. Degree 3 is linear attention without softmax,
    feature map or denominator, degree 2 a mean over the past, and higher degrees compose the two. With "toeplitz" and
    "triangular" the product is prod_k (M_k x W_k), elementwise, with a learned matrix M_k over positions for each head
    and factor (see `static_mixing.py`): the same degree without content-dependent mixing.

    A fractional degree d, such as 2.718, is the product of degree ceil(d) with one factor through the signed power
    sgnpow(z, d - floor(d)). The projection of that factor has low rank, so that the factors have d hidden_size^2
    weights, biases apart. With `degree_form` "soft" the mixer adds degrees 2, 3 and 4 over shared projections, with
    the weights softmax(`degree_logits`).

    With `forget_gate` the past fades. D_ts = f_(s+1) ... f_t is the product of the gates f = sigmoid(x W_f + b_f) from
    then on, and stands in each sum over the past and in the count that divides the sum (see `gated_product`). With
    `kernel_power` p weights are <q_t, k_s>^p. The state of a head is then C(head_dim + p - 1, p) x head_dim numbers.

    The norm N (`normalization`) is one of these:

    * "rms": each head is divided by its root mean square, in float32, and the mixer is no polynomial any more.
    * "static": a learned scale for each channel.
    * "batch": statistics over real tokens, affine in evaluation.
    * "none".

    `mixer(hidden_states, attention_mask=None, past_key_values=None)` maps (batch, length, hidden_size) to the same
    shape.

    Source: Navon 2021 (unpublished notes). The notes ask for a fractional degree without giving a form; the form is
    ours.

    Args:
        hidden_size: channels in and out.
        degree: d, at least 2; an integer, or a fraction.
        num_heads: number of heads; they must divide `hidden_size`.
        head_degrees: the degree of each head, instead of `degree`. Heads of one degree share a group of projections.
        degree_form: "cumsum" or "gate", for even degrees from 4 on (see `polynomial_product`); or "soft".
        mixing: "content", "toeplitz" or "triangular".
        max_positions: positions that static mixing knows.
        is_causal: whether a token sees the past and itself only.
        use_bias: whether projections are affine. Without, degree 3 is even in every token but the last.
        normalization: "rms", "static", "batch" or "none".
        norm_eps: its square is added to the mean square of "rms", itself to the variance of "batch".
        forget_gate: whether sums over the past fade by a gate a head and token; for causal mixers of integer degrees.
        kernel_power: p, from 2 on for degree 3 with <q, k>^p in place of <q, k>, which makes the degree 2 p + 1.
        denominator: whether the sum of the weights <q, k>^p divides, for even p.
        degree_target, degree_penalty: "soft" adds degree_penalty (mean degree - degree_target)^2 to the loss.
        layer_idx: which layer of a cache is this mixer's. Mixers that share a cache need a number each: where two have
            the same, outputs are wrong in silence.

    Raises:
        ValueError: for a degree below 2, heads that do not divide the channels, a list of another length than the
            heads, an unknown form, mixing or norm, a form that does not belong to the degrees, and gates, powers and
            denominators where there are none (`gated_checks.py`).
    """

    def __init__(
        self,
        hidden_size: int,
        degree: float = 3,
        num_heads: int = 8,
        *,
        head_degrees: Sequence[float] | None = None,
        degree_form: str = "cumsum",
        mixing: str = "content",
        max_positions: int = 512,
        is_causal: bool = True,
        use_bias: bool = True,
        normalization: str = "rms",
        norm_eps: float = 1e-6,
        forget_gate: bool = False,
        kernel_power: int = 1,
        denominator: bool = False,
        degree_target: float = math.e,
        degree_penalty: float = 0.01,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        degrees = [degree] * num_heads if head_degrees is None else list(head_degrees)
        check_mixer(hidden_size, num_heads, degrees, degree_form, mixing, normalization)
        check_gated(
            degrees, degree_form, mixing, is_causal, hidden_size // num_heads, forget_gate, kernel_power, denominator
        )
        self.num_heads = num_heads
        self.is_causal = is_causal
        self.normalization = normalization
        self.degree_target = degree_target
        self.degree_penalty = degree_penalty
        width = hidden_size // num_heads
        build: Callable[..., Group] = PolynomialGroup
        if forget_gate or kernel_power > 1 or denominator:
            build = partial(GatedGroup, forget_gate=forget_gate, power=kernel_power, denominator=denominator)
        groups = [build(hidden_size, d, degrees.count(d), width, degree_form, use_bias) for d in sorted(set(degrees))]
        self.groups: Any = nn.ModuleList(groups)
        self.operator: nn.Module | None = None
        if mixing != "content":
            matrices = sum(len(group.factors) * group.num_heads for group in groups)
            self.operator = build_static_operator(mixing, matrices, width, max_positions, is_causal)
        self.layer_idx = layer_idx
        self.degree_logits = nn.Parameter(torch.zeros(3)) if degree_form == "soft" else None
        self.norm: nn.Module = {
            # Means over many tokens are small: at 8192 random ones a product of degree 4 has a mean square of 3e-7.
            "rms": lambda: SimpleRMSNorm(norm_eps**2),
            "static": lambda: StaticNorm(hidden_size),
            "batch": lambda: MaskedBatchNorm(hidden_size, norm_eps),
            "none": NoNorm,
        }[normalization]()
        self.o_proj = FactorLinear(hidden_size, hidden_size, bias=use_bias, ends_branch=True)

    @torch.no_grad()
    def init_weights(self, config: Any = None) -> None:
        """Begin with equal weights of a soft degree; projections draw their own, see `FactorLinear`."""
        if self.degree_logits is not None:
            init.zeros_(self.degree_logits)

    @property
    def degree_weights(self) -> Tensor | None:
        """(3,) weights of degrees 2, 3 and 4 of a soft degree, which sum to 1; None for a fixed one."""
        if self.degree_logits is None:
            return None
        logits = whole_values(self.degree_logits)  # the auxiliary loss is computed after the forward pass
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(dim=0)

    @property
    def mean_degree(self) -> Tensor:
        """Mean degree: over heads, or, for a soft degree, sum over d of weight_d d."""
        weights = self.degree_weights
        if weights is not None:
            return (weights * torch.arange(2, 5, device=weights.device)).sum()
        return torch.tensor(sum(group.degree * group.num_heads for group in self.groups) / self.num_heads)

    def auxiliary_loss(self) -> Tensor | None:
        """Return degree_penalty (mean degree - degree_target)^2 for a soft degree; None otherwise."""
        if self.degree_logits is None or self.degree_penalty == 0:
            return None
        return self.degree_penalty * (self.mean_degree - self.degree_target).square()

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | TokenLayout | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """Mix positions and channels.

        Args:
            hidden_states: (batch, length, hidden_size).
            attention_mask: (batch, length) or (batch, past + length), nonzero at real tokens; or a `TokenLayout`.
            past_key_values: cache of the library, for causal mixers.
            **kwargs: boundaries of packed sequences: `position_ids` that restart, `cu_seq_lens_q`, `seq_idx`.

        Returns:
            (batch, length, hidden_size); pad positions are undefined.

        Raises:
            ValueError: for a cache given to a bidirectional mixer, or together with packed sequences.
        """
        layout = layout_of_call(attention_mask, hidden_states, past_key_values, self.layer_idx, **kwargs)
        if past_key_values is not None:
            self._check_cache(layout)
        # Those of each group.
        factors = [[layout.zero_pads(factor) for factor in group.project(hidden_states)] for group in self.groups]
        if self.operator is not None:
            # A signed power is in float32, but a history has the dtype of the model, as a factor without a power has.
            dtype = next(x.dtype for k, x in enumerate(factors[0]) if k != self.groups[0].power_factor)
            values = torch.cat([cast(x, dtype) for own in factors for x in own], dim=-1)
            mixed = self.operator(values, layout, past_key_values)
            products = [
                _product(x, group) for x, group in zip(mixed.split(self._widths(), -1), self.groups, strict=True)
            ]
            y = torch.cat(products, dim=2)  # (batch, length, heads, width)
        elif past_key_values is not None:
            y = continue_sums(self.groups, factors, layout, past_key_values, self.layer_idx, self.degree_weights)
        elif layout.sequence_ids is None:
            # Pads are zeros and count for nothing, wherever they stand: only packed sequences need rows of their own.
            y = mix(self.groups, factors, layout.mask, self.is_causal, self.degree_weights)
        else:
            y = mix_packed(self.groups, factors, layout, self.is_causal, self.degree_weights)
        if self.normalization == "rms":
            y = self.norm(y, layout.mask).flatten(2)
        else:
            y = self.norm(y.flatten(2), layout.mask)
        return self.o_proj(cast(y, hidden_states.dtype))

    def _check_cache(self, layout: TokenLayout) -> None:
        if not self.is_causal:
            raise ValueError("past_key_values is given, but a bidirectional mixer has no cache: pass None.")
        if layout.sequence_ids is not None:
            raise ValueError("packed sequences cannot fill a cache: pass use_cache=False, or one sequence a row.")

    def _widths(self) -> list[int]:
        return [len(group.factors) * group.num_heads * group.head_dim for group in self.groups]


def _product(mixed: Tensor, group: Group) -> Tensor:
    """Multiply the mixed factors of a group, (batch, length, factors x channels) -> (batch, length, heads, width)."""
    dtype = torch.promote_types(mixed.dtype, torch.float32)
    factors = mixed.to(dtype).unflatten(-1, (len(group.factors), group.num_heads, group.head_dim)).unbind(2)
    y = factors[0]
    for factor in factors[1:]:
        y = y * factor
    return y
