"""Blocks of a text's tokens, and the losses of a causal language model on them."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from ..._labels import IGNORED_LABEL
from .documents import positions_explained

__all__ = ["TOKENS_PER_BATCH", "TextBlock", "batch_nll", "logits_of", "text_blocks"]

TOKENS_PER_BATCH = 8192
"""Of a forward, where no batch size is given."""
_LOGITS_PER_CHUNK = 2**24  # float32 copies of the logits stay below 64 MiB


class TextBlock(NamedTuple):
    """Inputs `start` to before `end` of a document (0: the prefix); inputs from `scored` on predict a target."""

    document: int
    start: int
    scored: int
    end: int


def text_blocks(documents: Sequence[np.ndarray], context_length: int, stride: int) -> Iterator[TextBlock]:
    """Yield the blocks in which each token of each document but its first is predicted once, in order.

    Args:
        documents: (tokens,) each, of which the first is not predicted.
        context_length: tokens of a block, at most.
        stride: tokens that a later block of a document predicts; `context_length` for blocks that do not overlap.
    """
    for index, ids in enumerate(documents):
        num_inputs = len(ids) - 1
        end = min(context_length, num_inputs)
        yield TextBlock(index, 0, 0, end)
        while end < num_inputs:
            scored, start = end, end + stride - context_length
            end = min(scored + stride, num_inputs)
            yield TextBlock(index, start, scored, end)


def batch_nll(
    model: PreTrainedModel, documents: Sequence[np.ndarray], blocks: Sequence[TextBlock]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the position in its block and negative log-likelihood (float64) of each token that the blocks score."""
    length = max(block.end - block.start for block in blocks)
    inputs = np.zeros((len(blocks), length), dtype=np.int64)
    targets = np.full((len(blocks), length), IGNORED_LABEL)
    for row, block in enumerate(blocks):
        ids = documents[block.document]
        # Any id will do as padding: it stands after everything that is scored, and a causal model cannot see it.
        inputs[row] = ids[block.start]
        inputs[row, : block.end - block.start] = ids[block.start : block.end]
        targets[row, block.scored - block.start : block.end - block.start] = ids[block.scored + 1 : block.end + 1]
    skipped = min(block.scored - block.start for block in blocks)
    with positions_explained(model, length):
        logits = logits_of(model, inputs, length - skipped)
    scored_positions = np.broadcast_to(np.arange(length), targets.shape)[targets != IGNORED_LABEL]
    flat_logits = logits.flatten(0, 1)
    flat_targets = torch.from_numpy(targets[:, skipped:].reshape(-1)).to(logits.device)
    rows = max(1, _LOGITS_PER_CHUNK // logits.shape[-1])
    losses = [
        torch.nn.functional.cross_entropy(chunk.float(), wanted, reduction="none")
        for chunk, wanted in zip(flat_logits.split(rows), flat_targets.split(rows), strict=True)
    ]
    nll = torch.cat(losses)[flat_targets != IGNORED_LABEL].cpu().double().numpy()
    if not np.isfinite(nll).all():
        raise ValueError(
            f"{type(model).__name__} in {logits.dtype} gave a loss that is not finite at context length {length}: the "
            "weights are broken, or the dtype overflows (try float32)."
        )
    return scored_positions, nll


@torch.inference_mode()
def logits_of(model: PreTrainedModel, inputs: np.ndarray, keep: int | None = None) -> torch.Tensor:
    """Return logits (batch, `keep` last positions or all, vocabulary) of a forward of (batch, length), no cache."""
    accepted = inspect.signature(model.forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    options: dict[str, Any] = {}
    if takes_any or "use_cache" in accepted:
        options["use_cache"] = False
    if keep is not None and keep < inputs.shape[1] and "logits_to_keep" in accepted:
        options["logits_to_keep"] = keep
    logits = model(input_ids=torch.from_numpy(inputs).to(model.device), **options).logits
    return logits if keep is None else logits[:, -keep:]
