"""Texts as documents of tokens that a language model is scored on."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ...data.byte_tokenizer import byte_ids, reads_bytes
from ...data.tokenization import lost_distinctions

__all__ = [
    "find_prefix_token",
    "positions_explained",
    "refuse_one_string",
    "refuse_other_tokenizer",
    "tokenize_documents",
]

logger = logging.get_logger(__name__)


def find_prefix_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token before each document: the beginning-of-sequence, else the end-of-sequence token.

    Raises:
        ValueError: the tokenizer has neither.
    """
    for name in ("bos_token_id", "eos_token_id"):
        token = getattr(tokenizer, name)
        if token is not None:
            return token
    raise ValueError(
        "the tokenizer has neither a beginning-of-sequence nor an end-of-sequence token, and without one the first "
        "token of a document has no context to be predicted from; give prefix_token_id, the token between "
        "documents in training."
    )


def tokenize_documents(
    tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], prefix: int
) -> tuple[list[np.ndarray], dict[str, int]]:
    """Return documents as arrays of token ids, each after the prefix token, and the size of the text.

    Special tokens are not added, and where a text spells one out, that is text. Empty documents are left out.

    Raises:
        ValueError: `texts` is one string, or holds no text.
    """
    refuse_one_string(texts)
    documents, of_bytes = [], reads_bytes(tokenizer)
    sizes = {"num_tokens": 0, "num_bytes": 0, "num_words": 0, "num_documents": 0, "num_unknown": 0}
    for text in texts:
        if of_bytes:
            ids = byte_ids(text)
        else:
            ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        if len(ids) == 0:
            continue
        documents.append(np.asarray([prefix, *ids], dtype=np.int64))
        sizes["num_tokens"] += len(ids)
        sizes["num_bytes"] += len(text.encode("utf-8"))
        sizes["num_words"] += len(text.split())
        sizes["num_documents"] += 1
        if tokenizer.unk_token_id not in (None, prefix):
            sizes["num_unknown"] += int((documents[-1] == tokenizer.unk_token_id).sum())
    if not documents:
        raise ValueError("there is no text to score: texts is empty or holds only empty documents.")
    if sizes["num_unknown"]:
        logger.warning(
            f"{sizes['num_unknown']} of {sizes['num_tokens']} tokens stand for text that the tokenizer does not know; "
            "bits per byte and perplexity come out too low."
        )
    if lost := [] if of_bytes else lost_distinctions(tokenizer):
        logger.warning(f"the tokenizer drops {' and '.join(lost)}: bits per byte are of a simpler text, and too low.")
    return documents, sizes


def refuse_one_string(texts: Iterable[str]) -> None:
    """Raise a ValueError if a text was given where a list of them is meant."""
    if isinstance(texts, str):
        raise ValueError("texts must be a list of documents; given one string: put it in a list.")


def refuse_other_tokenizer(largest: int, vocabulary: int) -> None:
    """Raise a ValueError if the largest id that a tokenizer gave lies beyond the model's vocabulary."""
    if largest >= vocabulary:
        raise ValueError(
            f"the tokenizer produced the id {largest}, and the model's vocabulary has {vocabulary} entries: "
            "use the tokenizer that the model was trained with."
        )


@contextmanager
def positions_explained(model: PreTrainedModel, length: int) -> Iterator[None]:
    """Say why a forward of so many tokens failed, where the model has no positions for them.

    Raises:
        ValueError: instead of the error of the forward.
    """
    try:
        yield
    except (IndexError, RuntimeError) as error:
        limit = getattr(model.config, "max_position_embeddings", None)
        if limit is None or length <= limit or isinstance(error, torch.OutOfMemoryError):
            raise
        raise ValueError(
            f"{type(model).__name__} failed on {length} tokens; its configuration says max_position_embeddings = "
            f"{limit}: choose context lengths up to {limit}. ({error})"
        ) from error
