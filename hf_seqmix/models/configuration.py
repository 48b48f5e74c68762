"""The configuration fields that all families share, and their validation."""

import math
import os
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .limits import check_extra_fields, check_sizes

__all__ = [
    "EncodedToeplitzConfig",
    "SeqMixConfig",
    "ToeplitzConfig",
    "before_first_config",
    "check_activation",
    "check_choice",
    "check_range",
]

_pending: list[Callable[[], object]] = []


def before_first_config(action: Callable[[], object]) -> None:
    """Have `action` called once, before the first configuration is made.

    Whatever the library builds from a configuration, it makes the configuration first. So this is the latest moment for
    registering the models, and the names of mixers that hybrids are checked against.
    """
    _pending.append(action)


def check_choice(field: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise a `ValueError` that names the field unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{field} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")


def check_activation(field: str, value: str) -> None:
    """Raise a `ValueError` that names the field unless the library knows an activation called `value`."""
    # Imported here: the module brings the library's modelling code with it.
    from transformers.activations import ACT2FN

    check_choice(field, value, tuple(ACT2FN))


def check_range(
    field: str,
    value: float | int | None,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raise a `ValueError` that names the field unless low <= value <= high and above < value < below, where given.

    None, an optional field left out, passes.
    """
    if value is None:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{field} is {value}; it must be a finite number.")
    bounds = [
        (low, lambda bound: value >= bound, "at least"),
        (above, lambda bound: value > bound, "greater than"),
        (high, lambda bound: value <= bound, "at most"),
        (below, lambda bound: value < bound, "less than"),
    ]
    if all(bound is None or holds(bound) for bound, holds, _ in bounds):
        return
    allowed = " and ".join(f"{words} {bound}" for bound, _, words in bounds if bound is not None)
    raise ValueError(f"{field} is {value}; it must be {allowed}.")


def check_per_axis(field: str, value: Any, dimensions: int, **bounds: float) -> None:
    """Check a number, or, in two dimensions, one number for all axes or a list of one for each.

    Args:
        field: its name.
        value: a number, or a list [along rows, along columns].
        dimensions: 1 or 2.
        **bounds: what each number must be within, see `check_range`.
    """
    if isinstance(value, (list, tuple)):
        if dimensions != 2 or len(value) != 2:
            raise ValueError(
                f"{field} is {list(value)!r}; it must be one number, or, with mixing_dimensions=2, two: [along rows, along "
                "columns]."
            )
        for number in value:
            check_range(field, number, **bounds)
    else:
        check_range(field, value, **bounds)


class ImageShape(NamedTuple):
    """What a model of images reads: sizes in pixels, (height, width)."""

    num_channels: int
    image_size: tuple[int, int]
    patch_size: tuple[int, int]

    @property
    def grid_size(self) -> tuple[int, int]:
        """(height, width) of an image in patches."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]


def _pair(value: int | list[int] | tuple[int, ...]) -> tuple[int, int]:
    """Return (height, width) of a size given as one number or two."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


@strict
class SeqMixConfig(PreTrainedConfig):
    """Fields that every family of the zoo has.

    The defaults, but for the vocabulary, are those of the published causal Toeplitz language model. A family adds the
    fields of its mixer, its `check_architecture`, and says by `cache_layer_type` what its layers keep for generation.

    Args:
        vocab_size: number of token embeddings.
        hidden_size: channels of the residual stream.
        num_hidden_layers: number of blocks, each a mixer and a gated linear unit.
        intermediate_size: width of the feed-forward; by default `hidden_size` times the family's `intermediate_ratio`.
        max_position_embeddings: length the model is meant for; only learned positions are limited by it in every family.
        hidden_act: activation of the gates.
        hidden_dropout: dropout of the embedding and of each residual branch.
        norm_type: "simple_rms" (no parameters), "layer", "batch" (statistics over real tokens; not for causal language
            models, whose past would see the future through them), "static" (a learned scale a channel, see `StaticNorm`),
            or "none".
        norm_eps: epsilon of the norms inside the blocks. The published 1e-8 has a slope of 1e8 at a zero vector.
        norm_position: "pre" (a last LayerNorm after the blocks) or "post" (a LayerNorm on the embedding).
        use_residual: whether each branch of a block is added to what it reads.
        position_embedding_type: "none", "sinusoidal", or "learned".
        embedding_scale: factor on the embedding; sqrt(hidden_size) by default for a causal model, else 1.
        linear_init: "uniform" (PyTorch's own, U(+-1/sqrt(fan_in)), as in the published causal model) or "normal"
            (N(0, initializer_range), biases 0, as in the published masked model); by default the one or the other as
            `is_causal` says.
        initializer_range: standard deviation of normal initialisation. A scaled embedding is drawn with
            1 / embedding_scale instead, so that it has unit variance.
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

    Raises:
        ValueError: for a value that makes no sense; the message names the field and what is allowed.
    """

    model_type: ClassVar[str] = ""
    cache_layer_type: ClassVar[str] = ""
    intermediate_ratio: ClassVar[int] = 1
    whole_model_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a family that say nothing of its mixer, so that a hybrid cannot set them for one."""
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

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
    position_embedding_type: str = "none"
    embedding_scale: float | int | None = None
    linear_init: str | None = None
    initializer_range: float | int = 0.02
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

    def __post_init__(self, **kwargs: Any) -> None:
        while _pending:
            _pending.pop()()
        self.check_fields(kwargs)
        derived = [name for name in kwargs if isinstance(getattr(type(self), name, None), property)]
        own = [name for name in derived if name not in dir(PreTrainedConfig)]
        if own:
            raise ValueError(
                f"{', '.join(own)} cannot be set: it follows from the other fields of a {self.model_type!r} configuration. "
                "Leave it out; or is this the configuration of another kind of model?"
            )
        if self.intermediate_size is None:
            self.intermediate_size = self.intermediate_ratio * self.hidden_size
        if self.embedding_scale is None:
            self.embedding_scale = math.sqrt(max(self.hidden_size, 0)) if self.is_causal else 1.0
        if self.linear_init is None:
            self.linear_init = "uniform" if self.is_causal else "normal"
        if self.classifier_pooling is None:
            self.classifier_pooling = "last" if self.is_causal else "mean"
        if self.classifier_head is None:
            self.classifier_head = "mlp" if self.norm_position == "post" else "linear"
        if self.classifier_dropout is None:
            self.classifier_dropout = self.hidden_dropout
        self.check_architecture()
        super().__post_init__(**kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save as the library does, but not the names of a repository's own files of code, which stay where they were.

        A repository opened by its own code is saved with it, names and all.
        """
        held = vars(self).get("auto_map")
        if self._auto_class is None and isinstance(held, dict):
            elsewhere = {name: reference for name, reference in held.items() if "--" in str(reference)}
            del vars(self)["auto_map"]
            if elsewhere:
                vars(self)["auto_map"] = elsewhere
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            if held is not None:
                vars(self)["auto_map"] = held

    def check_fields(self, extra: dict[str, Any] | None = None) -> None:
        """Check what no configuration may say, before anything is computed from the fields.

        Args:
            extra: what was given beside the fields.

        Raises:
            ValueError: for sizes beyond any model, a type that PyTorch does not have, and names that are not fields.
        """
        check_sizes({**vars(self), **(extra or {})})
        given = {field: vars(self).get(field) for field in ("dtype", "id2label", "label2id")}
        check_extra_fields(type(self), {**given, **(extra or {})})

    @property
    def image_shape(self) -> ImageShape | None:
        """What images the model reads; None for a model of text."""
        return None

    @property
    def num_blocks(self) -> int:
        """Blocks with parameters of their own; a family may run fewer of them than layers, in turn."""
        return self.num_hidden_layers

    @property
    def layer_mixers(self) -> list[str]:
        """Name of the mixer of each layer."""
        return [self.model_type] * self.num_hidden_layers

    def mixer_config(self, mixer_type: str) -> "SeqMixConfig":
        """Return the configuration that a mixer of this model is built from."""
        return self

    @property
    def layer_types(self) -> list[str]:
        """What the cache keeps for each layer."""
        return [self.cache_layer_type] * self.num_hidden_layers

    @classmethod
    def cache_layer_type_of(cls, fields: dict[str, Any]) -> str:
        """Say what a layer of this family keeps if its configuration sets `fields`; a family whose fields matter extends it."""
        return cls.cache_layer_type

    @property
    def num_attention_heads(self) -> int:
        """1: what preallocated caches ask of a family without heads."""
        return 1

    @property
    def head_dim(self) -> int:
        """Channels that a preallocated cache keeps for each token."""
        return self.hidden_size

    def check_architecture(self) -> None:
        """Check ranges and combinations of fields; a family extends it.

        Raises:
            ValueError: naming the field, the value given and what is allowed.
        """
        check_sizes(vars(self))
        for field in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "intermediate_size",
            "max_position_embeddings",
        ):
            check_range(field, getattr(self, field), low=1)
        for field in ("hidden_dropout", "classifier_dropout"):
            check_range(field, getattr(self, field), low=0, below=1)
        for field in ("norm_eps", "embedding_scale", "initializer_range"):
            check_range(field, getattr(self, field), above=0)
        check_activation("hidden_act", self.hidden_act)
        check_choice("norm_type", self.norm_type, ("simple_rms", "layer", "batch", "static", "none"))
        check_choice("norm_position", self.norm_position, ("pre", "post"))
        check_choice("position_embedding_type", self.position_embedding_type, ("none", "sinusoidal", "learned"))
        check_choice("linear_init", self.linear_init, ("uniform", "normal"))
        check_choice("classifier_pooling", self.classifier_pooling, ("mean", "last", "first"))
        check_choice("classifier_head", self.classifier_head, ("linear", "mlp"))
        check_choice("num_segments", self.num_segments, (1, 2))

    def validate_architecture(self) -> None:
        """Check again after init and before saving: fields can be set in between."""
        self.check_architecture()

    def validate_layer_type(self) -> None:
        """`layer_types` is derived, so it is always in order; the library only knows its own names."""


@strict
class ToeplitzConfig(SeqMixConfig):
    """Fields that the Toeplitz families share.

    With `image_size` the model reads images, patch after patch, row after row, instead of text; `embedding_scale` is then 1
    by default, and `max_position_embeddings` the number of patches.

    Args:
        expand_ratio: width of the mixer in units of `hidden_size`.
        image_size: pixels of an image, one number or [height, width]; None for a model of text.
        patch_size: pixels of a patch, one number or [height, width]; 1 for single pixels.
        num_channels: channels of an image.
        mixing_dimensions: 1 mixes the flattened image as a sequence, 2 mixes its rows and then its columns.
    """

    cache_layer_type: ClassVar[str] = "seqmix_history"

    expand_ratio: float | int = 3.0
    image_size: int | list[int] | tuple[int, ...] | None = None
    patch_size: int | list[int] | tuple[int, ...] = 1
    num_channels: int = 3
    mixing_dimensions: int = 1

    def __post_init__(self, **kwargs: Any) -> None:
        self.check_fields(kwargs)
        self._check_image_fields()
        image = self.image_shape
        if image is not None:
            if self.embedding_scale is None:
                self.embedding_scale = 1.0
            if self.max_position_embeddings == SeqMixConfig.max_position_embeddings:
                self.max_position_embeddings = math.prod(image.grid_size)
        super().__post_init__(**kwargs)

    @property
    def mixer_size(self) -> int:
        """Channels of the mixer, expand_ratio x hidden_size rounded down."""
        return int(self.expand_ratio * self.hidden_size)

    @property
    def head_dim(self) -> int:
        """Channels of the history that generation keeps."""
        return self.mixer_size

    @property
    def image_shape(self) -> ImageShape | None:
        """What images the model reads; None for a model of text."""
        if self.image_size is None:
            return None
        return ImageShape(self.num_channels, _pair(self.image_size), _pair(self.patch_size))

    @property
    def mixer_arguments(self) -> dict[str, Any]:
        """What the mixers of all Toeplitz families take by name."""
        return {"activation": self.hidden_act, "grid_size": self.mixing_grid}

    @property
    def mixing_grid(self) -> tuple[int, int] | None:
        """(height, width) of the grid that a mixer of two dimensions mixes; None where it mixes sequences."""
        image = self.image_shape
        return None if image is None or self.mixing_dimensions == 1 else image.grid_size

    def check_architecture(self) -> None:
        """Check the shared fields and those of the Toeplitz families."""
        super().check_architecture()
        check_range("expand_ratio", self.expand_ratio, above=0)
        check_range("expand_ratio x hidden_size", self.mixer_size, low=1)
        self._check_image_fields()

    def _check_image_fields(self) -> None:
        check_choice("mixing_dimensions", self.mixing_dimensions, (1, 2))
        check_range("num_channels", self.num_channels, low=1)
        for field in ("image_size", "patch_size"):
            value = getattr(self, field)
            if isinstance(value, (list, tuple)) and len(value) != 2:
                raise ValueError(f"{field} is {list(value)!r}; it must be one number or [height, width], in pixels.")
            for pixels in () if value is None else _pair(value):
                check_range(field, pixels, low=1)
        if self.mixing_dimensions == 2 and (self.is_causal or self.image_size is None):
            wrong = "is_causal is True" if self.is_causal else "image_size is None"
            raise ValueError(
                f"mixing_dimensions is 2, but {wrong}: mixing rows and columns needs an image_size and is_causal=False."
            )
        image = self.image_shape
        if image is None:
            return
        if any(pixels % patch for pixels, patch in zip(image.image_size, image.patch_size, strict=True)):
            raise ValueError(
                f"image_size is {self.image_size!r}, which patch_size {self.patch_size!r} does not divide: choose sizes "
                "that do."
            )
        if self.num_segments != 1:
            raise ValueError(f"num_segments is {self.num_segments}, but a model of images (image_size) has 1.")
        places = math.prod(image.grid_size)
        if SeqMixConfig.max_position_embeddings != self.max_position_embeddings < places:
            raise ValueError(
                f"max_position_embeddings is {self.max_position_embeddings}, but the images have {places} patches "
                "(image_size / patch_size): leave it out, or set it to at least that."
            )


@strict
class EncodedToeplitzConfig(ToeplitzConfig):
    """Fields of the Toeplitz families whose kernel comes from a relative-position encoder.

    Args:
        rpe_hidden_size: width of the encoder.
        rpe_num_layers: number of its hidden layers, 0 allowed.
        rpe_activation: its activation.
        rpe_norm_type: its norm, "simple_rms" or "layer" (see `RelativePositionEncoder`).
        kernel_max_lag: taps at greater lags are zero; None for no limit.
    """

    rpe_hidden_size: int = 64
    rpe_num_layers: int = 3
    rpe_activation: str = "relu"
    rpe_norm_type: str = "simple_rms"
    kernel_max_lag: int | None = None

    @property
    def mixer_arguments(self) -> dict[str, Any]:
        """What the mixers with an encoder take by name."""
        return {
            **super().mixer_arguments,
            "is_causal": self.is_causal,
            "rpe_hidden_size": self.rpe_hidden_size,
            "rpe_num_layers": self.rpe_num_layers,
            "rpe_activation": self.rpe_activation,
            "rpe_norm_type": self.rpe_norm_type,
            "norm_eps": self.norm_eps,
            "kernel_max_lag": self.kernel_max_lag,
        }

    def check_architecture(self) -> None:
        """Check the shared fields and those of the encoder."""
        super().check_architecture()
        check_range("rpe_hidden_size", self.rpe_hidden_size, low=1)
        check_range("rpe_num_layers", self.rpe_num_layers, low=0)
        check_activation("rpe_activation", self.rpe_activation)
        check_choice("rpe_norm_type", self.rpe_norm_type, ("simple_rms", "layer"))
        check_range("kernel_max_lag", self.kernel_max_lag, low=0)
