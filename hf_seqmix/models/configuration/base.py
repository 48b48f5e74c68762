"""The configuration fields that all families share, and their validation."""

import math
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .code_references import CodeReferences
from .common_fields import check_common_fields
from .image_shape import ImageShape, Pixels, check_image_fields
from .limits import check_extra_fields, check_sizes, warn_of_misspelled
from .tensor_parallel import GLU_PLAN, tensor_parallel_plan

__all__ = ["MIXER_CONFIGS", "SeqMixConfig"]

MIXER_CONFIGS: dict[str, "type[SeqMixConfig]"] = {}
"""Name of a mixer -> the class that configures it; filled as such classes are defined, without models."""


@strict
class SeqMixConfig(CodeReferences):
    """Fields that every model family of the package has.

    The defaults, but for the vocabulary, are those of the published causal Toeplitz language model. A family adds the
    fields of its mixer, its `check_architecture`, and says by `cache_layer_type` what its layers keep for generation.

    Args:
        vocab_size: number of token embeddings.
        hidden_size: channels of the residual stream.
        num_hidden_layers: number of layers, each a mixer and, in most families, a feed-forward. A family may run fewer
            blocks than layers in turn, see `num_blocks`.
        intermediate_size: width of the feed-forward; by default `hidden_size` times the family's `intermediate_ratio`.
        max_position_embeddings: length the model is meant for; only learned positions are limited by it in every
            family.
        hidden_act: activation of the gates.
        hidden_dropout: dropout of the embedding and of each residual branch.
        norm_type: "simple_rms" (no parameters), "layer", "batch" (statistics over real tokens; not for causal language
            models, whose past would see the future through them), "static" (a learned scale a channel, see
            `StaticNorm`), or "none".
        norm_eps: epsilon of the norms inside the blocks. The published 1e-8 has a slope of 1e8 at a zero vector.
        norm_position: "pre" (a last LayerNorm after the blocks) or "post" (a LayerNorm on the embedding).
        use_residual: whether each branch of a block is added to what it reads.
        short_conv_taps: taps of a convolution of each channel over neighboring tokens, of what a mixer reads; 0 for
            none. A causal one reads the last tokens, and a bidirectional one, whose number of taps must be odd, as
            many on both sides. Patches of an image follow each other as a sequence, row after row; a mixer of two
            dimensions has one convolution along rows and one along columns. See `ShortConvolution`.
        short_conv_init: "identity" (taps that begin as no convolution) or "uniform" (U(+-1/sqrt(taps)), PyTorch's
            own).
        ngram_sizes: sizes of n-grams, such as [2, 3, 4], whose hashed embeddings are added to those of the tokens at
            which they end; None for none. See `NGramEmbedding`. Models with them take `input_ids` only.
        ngram_buckets: rows of the table of each size; each has `hidden_size` parameters.
        copy_head: whether a causal language model may copy the token that followed an earlier one; see `CopyHead`. A
            cache then keeps `copy_head_rank` numbers and two ids for each token, and a token costs O(n).
        copy_head_rank: numbers of a token that the copy head compares; 64, or `hidden_size` if that is less, by
            default.
        copy_head_tokens: how many of the last tokens the copy head compares, from 1 to 64.
        copy_head_state: whether the copy head also compares what the model expects, its hidden state, with the tokens
            that would be copied.
        position_embedding_type: "none", "sinusoidal", or "learned".
        embedding_scale: factor on the embedding; sqrt(hidden_size) by default for a causal model, else 1.
        linear_init: "uniform" (PyTorch's own, U(+-1/sqrt(fan_in)), as in the published causal model) or "normal"
            (N(0, initializer_range), biases 0, as in the published masked model). With "normal", networks of kernels
            see the sign of the lag alone at first, and masked TNNs learn later.
        initializer_range: standard deviation of normal initialization. A scaled embedding is drawn with
            1 / embedding_scale instead, so that it has unit variance.
        zero_init_outputs: whether the layers that end the branches of a block begin as zeros, weights and biases. Each
            block is then the identity at first (after Zhang et al. 2019, arXiv 1901.09321), or, with `norm_position`
            "post", its norms alone. Needs `use_residual`.
        tie_word_embeddings: whether the output projection is the embedding.
        is_causal: whether a token sees the past and itself only.
        use_cache: whether a causal model returns its cache.
        pad_token_id, bos_token_id, eos_token_id: ids of the special tokens.
        classifier_pooling: "mean", "last", or "first", over real tokens; by default "last" for a causal model, else
            "mean".
        classifier_head: "linear", or "mlp" (dropout, linear, tanh, dropout, linear: the published masked model's); by
            default "mlp" with `norm_position` "post", else "linear".
        classifier_dropout: dropout of the classification heads; `hidden_dropout` by default.
        num_segments: 2 to classify pairs of documents, each read alone by the same encoder, from the features
            [a, b, a - b, a b].
        image_size: pixels of an image, one number or [height, width]; None for a model of text. With it the model
            reads images, patch after patch, row after row; `embedding_scale` is then 1 by default, and 512, the
            default of `max_position_embeddings`, stands for the number of patches.
        patch_size: pixels of a patch, one number or [height, width]; 1 for single pixels.
        num_channels: channels of an image.

    Raises:
        ValueError: for a value that makes no sense; the message names the field and what is allowed.
    """

    model_type: ClassVar[str] = ""
    cache_layer_type: ClassVar[str] = ""
    intermediate_ratio: ClassVar[int] = 1
    whole_model_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a family that say nothing of its mixer, so that a hybrid cannot set them for one."""
    missing_fields: ClassVar[dict[str, Any]] = {}
    """Fields of a mixer that were added later -> what a file means that does not have them."""
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache"]

    vocab_size: int = 50257
    hidden_size: int = 512
    num_hidden_layers: int = 7
    intermediate_size: int | None = None
    max_position_embeddings: int = 512
    hidden_act: str = "silu"
    hidden_dropout: float | int = 0.1
    norm_type: str = "simple_rms"
    norm_eps: float | int = 1e-6
    norm_position: str = "pre"
    use_residual: bool = True
    short_conv_taps: int = 0
    short_conv_init: str = "identity"
    ngram_sizes: list[int] | None = None
    ngram_buckets: int = 2**14
    copy_head: bool = False
    copy_head_rank: int | None = None
    copy_head_tokens: int = 1
    copy_head_state: bool = False
    position_embedding_type: str = "none"
    embedding_scale: float | int | None = None
    linear_init: str = "uniform"
    initializer_range: float | int = 0.02
    zero_init_outputs: bool = False
    tie_word_embeddings: bool = True
    is_causal: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    classifier_pooling: str | None = None
    classifier_head: str | None = None
    classifier_dropout: float | int | None = None
    num_segments: int = 1
    image_size: Pixels | None = None
    patch_size: Pixels = 1
    num_channels: int = 3

    def __init_subclass__(cls, *args: Any, **kwargs: Any) -> None:
        super().__init_subclass__(*args, **kwargs)
        # A hybrid has no mixer, and no `cache_layer_type`, of its own; what derives from a family's has the family's.
        if vars(cls).get("model_type") and cls.cache_layer_type and cls._family_type() not in MIXER_CONFIGS:
            MIXER_CONFIGS.setdefault(cls.model_type, cls)

    def __post_init__(self, **kwargs: Any) -> None:
        self.check_fields(kwargs)
        warn_of_misspelled(type(self), kwargs)
        derived = [name for name in kwargs if isinstance(getattr(type(self), name, None), property)]
        own = [name for name in derived if name not in dir(PreTrainedConfig)]
        if own:
            raise ValueError(
                f"{', '.join(own)} cannot be set: it follows from the other fields of a {self.model_type!r} "
                "configuration. Leave it out; or is this the configuration of another kind of model?"
            )
        self._set_image_defaults()
        self.derive_fields()
        self.check_architecture()
        super().__post_init__(**kwargs)

    def derive_fields(self) -> None:
        """Set what follows from other fields, mostly where a field is None. Families extend this.

        Done again, it changes nothing.
        """
        if self.intermediate_size is None:
            self.intermediate_size = self.intermediate_ratio * self.hidden_size
        if self.embedding_scale is None:
            of_words = self.is_causal and self.image_size is None
            self.embedding_scale = math.sqrt(max(self.hidden_size, 0)) if of_words else 1.0
        if self.copy_head and self.copy_head_rank is None:
            self.copy_head_rank = min(64, self.hidden_size)
        if self.classifier_pooling is None:
            self.classifier_pooling = "last" if self.is_causal else "mean"
        if self.classifier_head is None:
            self.classifier_head = "mlp" if self.norm_position == "post" else "linear"
        if self.classifier_dropout is None:
            self.classifier_dropout = self.hidden_dropout

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read the fields of a file as the library does; fields that an older file lacks mean what they meant then."""
        return super().from_dict({**cls.missing_fields, **config_dict}, **kwargs)

    def check_fields(self, extra: dict[str, Any] | None = None) -> None:
        """Check what no configuration may say, before anything is computed from the fields.

        Args:
            extra: what was given beside the fields.

        Raises:
            ValueError: for sizes beyond any model, a type that PyTorch does not have, names that are the
                configuration's own code, and values of other types than the library reads.
        """
        check_sizes({**self._own_fields, "num_labels": (extra or {}).get("num_labels")})
        given = {field: vars(self).get(field) for field in ("dtype", "id2label", "label2id")}
        check_extra_fields(type(self), {**given, **(extra or {})})

    @property
    def _own_fields(self) -> dict[str, Any]:
        """Fields of the class; what other tools add is theirs."""
        return {name: value for name, value in vars(self).items() if name in type(self).__dataclass_fields__}

    @property
    def image_shape(self) -> ImageShape | None:
        """What images the model reads; None for a model of text."""
        if self.image_size is None:
            return None
        return ImageShape.from_fields(self.num_channels, self.image_size, self.patch_size)

    def _set_image_defaults(self) -> None:
        check_image_fields(self.num_channels, self.image_size, self.patch_size)
        image = self.image_shape
        if image is not None and self.max_position_embeddings == SeqMixConfig.max_position_embeddings:
            self.max_position_embeddings = image.num_patches

    @property
    def mixing_grid(self) -> tuple[int, int] | None:
        """(height, width) of the grid that a mixer of two dimensions mixes; None where it mixes sequences."""
        return None

    @property
    def num_blocks(self) -> int:
        """Blocks with parameters of their own; a family may run fewer of them than layers, in turn."""
        return self.num_hidden_layers

    @classmethod
    def _family_type(cls) -> str:
        """Return the `model_type` of the nearest class, this one or one that it derives from, that has a mixer."""
        types = [vars(base).get("model_type") for base in cls.__mro__]
        return next((name for name in types if name in MIXER_CONFIGS), cls.model_type)

    @property
    def family_type(self) -> str:
        """Name of the family's mixer and feed-forward; a derived class may have a `model_type` of its own."""
        return self._family_type()

    @property
    def layer_mixers(self) -> list[str]:
        """Name of the mixer of each layer."""
        return [self.family_type] * self.num_hidden_layers

    @property
    def mixes_by_place(self) -> bool:
        """Whether what the mixer gives a token depends on where the other tokens stand."""
        return True

    @property
    def sees_order(self) -> bool:
        """Whether outputs depend on the order of the tokens: by a mixer, positions, convolutions or n-grams."""
        beside = self.position_embedding_type != "none" or self.short_conv_taps > 0 or bool(self.ngram_sizes)
        return beside or any(self.mixer_config(name).mixes_by_place for name in set(self.layer_mixers))

    def mixer_config(self, mixer_type: str) -> "SeqMixConfig":
        """Return the configuration that a mixer of this model is built from."""
        return self

    @property
    def layer_types(self) -> list[str]:
        """What the cache keeps for each layer."""
        return self.own_layer_types([self.cache_layer_type] * self.num_hidden_layers)

    def own_layer_types(self, layer_types: list[str]) -> list[str]:
        """Take our own layer of keys and values for the library's where that cannot keep what belongs to the layer.

        That is the inputs of a convolution, or, in the first layer, the pairs of a copy head or the tokens of n-grams.
        """
        own = len(layer_types) if self.short_conv_taps > 0 else int(self.copy_head or bool(self.ngram_sizes))
        changed = ["seqmix_key_inputs" if kept == "full_attention" else kept for kept in layer_types[:own]]
        return [*changed, *layer_types[own:]]

    @classmethod
    def cache_layer_type_of(cls, fields: dict[str, Any]) -> str:
        """Return what a layer of this family keeps if its configuration sets `fields`; a family may extend this."""
        return cls.cache_layer_type

    @property
    def mixer_tp_plan(self) -> dict[str, str] | None:
        """How tensor parallelism splits the layers of a mixer, by their names in it; None for none."""
        return None

    @property
    def feed_forward_tp_plan(self) -> dict[str, str]:
        """How tensor parallelism splits the layers of the feed-forward, by their names in it."""
        return dict(GLU_PLAN)

    @property
    def base_model_tp_plan(self) -> dict[str, str]:  # type: ignore[override]
        """How tensor parallelism splits the backbone; follows the fields unless it is set."""
        if "base_model_tp_plan" in vars(self):
            return vars(self)["base_model_tp_plan"]
        mixers = [self.mixer_config(name).mixer_tp_plan for name in sorted(set(self.layer_mixers))]
        return tensor_parallel_plan(mixers, self.feed_forward_tp_plan, has_tokens=self.image_shape is None)

    @base_model_tp_plan.setter
    def base_model_tp_plan(self, plan: dict[str, str]) -> None:
        own = self.base_model_tp_plan
        # Older releases set what they have read, and add an embedding even where there is none.
        if plan not in (own, {**(own or {}), "embed_tokens": "embedding_rowwise"}):
            vars(self)["base_model_tp_plan"] = plan

    @property
    def num_attention_heads(self) -> int:
        """1: what preallocated caches ask of a family without heads."""
        return 1

    @property
    def head_dim(self) -> int:
        """Channels that a preallocated cache keeps for each token."""
        return self.hidden_size

    @property
    def position_limit(self) -> int | None:
        """Tokens that the model has learned positions or taps for; None where a sequence may have any number."""
        mixings = [getattr(self.mixer_config(name), "mixing", None) for name in set(self.layer_mixers)]
        limited = self.position_embedding_type == "learned" or "triangular" in mixings
        return self.max_position_embeddings if limited else None

    def check_architecture(self) -> None:
        """Check ranges and combinations of fields; a family extends it.

        Raises:
            ValueError: naming the field, the value given and what is allowed.
        """
        check_sizes(self._own_fields)
        check_common_fields(self)

    def complete(self) -> None:
        """Derive the fields that are None, and check all again: fields can be set in between.

        `from_pretrained(folder, copy_head=True)` sets fields so. A model calls this before anything is built.

        Raises:
            ValueError: as for a new configuration.
        """
        self.derive_fields()
        self.check_architecture()

    def validate_architecture(self) -> None:
        """Check again after init and before saving: fields can be set in between."""
        self.check_architecture()

    def validate_layer_type(self) -> None:
        """`layer_types` is derived, so it is always in order; the library only knows its own names."""
