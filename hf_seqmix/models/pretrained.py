"""What every model of the zoo has in common with the library's: its base class, and how weights are drawn."""

import inspect
import math
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init

from .._compat import OutputRecorder, PicklableCapture
from ..modules.norms import MaskedBatchNorm
from ..modules.positions import PositionEmbedding
from .block import SeqMixBlock
from .configuration import SeqMixConfig, refuse_own_classes
from .loading import CheckedLoading
from .mixers import WeighingMixer

__all__ = ["SeqMixPreTrainedModel"]


class SeqMixPreTrainedModel(PicklableCapture, CheckedLoading):
    """What every model of the zoo tells the library about itself, and how weights are drawn."""

    config: SeqMixConfig
    config_class = SeqMixConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SeqMixBlock"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _keys_to_ignore_on_load_missing = [r"\.tail\.kernel_taps$"]  # which files of 0.2.0 lack
    _supports_sdpa = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": SeqMixBlock, "attentions": OutputRecorder(WeighingMixer, index=1)}

    def __init__(self, config: SeqMixConfig, *args: Any, **kwargs: Any) -> None:
        # By name: exported code has classes of its own.
        fits = self.config_class.__name__ in {base.__name__ for base in type(config).__mro__}
        if fits:
            config.complete()
            self._check_config(config)
        elif isinstance(config, PreTrainedConfig):
            raise TypeError(
                f"{type(self).__name__} is built from a {self.config_class.__name__}; given {type(config).__name__}: "
                "take the model class of that configuration, or AutoModel.from_config."
            )
        super().__init__(config, *args, **kwargs)

    def _check_config(self, config: SeqMixConfig) -> None:
        """Refuse, before anything is allocated, a configuration that the class makes no sense with."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # The library writes `config_class` into every class. A head comes first among the bases of a family's class,
        # and would hand on the configuration of no family.
        if "config_class" not in vars(cls) and "config" not in inspect.get_annotations(cls):
            given = [base.config_class for base in cls.__bases__ if issubclass(base, SeqMixPreTrainedModel)]
            cls.config_class = max(given, key=lambda config: len(config.__mro__))
        super().__init_subclass__(**kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: str | type = "AutoModel") -> None:
        """Register as the library does; the package's own classes are refused, see `refuse_own_classes`."""
        refuse_own_classes(cls)
        super().register_for_auto_class(auto_class)

    def set_context_length(self, length: int) -> None:
        """Prepare the model for sequences of up to `length` tokens, where its kernels live on a grid.

        The frequency response of FD-TNN is sampled for `length` instead of `max_position_embeddings` tokens: kernels
        get as many taps, and each tap moves a little (Moreno, Mei, Walters 2023, arXiv 2305.09028, on extrapolation).
        Kernels of the other families are given for every length and stay as they are. The configuration remembers the
        length. Do this before a cache is filled: taps kept with it would be of the old grid.

        A module that cannot change refuses by `check_context_length(length)`; another changes by
        `set_context_length(length)`. All modules are asked before one changes.

        Args:
            length: tokens, at least 1.

        Raises:
            TypeError: for a length that is no integer.
            ValueError: for learned positions, of which there are a fixed number, for a model of images, for SKI-TNN,
                whose inducing points already go on at the same spacing, and for "toeplitz" and "triangular" mixing,
                whose matrices are learned for each position. The model then stays as it was.
        """
        if not isinstance(length, int) or isinstance(length, bool):
            raise TypeError(f"the context length is {length!r}; give a number of tokens, an integer.")
        if length < 1:
            raise ValueError(f"the context length is {length}; it must be at least 1.")
        if self.config.position_embedding_type == "learned":
            raise ValueError(
                "position_embedding_type is 'learned', so there are positions for "
                f"{self.config.max_position_embeddings} tokens and no more: the context length cannot be changed."
            )
        if self.config.image_shape is not None:
            raise ValueError(
                "a model of images (image_size) takes its lengths from the image: there is no context to set."
            )
        if "ski_tnn" in self.config.layer_mixers:
            raise ValueError(
                "the inducing points of SKI-TNN go on at the same spacing beyond max_position_embeddings: call the "
                "model with the longer input as it is."
            )
        parts = [module for module in self.modules() if not isinstance(module, PreTrainedModel)]
        _call_where_present(parts, "check_context_length", length)
        self._configure_context_length(length)
        _call_where_present(parts, "set_context_length", length)

    def _configure_context_length(self, length: int) -> None:
        """Say in the configuration what `set_context_length` changes."""
        self.config.max_position_embeddings = length

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw the parameters that `module` itself owns; a mixer with bare ones does so in `init_weights(config)`."""
        config = self.config
        draw = None if isinstance(module, PreTrainedModel) else getattr(module, "init_weights", None)
        if getattr(module, "begins_as_zeros", False):
            for parameter in module.parameters(recurse=False):
                init.zeros_(parameter)
        elif callable(draw):
            draw(config)
        elif isinstance(module, nn.Linear):
            if config.linear_init == "uniform":
                bound = 1 / math.sqrt(module.in_features)
                init.uniform_(module.weight, -bound, bound)
                if module.bias is not None:
                    init.uniform_(module.bias, -bound, bound)
            else:
                init.normal_(module.weight, mean=0.0, std=config.initializer_range)
                if module.bias is not None:
                    init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            assert config.embedding_scale is not None
            scaled = config.embedding_scale != 1 and not isinstance(module, PositionEmbedding)
            init.normal_(module.weight, std=1 / config.embedding_scale if scaled else config.initializer_range)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, MaskedBatchNorm):
            for ones in (module.weight, module.running_var):
                init.ones_(ones)
            for zeros in (module.bias, module.running_mean):
                init.zeros_(zeros)


def _call_where_present(modules: list[nn.Module], method: str, argument: Any) -> None:
    """Call a method of the modules that have one of this name."""
    for module in modules:
        call = getattr(module, method, None)
        if callable(call):
            call(argument)
