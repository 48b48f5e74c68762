"""The one backbone of the zoo: embedding, blocks of a mixer and a feed-forward, norms."""

import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import logging

from .._compat import CACHE_NAME, cache_given, capture_outputs
from ..cache import check_dtype, check_room, past_length
from ..modules.norms import build_norm
from ..modules.patch_embedding import PatchEmbedding
from ..modules.positions import PositionEmbedding, sinusoids
from ..ops.common.dispatch import has_numbers
from ..ops.layout import token_layout
from ..ops.masking import padding_mask, real_positions
from ..ops.packing import sequence_positions
from .block import SeqMixBlock, check_places
from .configuration import SeqMixConfig
from .inputs import check_image_alone, check_mask_covers_cache, check_tensors, check_tokens, embed_known
from .mixers import WeighingMixer
from .ngram_embedding import NGramEmbedding
from .pretrained import SeqMixPreTrainedModel

__all__ = ["SeqMixModel"]

logger = logging.get_logger(__name__)

_SENSITIVE = r".+\.kernel\.encoder"
"""Small networks of a lag or a frequency, in which rounded weights move every tap; quantization leaves them out."""


class SeqMixModel(SeqMixPreTrainedModel):
    """Embedding, `num_hidden_layers` layers, and a last norm; the mixer of each layer is named by the config.

    Layers are blocks of their own, or, where the config has fewer blocks than layers, the same blocks again in turn.
    The embedding is one of tokens, or, where the config names an `image_size`, one of the patches of images.
    """

    def __init__(self, config: SeqMixConfig) -> None:
        super().__init__(config)
        if not config.sees_order:
            logger.warning_once(
                f"position_embedding_type is 'none', and no mixer of this bidirectional model ({_names(config)}) sees "
                "where tokens stand: in any order they get the same outputs. Set position_embedding_type='sinusoidal' "
                "or 'learned', or short_conv_taps, or take a mixer that sees places."
            )
        pre_norm = config.norm_position == "pre"
        # The outer norms have parameters also where those of the blocks have none.
        outer_norm = "layer" if config.norm_type == "simple_rms" else config.norm_type
        image = config.image_shape
        self.embed_patches: PatchEmbedding | None = None
        if image is None:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        else:
            self.embed_patches = PatchEmbedding(image.num_channels, image.patch_size, config.hidden_size)
            self.main_input_name, self._input_embed_layer = "pixel_values", "embed_patches"
        self.embed_positions = (
            PositionEmbedding(config.max_position_embeddings, config.hidden_size)
            if config.position_embedding_type == "learned"
            else None
        )
        self.embed_ngrams = (
            NGramEmbedding(config.hidden_size, config.ngram_sizes, config.ngram_buckets)
            if config.ngram_sizes
            else None
        )
        embed_norm = "none" if pre_norm else "layer" if outer_norm == "batch" else outer_norm
        self.embed_norm = build_norm(embed_norm, config.hidden_size, 1e-5)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(SeqMixBlock(config, layer_idx) for layer_idx in range(config.num_blocks))
        self.norm = build_norm(outer_norm, config.hidden_size, 1e-5) if pre_norm else None
        assert config.embedding_scale is not None
        self.embedding_scale = config.embedding_scale
        self.gradient_checkpointing = False
        # Where there are any: the library wants a module for each entry, of which a head inherits the backbone's.
        if any(re.fullmatch(_SENSITIVE, name) for name, _ in self.named_modules()):
            self._keep_in_fp32_modules = [_SENSITIVE]
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict[str, Tensor | None] | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        pixel_values: Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Encode a batch of token sequences, or of images.

        Args:
            input_ids: (batch, length) token ids.
            attention_mask: (batch, length) or (batch, past + length), nonzero at real tokens, which may be padded
                left, right or inside; or, from `generate` with a compiled cache, one mask for each entry of
                `layer_types`, 2D masks over all places of the cache.
            position_ids: (batch or 1, length). Positions that restart within a row, like `cu_seq_lens_q` or `seq_idx`
                among `kwargs`, mean several packed sequences, each encoded alone. A graph cannot look whether they
                restart: it fills the cache that it is given, and stops where they do, but makes none.
            past_key_values: cache of the library that these tokens continue.
            inputs_embeds: (batch, length, hidden_size), instead of `input_ids`; scaled like embeddings.
            use_cache: whether to return a cache; by default as the config says, never in training or for images.
            pixel_values: (batch, num_channels, height, width) images, for a model of images and instead of all else;
                of any size that the patches divide, unless positions are learned.
            cache: another name of `past_key_values`, the one that the library uses since 5.24.
            **kwargs: `output_hidden_states`, `output_attentions`, `return_dict`, boundaries of packed sequences.

        Returns:
            `last_hidden_state` (batch, length, hidden_size), of a causal model at pads that of the last real token
            before them in this call; `past_key_values`, named `cache` since transformers 5.24; with
            `output_attentions`, `attentions`, the weights of each layer whose mixer weighs tokens (attention and IPA),
            (batch, heads or centers, length, keys).

        Raises:
            TypeError: for ids, embeddings or positions of another type of number, what is no tensor, and a cache that
                is none of the library's.
            ValueError: for token ids outside the vocabulary (on CPU), shapes that do not fit, a cache of a dtype that
                does not go with that of this call, a cache given to a bidirectional model or under gradient
                checkpointing, a new cache where the `layer_idx` of a layer is not its place in `layers`, images given
                to a model of text, or text to a model of images; and for `output_attentions` where no mixer weighs
                tokens.
        """
        past_key_values = cache_given(past_key_values, cache)
        wanted = self._wanted_weights(kwargs.get("output_attentions"))
        if self.gradient_checkpointing and self.training:
            if past_key_values is not None:
                raise ValueError(
                    "past_key_values is given, but a model in training mode with gradient checkpointing computes "
                    "blocks again, which takes no cache: call model.eval() to generate, or "
                    "model.activation_checkpointing_disable() to train on states."
                )
            if use_cache and not torch.compiler.is_compiling():
                logger.warning_once("use_cache=True is ignored: blocks are computed again (gradient checkpointing).")
            use_cache = False
        elif use_cache is None:
            use_cache = self.config.use_cache
        grid_size = None
        if pixel_values is not None or self.embed_patches is not None:
            text = input_ids, attention_mask, position_ids, past_key_values, inputs_embeds
            check_image_alone(self.embed_patches is not None, *text)
            inputs_embeds, grid_size = self._embed_image(pixel_values)
            use_cache = False
        check_tokens(input_ids, inputs_embeds, self.config.hidden_size)
        if past_key_values is not None and not self.config.is_causal:
            raise ValueError("past_key_values is given, but the model is bidirectional (is_causal=False).")
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = embed_known(self.embed_tokens, input_ids)
        batch, length, _ = inputs_embeds.shape
        past = past_length(past_key_values)
        layer_types = self.config.layer_types
        if past_key_values is not None and not torch.compiler.is_compiling():
            check_room(past_key_values, past, batch, length, self.config.copy_head)
            check_dtype(past_key_values, past, inputs_embeds, layer_types)

        masks = attention_mask if isinstance(attention_mask, dict) else None
        boundaries = {name: value for name, value in kwargs.items() if name.startswith(("cu_seq", "seq_idx"))}
        check_tensors(
            attention_mask=attention_mask if masks is None else None, position_ids=position_ids, **boundaries
        )
        if position_ids is not None and position_ids.is_floating_point():
            raise TypeError(f"position_ids has {position_ids.dtype}; it must hold integers: position_ids.long().")
        padding = padding_mask(attention_mask, batch, length, past)
        if masks is None and padding is not None and position_ids is None:
            counted = self.config.position_embedding_type, layer_types
            check_mask_covers_cache(padding, length, past, *counted)
        layout = token_layout(
            padding,
            batch,
            length,
            past_length=past,
            # Prepared masks come from `generate`, which packs nothing but gives left pads the position 0.
            position_ids=position_ids if masks is None else None,
            grid_size=grid_size,
            has_cache=past_key_values is not None,
            **boundaries,
        )
        if use_cache and past_key_values is None and not self.training and self.config.is_causal:
            past_key_values = None if layout.sequence_ids is not None else DynamicCache(config=self.config)
        if position_ids is None:
            if layout.sequence_ids is not None:
                position_ids = sequence_positions(layout.sequence_ids, layout.mask)
                if layout.mask is not None:  # after a full sequence a pad's would be beyond the last
                    position_ids = position_ids.masked_fill(~layout.mask, 0)
            else:
                position_ids = real_positions(padding, batch, length, past, inputs_embeds.device)

        if self.embed_ngrams is not None:
            if input_ids is None:
                raise ValueError(
                    f"ngram_sizes is {self.config.ngram_sizes}, and n-grams are of tokens: give input_ids instead of "
                    "inputs_embeds, or use a model without ngram_sizes."
                )
            inputs_embeds = inputs_embeds + self.embed_ngrams(input_ids, layout, past_key_values)
        hidden_states = inputs_embeds * self.embedding_scale
        hidden_states = self._add_positions(hidden_states, position_ids)
        hidden_states = self.embed_norm(hidden_states, layout.mask)
        if self.dropout.training:
            hidden_states = self.dropout(hidden_states)
        layers = self._layers_in_turn()
        # Not in each step of decoding, which would take longer.
        if past_key_values is not None and not torch.compiler.is_compiling() and not (isinstance(past, int) and past):
            check_places(layers, layer_types)
        for layer_idx, (block, told) in enumerate(layers):
            prepared = None if masks is None else masks.get(layer_types[layer_idx])
            hidden_states = block(
                hidden_states,
                attention_mask=prepared if prepared is not None and prepared.ndim == 4 else layout,
                past_key_values=past_key_values,
                position_ids=position_ids,
                real_mask=layout.mask,
                **wanted,
                **told,
            )
        if self.norm is not None:
            hidden_states = self.norm(hidden_states, layout.mask)
        if self.config.is_causal:
            # A pad takes no time: what would follow it follows the last real token.
            hidden_states = layout.repeat_last(hidden_states)
        returned = {CACHE_NAME: past_key_values if use_cache else None}
        return BaseModelOutputWithPast(last_hidden_state=hidden_states, **returned)

    def _layers_in_turn(self) -> list[tuple[nn.Module, dict[str, int]]]:
        """Return the block of each layer, and which layer it is told to be where it is several of them.

        Fewer layers than there are blocks, by the configuration, are the first ones: a draft that exits early.
        """
        blocks, depth = list(self.layers), self.config.num_hidden_layers
        if self.config.num_blocks < depth:
            return [(blocks[layer_idx % len(blocks)], {"layer_idx": layer_idx}) for layer_idx in range(depth)]
        return [(block, {}) for block in blocks[:depth]]

    def _wanted_weights(self, output_attentions: bool | None) -> dict[str, bool]:
        """Return what tells the blocks that weights are wanted; nothing where they are not."""
        if not (getattr(self.config, "output_attentions", False) if output_attentions is None else output_attentions):
            return {}
        if not any(isinstance(block.mixer, WeighingMixer) for block in self.layers):
            raise ValueError(
                f"output_attentions is True, but the mixers of this model ({_names(self.config)}) do not weigh tokens "
                "by their content, as attention and IPA do: leave it out. `hf_seqmix.analysis.coupling` shows how "
                "much each token counts for each other one in any model."
            )
        return {"output_attentions": True}

    def _embed_image(self, pixel_values: Tensor | None) -> tuple[Tensor, tuple[int, int]]:
        """Return (batch, patches, hidden_size), and (height, width) of the grid that the patches form."""
        image = self.config.image_shape
        assert self.embed_patches is not None and image is not None
        if pixel_values is None:
            raise ValueError("this is a model of images (image_size is set): give pixel_values.")
        grid_size = self.embed_patches.grid_size(pixel_values)
        if self.embed_positions is not None and grid_size != image.grid_size:
            raise ValueError(
                f"the images have {grid_size[0]} x {grid_size[1]} patches, but position_embedding_type='learned' has "
                f"positions for {image.grid_size[0]} x {image.grid_size[1]}: resize them to image_size, or use 'none' "
                "or 'sinusoidal'."
            )
        return self.embed_patches(pixel_values), grid_size

    def _add_positions(self, hidden_states: Tensor, position_ids: Tensor) -> Tensor:
        if self.embed_positions is not None:
            limit = self.config.max_position_embeddings
            if has_numbers(position_ids) and position_ids.numel():
                low, high = torch.stack(torch.aminmax(position_ids)).tolist()  # one wait
                if low < 0 or high >= limit:
                    raise ValueError(
                        f"position {low if low < 0 else high} was asked for, but position_embedding_type='learned' "
                        f"has positions 0 to {limit - 1} (max_position_embeddings): shorten the input, or use 'none' "
                        "or 'sinusoidal'."
                    )
            return hidden_states + self.embed_positions(position_ids)
        if self.config.position_embedding_type == "sinusoidal":
            return hidden_states + sinusoids(position_ids, hidden_states.shape[-1]).to(hidden_states.dtype)
        return hidden_states


def _names(config: SeqMixConfig) -> str:
    """Return the names of a model's mixers, each once."""
    return ", ".join(sorted(set(config.layer_mixers)))
