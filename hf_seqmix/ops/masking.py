"""What attention masks say: which tokens are real, and the positions of these."""

import torch
from torch import Tensor

__all__ = ["all_are_real", "padding_mask", "real_positions", "real_tokens"]


def real_tokens(attention_mask: Tensor, batch: int, length: int, past_length: int | Tensor) -> Tensor:
    """Say which tokens a 2D mask calls real.

    Args:
        attention_mask: (batch, length) or (batch, past + length), nonzero at real tokens.
        batch: rows of this call.
        length: tokens of a row in this call.
        past_length: number of positions in the cache.

    Returns:
        bool, of the same shape.

    Raises:
        ValueError: for any other shape.
    """
    if not isinstance(past_length, int) and not torch.compiler.is_compiling():
        past_length = int(past_length)
    fits = attention_mask.ndim == 2 and attention_mask.shape[0] == batch
    if fits and isinstance(past_length, int):
        # Compared one by one: a set of lengths would tie a compiled graph to them.
        fits = attention_mask.shape[1] == length or attention_mask.shape[1] == past_length + length
    if not fits:
        cached = past_length if isinstance(past_length, int) else 0
        allowed = f"({batch}, {length})" + (f" or ({batch}, {cached + length})" if cached else "")
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; for {batch} rows of {length} tokens"
            f"{f' after {cached} cached ones' if cached else ''} it must be {allowed}, nonzero at real tokens."
        )
    return attention_mask != 0


def all_are_real(attention_mask: Tensor) -> bool:
    """Return whether a mask calls all tokens real.

    Raises:
        ValueError: for a number other than 0 and 1. An additive mask has -inf at pads, and numbers of documents would
            be taken for real tokens of one sequence.
    """
    if attention_mask.dtype == torch.bool:
        return bool(attention_mask.all())
    ones = attention_mask == 1
    whole, known = torch.stack([ones.all(), (ones | (attention_mask == 0)).all()]).tolist()  # one wait
    if not known:
        low, high = attention_mask.min().item(), attention_mask.max().item()
        raise ValueError(
            f"attention_mask has numbers from {low:g} to {high:g}; it must be 1 at real tokens and 0 at pads. For "
            "several documents in a row give seq_idx, cu_seq_lens_q or position_ids that restart."
        )
    return bool(whole)


def real_positions(
    attention_mask: Tensor | None, batch: int, length: int, past_length: int | Tensor, device: torch.device
) -> Tensor:
    """Count real tokens from the start of each row: positions that do not depend on padding.

    Args:
        attention_mask: (batch, length) or (batch, past + length), or None.
        batch: rows of this call.
        length: tokens of a row in this call.
        past_length: number of positions in the cache.
        device: where to build the result without a mask.

    Returns:
        (batch or 1, length) long, from 0; a pad repeats the position before it.
    """
    if attention_mask is None:
        return (torch.arange(length, device=device) + past_length).unsqueeze(0)
    mask = real_tokens(attention_mask, batch, length, past_length)
    positions = mask.long().cumsum(dim=1) - 1
    if mask.shape[1] == length:
        positions = positions + past_length
    return positions[:, mask.shape[1] - length :].clamp(min=0)


def padding_mask(
    attention_mask: Tensor | dict[str, Tensor | None] | None, batch: int, length: int, past_length: int | Tensor
) -> Tensor | None:
    """Return a 2D mask of the real tokens: the given one, or what masks that `generate` prepared for layers say.

    Args:
        attention_mask: a 2D mask; or one for each type of layer, 2D, or (batch or 1, 1, length, keys) with True (or
            0, not -inf) where a query sees a key; None when all are real.
        batch: rows of this call.
        length: tokens of a row in this call.
        past_length: number of positions in the cache.

    Returns:
        (batch, length) or (batch, past + length), nonzero at real tokens; None when all are real.
    """
    if not isinstance(attention_mask, dict):
        return attention_mask
    prepared = None
    all_real = False
    for mask in attention_mask.values():  # a loop, since older compilers do not follow a generator
        if mask is None:
            all_real = True
        elif mask.ndim == 2:
            return mask.index_select(1, torch.arange(length, device=mask.device) + past_length)
        else:
            prepared = mask
    if prepared is None or all_real:
        return None
    # What the last query sees are the real tokens.
    seen = prepared[:, 0, -1] if prepared.dtype == torch.bool else prepared[:, 0, -1] >= 0
    return seen.index_select(1, torch.arange(length, device=seen.device) + past_length).expand(batch, -1)
