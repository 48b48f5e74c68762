"""Configuration of the polynomial-degree transformer."""

import math
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from ..configuration import GLU_PLAN, SeqMixConfig, check_choice, check_range, gathered_plan
from .gated_checks import check_gated
from .mixer_checks import NORM_TYPES, check_form, has_gate

__all__ = ["PolyTransformerConfig"]


@strict
class PolyTransformerConfig(SeqMixConfig):
    """Configuration of a transformer whose mixers are polynomials of a given degree in the tokens.

    Source: Navon 2021 (unpublished notes).
    `PolyTransformerConfig(degree=d, feed_forward="none", use_residual=False, normalization="none", use_bias=False,
    hidden_dropout=0.0, embedding_scale=1.0)` is a homogeneous polynomial of its input embeddings, of degree d^L for L
    layers.

    Args:
        degree: of each mixer, an integer from 2 on, or a fraction (signed power). The default is degree 3, or 4 with
            `degree_form` "soft"; None where one of the next two fields gives degrees.
        layer_degrees: the degree of each layer instead; in a hybrid, of all its layers, whatever their mixers.
        head_degrees: the degree of each head instead, the same in every layer.
        degree_form: "cumsum" or "gate", for even degrees from 4 on; "soft" mixes degrees 2, 3 and 4 over shared
            projections with learned weights.
        num_attention_heads: heads of a mixer; they must divide `hidden_size`.
        use_bias: whether the projections of the mixers are affine.
        mixing: "content"; or "toeplitz" or "triangular", learned matrices over positions instead, of the same degree.
            A bidirectional model by "content" sees no order unless `position_embedding_type`, `short_conv_taps` or
            `ngram_sizes` tell it, and is warned of.
        feed_forward: "glu", or "none" for blocks without one.
        normalization: of the blocks and of the mixers' outputs: "rms" (in mixers for each head, with `norm_eps`
            squared, since outputs may be small), "static" (a learned scale for each channel, exactly polynomial and
            causal; set the scales from a batch before training by `calibrate_static_norms`), "batch" (exactly
            polynomial in evaluation; not for causal language models), or "none". A `norm_type` left at "simple_rms"
            follows; with "rms" it may also be "layer".
        forget_gate: whether sums over the past fade by a gate f_t = sigmoid(w x_t + b) a head and token. For degree 3
            that is S_t = f_t S_(t-1) + k_t v_t^T. Means, further stages and the count that divides a sum fade
            likewise. For causal models of integer degrees.
        kernel_power: p. From 2 on weights are <q, k>^p, with `degree` 3. The mixer is then of degree p in queries and
            in keys and 1 in values, 2 p + 1 in the tokens. A head keeps C(head_dim + p - 1, p) x head_dim numbers.
        denominator: whether the sum of the weights <q, k>^p divides that of the values, for even p. The mixer is then
            a quotient of polynomials.
        soft_degree_target, degree_penalty: with `degree_form` "soft", each layer adds degree_penalty (mean degree -
            soft_degree_target)^2 to the loss in training, but not where the Trainer computes a loss with label
            smoothing.

    Raises:
        ValueError: for a degree below 2, a list of the wrong length, a form that does not belong to the degree, norms
            that contradict each other, and gates, powers and denominators that do not go with the rest.
    """

    model_type: ClassVar[str] = "poly_transformer"
    intermediate_ratio: ClassVar[int] = 4
    whole_model_fields: ClassVar[tuple[str, ...]] = ("feed_forward",)

    degree: float | int | None = None
    layer_degrees: list[float | int] | None = None
    head_degrees: list[float | int] | None = None
    degree_form: str = "cumsum"
    num_attention_heads: int = 8
    use_bias: bool = True
    mixing: str = "content"
    feed_forward: str = "glu"
    normalization: str = "rms"
    forget_gate: bool = False
    kernel_power: int = 1
    denominator: bool = False
    soft_degree_target: float | int = math.e
    degree_penalty: float | int = 0.01

    def derive_fields(self) -> None:
        """Set the degree and the norms between blocks, beside what every model derives."""
        if self.degree is None and self.layer_degrees is None and self.head_degrees is None:
            self.degree = 4 if self.degree_form == "soft" else 3
        if self.norm_type == SeqMixConfig.norm_type and self.normalization in NORM_TYPES:
            self.norm_type = NORM_TYPES[self.normalization][0]
        super().derive_fields()

    @property
    def cache_layer_type(self) -> str:  # type: ignore[override]
        """Name what the cache keeps of a layer: running sums, or for static mixing the history of its factors."""
        return self.cache_layer_type_of({"mixing": self.mixing})

    @classmethod
    def cache_layer_type_of(cls, fields: dict[str, Any]) -> str:
        """Name what the cache keeps of a layer with these fields."""
        return "seqmix_sums" if fields.get("mixing", cls.mixing) == "content" else "seqmix_history"

    @property
    def mixes_by_place(self) -> bool:
        """Whether the sums over tokens have an end, the present token, or weights by position."""
        return self.is_causal or self.mixing != "content"

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def mixer_tp_plan(self) -> dict[str, str]:
        """Split the heads, which are multiplied each alone.

        With heads of several degrees, or parameters that all heads share, only the projections are split. The
        projections of a fractional degree stay whole, since one of them is two layers.
        """
        plan = {"groups.*.factors.*": "colwise", "o_proj": "rowwise"}
        if self.forget_gate:
            plan["groups.*.gate_proj"] = "colwise"  # a channel is a head
        degrees = [self.degrees_of(layer) for layer in range(self.num_hidden_layers)]
        alone = self.mixing == "content" and self.degree_form != "soft" and self.normalization in ("rms", "none")
        if not alone or any(len(set(of_layer)) > 1 for of_layer in degrees):
            plan = gathered_plan(plan)
        if any(degree != int(degree) for of_layer in degrees for degree in of_layer):
            plan = {"o_proj": "rowwise_split_input"}
        return plan

    @property
    def feed_forward_tp_plan(self) -> dict[str, str]:
        """Split the gated linear unit, if there is one."""
        return dict(GLU_PLAN) if self.feed_forward == "glu" else {}

    def degrees_of(self, layer_idx: int) -> list[float | int]:
        """Return the degree of each head of a layer."""
        if self.head_degrees is not None:
            return list(self.head_degrees)
        degree = self.degree if self.layer_degrees is None else self.layer_degrees[layer_idx]
        assert degree is not None
        return [degree] * self.num_attention_heads

    def form_of(self, layer_idx: int) -> str:
        """Return the form of a layer: "gate" only where a head has a degree with that form."""
        if self.degree_form == "gate" and not has_gate(self.degrees_of(layer_idx)):
            return "cumsum"
        return self.degree_form

    def check_architecture(self) -> None:
        """Check the shared fields, the degrees, and that norms and forms fit."""
        super().check_architecture()
        check_range("degree", self.degree, low=2)
        check_range("num_attention_heads", self.num_attention_heads, low=1)
        check_choice("feed_forward", self.feed_forward, ("glu", "none"))
        check_choice("normalization", self.normalization, tuple(NORM_TYPES))
        check_range("degree_penalty", self.degree_penalty, low=0)
        check_range("soft_degree_target", self.soft_degree_target, above=2, below=4)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}; it must divide hidden_size {self.hidden_size}."
            )
        for field, number, of in (
            ("layer_degrees", self.num_hidden_layers, "num_hidden_layers"),
            ("head_degrees", self.num_attention_heads, "num_attention_heads"),
        ):
            degrees = getattr(self, field)
            if degrees is None:
                continue
            for degree in degrees:
                check_range(field, degree, low=2)
            if len(degrees) != number:
                raise ValueError(
                    f"{field} has {len(degrees)} entries, but {of} is {number}: give one degree for each."
                )
        given = [name for name in ("degree", "layer_degrees", "head_degrees") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} are both set: give one degree for all, that of each layer, or that of each "
                "head."
            )
        if self.norm_type not in NORM_TYPES[self.normalization]:
            allowed = " or ".join(map(repr, NORM_TYPES[self.normalization]))
            raise ValueError(
                f"norm_type is {self.norm_type!r}, but normalization is {self.normalization!r}: leave norm_type out, "
                f"or set it to {allowed}."
            )
        every = {degree for layer in range(self.num_hidden_layers) for degree in self.degrees_of(layer)}
        check_form(every, self.degree_form, self.mixing)
        for layer in range(self.num_hidden_layers):
            check_gated(
                self.degrees_of(layer),
                self.degree_form,
                self.mixing,
                self.is_causal,
                self.head_dim,
                self.forget_gate,
                self.kernel_power,
                self.denominator,
            )
