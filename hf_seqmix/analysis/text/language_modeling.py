"""Bits per byte and perplexity of any causal language model, at several context lengths."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...modules.evaluation import in_evaluation
from .blocks import TOKENS_PER_BATCH, batch_nll, logits_of, text_blocks
from .documents import find_prefix_token, refuse_other_tokenizer, tokenize_documents
from .scores import LanguageModelScore, position_edges

__all__ = ["evaluate_language_model", "iter_language_model_scores", "refuse_future"]


def evaluate_language_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    *,
    context_lengths: Sequence[int] = (512,),
    stride: int | None = None,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    prefix_token_id: int | None = None,
    check_causality: bool = True,
    progress: bool = True,
) -> list[LanguageModelScore]:
    """Score held-out text with a causal language model, every byte once for each context length.

    Each text is a document of its own: the model reads a prefix token (by default the tokenizer's
    beginning-of-sequence token, or else its end-of-sequence token), then the document, and no special token is
    scored. With t_0 the prefix and t_1 ... t_N the document, a block of n inputs t_i ... t_{i+n-1} scores the targets
    t_{i+1} ... t_{i+n}, and the next block begins at t_{i+n}: each target is scored once, from 1 to n tokens of
    context, as language models are evaluated in papers. With `stride` s < n the next block begins s tokens later and
    scores only its last s targets, which therefore see at least n - s + 1 tokens: closer to how a model is used,
    n / s times slower.

    Only the model's forward is used. Losses are computed in float32 from chunks of the logits and summed in float64.

    Args:
        model: any causal language model; scored in evaluation mode and left in the mode it was in.
        tokenizer: its tokenizer. Special tokens are not added to the documents.
        texts: the documents. Empty ones are skipped. Special tokens that are spelled out in a text are text.
        context_lengths: numbers of input tokens of a block. Larger than the text is allowed.
        stride: tokens scored per block, at most the smallest context length; None for blocks that do not overlap.
        batch_size: blocks per forward; by default about 8192 tokens' worth.
        device: where to move the model; None leaves it where it is.
        prefix_token_id: the token read before each document.
        check_causality: compare the predictions for two texts with a common beginning first, and refuse a model whose
            predictions depend on later tokens, since its figures would mean nothing.
        progress: show a progress bar for each context length.

    Returns:
        One `LanguageModelScore` for each of `context_lengths`, in order.

    Raises:
        ValueError: there is no text; a context length or the stride is not positive, or the stride is too large; the
            tokenizer has no token to begin with; the tokenizer's ids do not fit the model's vocabulary; the model
            looks at later tokens, cannot take that many tokens, or gives losses that are not finite.
    """
    return list(
        iter_language_model_scores(
            model,
            tokenizer,
            texts,
            context_lengths=context_lengths,
            stride=stride,
            batch_size=batch_size,
            device=device,
            prefix_token_id=prefix_token_id,
            check_causality=check_causality,
            progress=progress,
        )
    )


def iter_language_model_scores(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    *,
    context_lengths: Sequence[int] = (512,),
    stride: int | None = None,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    prefix_token_id: int | None = None,
    check_causality: bool = True,
    progress: bool = True,
) -> Iterator[LanguageModelScore]:
    """Do as `evaluate_language_model`, and yield each score as soon as the score is known."""
    if not context_lengths or min(context_lengths) < 1:
        raise ValueError(f"context_lengths must be one or more positive numbers; given {list(context_lengths)}.")
    if stride is not None and not 1 <= stride <= min(context_lengths):
        raise ValueError(f"stride must be between 1 and the smallest context length, or None; given {stride}.")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be positive; given {batch_size}.")
    if device is not None:
        movable: Any = model  # the library's annotations of `to` hide its arguments
        movable.to(device)

    prefix = find_prefix_token(tokenizer) if prefix_token_id is None else prefix_token_id
    documents, sizes = tokenize_documents(tokenizer, texts, prefix)
    size = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if size is not None:
        refuse_other_tokenizer(max(int(ids.max()) for ids in documents), size)

    with in_evaluation(model):
        if check_causality:
            # No more tokens than are scored at once: a model may have learned positions for these alone.
            refuse_future(model, max(documents, key=len), max(1, min(8, max(context_lengths) // 2)))
        for length in context_lengths:
            yield _score(model, documents, length, stride or length, batch_size, sizes, progress)


def refuse_future(model: PreTrainedModel, tokens: np.ndarray, half: int = 8) -> None:
    """Raise if replacing the second half of a short text changes the predictions in the first.

    Args:
        model: to be checked, without dropout meanwhile.
        tokens: (length,) ids, of which the first 2 `half` are read, or all of them again in turn.
        half: tokens of a half.

    Raises:
        ValueError: the model sees the future.
    """
    ids = np.resize(tokens, 2 * half)
    changed = np.concatenate([ids[:half], np.roll(ids[:half], 1)])
    if np.array_equal(ids, changed):
        changed[half:] = ids[0]
    with in_evaluation(model):
        logits = logits_of(model, np.stack([ids, changed]))[:, :half].float()
    spread = logits.std().item()
    difference = (logits[0] - logits[1]).square().mean().sqrt().item()
    full_precision = next(model.parameters()).dtype in (torch.float32, torch.float64)
    if difference > (1e-3 if full_precision else 5e-2) * spread:
        raise ValueError(
            f"{type(model).__name__} predicts a token differently when later tokens change (by {difference:.2g}; the "
            f"logits spread by {spread:.2g}), so it is not a causal language model and its perplexity means nothing. "
            "Was it trained as a masked model?"
        )


def _score(
    model: PreTrainedModel,
    documents: list[np.ndarray],
    context_length: int,
    stride: int,
    batch_size: int | None,
    sizes: dict[str, int],
    progress: bool,
) -> LanguageModelScore:
    started = time.perf_counter()
    # Blocks of one length together waste no time on padding, and the longest first shows at once what memory allows.
    blocks = sorted(text_blocks(documents, context_length, stride), key=lambda block: block.start - block.end)
    longest = blocks[0].end - blocks[0].start
    batch_size = batch_size or max(1, TOKENS_PER_BATCH // longest)
    sums, counts = np.zeros(longest), np.zeros(longest, dtype=np.int64)
    with tqdm(
        total=sizes["num_tokens"], desc=f"context {context_length}", unit="tok", unit_scale=True, disable=not progress
    ) as bar:
        for first in range(0, len(blocks), batch_size):
            positions, nll = batch_nll(model, documents, blocks[first : first + batch_size])
            sums += np.bincount(positions, weights=nll, minlength=longest)
            counts += np.bincount(positions, minlength=longest)
            bar.update(len(nll))
    assert counts.sum() == sizes["num_tokens"]

    edges = np.asarray([edge for edge in position_edges(context_length)[:-1] if edge < longest])
    bucket_sums, bucket_counts = np.add.reduceat(sums, edges), np.add.reduceat(counts, edges)
    used = bucket_counts > 0
    return LanguageModelScore(
        context_length=context_length,
        stride=stride,
        nll=float(sums.sum()),
        position_start=tuple(edges[used].tolist()),
        position_tokens=tuple(bucket_counts[used].tolist()),
        position_nll=tuple(bucket_sums[used].tolist()),
        seconds=time.perf_counter() - started,
        **sizes,
    )
