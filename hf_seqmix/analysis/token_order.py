"""Models that read their tokens in another order: permuted before positions are known, as a trained model stands."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from ..models.backbone import SeqMixModel

__all__ = ["Order", "first_to_end", "permuted_tokens"]

Order = Callable[[int], Tensor]
"""From a number of tokens to the places that are read, (length,): token t of the new order is token order[t]."""

_PATCHES = ("patch_embeddings", "patch_embedding")
_POSITIONS = ("position_embeddings", "position_embedding")
"""Names in models of the library."""


def first_to_end(length: int, count: int = 10) -> Tensor:
    """Return the order count, ..., length - 1, 0, ..., count - 1: the first tokens are moved to the end.

    The permutation of Table 1 of Jiang and Li (arXiv 2305.18475), with a count of 10. A row of at most `count` tokens
    stays as it is.

    Args:
        length: number of tokens.
        count: of tokens that are moved, at least 0.

    Returns:
        (length,), integers.

    Raises:
        ValueError: `count` is negative.
    """
    if count < 0:
        raise ValueError(f"count is {count}; give a number of tokens of at least 0.")
    return torch.arange(length).roll(-min(count, length))


@contextmanager
def permuted_tokens(model: PreTrainedModel, order: Order = first_to_end) -> Iterator[None]:
    """Have a model read its tokens in another order for a while, in evaluation, training and generation.

    The order changes before positions are added or counted, so a token is read at its new place: H(x o p) instead of
    H(x), Section 6 of Jiang and Li (arXiv 2305.18475).

    * Models of images: the patches, row after row, between their embedding and what adds positions. A token of the
      class is no patch and stays. Models of this package, and models of the library in which a module holds both a
      patch embedding and position embeddings (ViT, DeiT, CLIP, SigLIP, DINOv2).
    * Models with an encoder and a decoder (Marian, T5, BART): what the encoder reads. Only real tokens of a row move,
      the end of the sentence among them; pads stay where they are.

    Args:
        model: unchanged, but for hooks that are removed at the end.
        order: called with the number of patches, or of the real tokens of a row.

    Raises:
        ValueError: the place before the positions of this model is not known. In calls of the model: what is read is
            no sequence of patches or tokens, or `order` gives no permutation.
    """
    hook = _hook(model, order)
    try:
        yield
    finally:
        hook.remove()


def _hook(model: PreTrainedModel, order: Order) -> RemovableHandle:
    if model.config.is_encoder_decoder and model.main_input_name == "input_ids":
        encoder = model.get_encoder()
        names = list(inspect.signature(encoder.forward).parameters)

        def before(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
            return (), _permute_text(dict(zip(names, args, strict=False)) | given, order)

        return encoder.register_forward_pre_hook(before, with_kwargs=True)

    def after(patches: nn.Module, _: tuple[Any, ...], embedded: Any) -> Tensor:
        if not isinstance(embedded, Tensor) or embedded.ndim not in (3, 4):
            raise ValueError(
                f"{type(patches).__name__} of {type(model).__name__} gives no tensor (batch, patches, channels) or "
                "(batch, channels, height, width): the order of its patches cannot be changed."
            )
        if embedded.ndim == 3:
            return embedded[:, _permutation(order, embedded.shape[1], embedded.device)]
        rows = embedded.flatten(2)  # (batch, channels, patches)
        return rows[..., _permutation(order, rows.shape[2], rows.device)].view_as(embedded)

    return _patch_embedding(model).register_forward_hook(after)


def _patch_embedding(model: PreTrainedModel) -> nn.Module:
    found: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, SeqMixModel):
            found += [] if module.embed_patches is None else [module.embed_patches]
        elif any(isinstance(getattr(module, name, None), (nn.Module, Tensor)) for name in _POSITIONS):
            embeddings = [getattr(module, name, None) for name in _PATCHES]
            found += [patches for patches in embeddings if isinstance(patches, nn.Module)]
    if len(found) != 1:
        what = "no module" if not found else "more than one module"
        raise ValueError(
            f"{type(model).__name__} has {what} that embeds patches and adds positions to them, and is no model with "
            "an encoder of tokens: the order of its tokens cannot be changed before its positions. Give a model of "
            "images of this package, one like ViT, or a model with an encoder and a decoder."
        )
    return found[0]


def _permute_text(given: dict[str, Any], order: Order) -> dict[str, Any]:
    """Return the arguments of an encoder with the real tokens of each row in another order."""
    name = "input_ids" if given.get("input_ids") is not None else "inputs_embeds"
    tokens = given.get(name)
    if not isinstance(tokens, Tensor) or tokens.ndim < 2:
        raise ValueError("the encoder is given no input_ids (batch, length) and no inputs_embeds: give one of them.")
    mask = given.get("attention_mask")
    if mask is not None and mask.shape != tokens.shape[:2]:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}, but there are {tuple(tokens.shape[:2])} tokens: give one "
            "number a token, so that pads are known."
        )
    batch, length = tokens.shape[:2]
    places = torch.arange(length, device=tokens.device).repeat(batch, 1)
    for row, real in zip(places, places >= 0 if mask is None else mask.bool(), strict=True):
        own = real.nonzero()[:, 0]
        row[own] = own[_permutation(order, len(own), own.device)]
    return {**given, name: tokens[torch.arange(batch, device=tokens.device)[:, None], places]}


def _permutation(order: Order, length: int, device: torch.device) -> Tensor:
    found = order(length)
    if found.shape != (length,) or not torch.equal(found.sort().values.cpu(), torch.arange(length)):
        raise ValueError(f"the order of {length} tokens is {found.tolist()}; give each number below {length} once.")
    return found.to(device)
