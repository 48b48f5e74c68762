"""Checks of what a model is called with, whose messages say what was given, what is allowed and what to do."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._compat import attends

__all__ = ["check_image_alone", "check_mask_covers_cache", "check_tensors", "check_tokens", "embed_known"]


def check_tensors(**given: Any) -> None:
    """Raise a TypeError, by the names that are given, for what is neither a tensor nor None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}; it must be a tensor: torch.tensor({name}).")


def check_tokens(input_ids: Any, inputs_embeds: Any, hidden_size: int) -> None:
    """Refuse anything but either token ids or embeddings, of a batch of rows.

    Args:
        input_ids: (batch, length) integers, or None.
        inputs_embeds: (batch, length, hidden_size) floating point, or None.
        hidden_size: channels of the model.

    Raises:
        ValueError: both or neither are given, or a shape does not fit.
        TypeError: one is no tensor, or has other numbers.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give exactly one of input_ids and inputs_embeds.")
    name, given = ("inputs_embeds", inputs_embeds) if input_ids is None else ("input_ids", input_ids)
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} is a {type(given).__name__}; it must be a tensor: torch.tensor([[1, 2, 3]]) of ids.")
    if input_ids is None:
        if given.ndim != 3 or given.shape[2] != hidden_size:
            raise ValueError(
                f"inputs_embeds has shape {tuple(given.shape)}; it must be (batch, length, {hidden_size}), where "
                f"{hidden_size} is hidden_size. Token ids are given as input_ids."
            )
        if not given.is_floating_point():
            raise TypeError(f"inputs_embeds has {given.dtype}; it must be of floating point.")
        return
    if given.ndim != 2:
        raise ValueError(
            f"input_ids has shape {tuple(given.shape)}; it must be (batch, length). One row is input_ids.unsqueeze(0)."
        )
    if given.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"input_ids has {given.dtype}; it must be torch.int64 or torch.int32: input_ids.long().")


def embed_known(embed_tokens: Any, input_ids: Tensor) -> Tensor:
    """Embed (batch, length) ids; for ids outside the vocabulary, say on a CPU what the embedding does not.

    Args:
        embed_tokens: an embedding, or what an adapter makes of one.
        input_ids: (batch, length) integers.

    Raises:
        ValueError: an id is outside the vocabulary.
    """
    if torch.compiler.is_compiling():
        return embed_tokens(input_ids)
    try:
        return embed_tokens(input_ids)
    except IndexError as error:
        low, high = (int(end) for end in torch.aminmax(input_ids))
        size = embed_tokens.weight.shape[0]  # adapters wrap the module
        raise ValueError(
            f"input_ids run from {low} to {high}, but the vocabulary has ids 0 to {size - 1}: is this "
            "the tokenizer that belongs to the model, or were embeddings to be resized (resize_token_embeddings)?"
        ) from error


def check_image_alone(takes_images: bool, *text: Any) -> None:
    """Refuse images for a model of text, and text for a model of images.

    Args:
        takes_images: whether the model is one of images.
        *text: what only a model of text takes, each None if not given.

    Raises:
        ValueError: the input is for the other kind of model.
    """
    if not takes_images:
        raise ValueError(
            "pixel_values are given, but this is a model of text: set image_size in the configuration for one of "
            "images."
        )
    if any(given is not None for given in text):
        raise ValueError(
            "this is a model of images (image_size is set): give pixel_values and nothing else. Images have no "
            "pads, so no attention_mask either."
        )


def check_mask_covers_cache(
    mask: Tensor, length: int, past: int | Tensor, position_embedding_type: str, layer_types: Sequence[str]
) -> None:
    """Refuse a mask of the new tokens alone where the answer depends on how many cached tokens are pads.

    Args:
        mask: (batch, columns).
        length: new tokens.
        past: positions that the cache holds.
        position_embedding_type: of the model.
        layer_types: what each layer of the cache keeps.

    Raises:
        ValueError: the mask leaves out the cached tokens, and positions or attention count them.
    """
    counts = position_embedding_type != "none" or any(map(attends, layer_types))
    if not counts or torch.compiler.is_compiling() or mask.ndim != 2 or mask.shape[1] != length:
        return
    if int(past) > 0:
        raise ValueError(
            f"attention_mask covers the {length} new tokens only, but positions are counted over {int(past)} "
            f"cached ones, too: give a mask of {int(past) + length} columns."
        )
