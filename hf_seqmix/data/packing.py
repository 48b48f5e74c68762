"""Cut documents into blocks of tokens of one length, for training and for evaluation."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from .._labels import IGNORED_LABEL
from .byte_tokenizer import byte_ids, reads_bytes
from .tokenization import token_bytes
from .versioned import of_this_version

__all__ = ["pack_for_evaluation", "pack_for_training", "total_bytes"]

AnyDataset = TypeVar("AnyDataset", datasets.Dataset, datasets.IterableDataset)
Batch: TypeAlias = dict[str, Any]

# A stream is packed this many documents at a time; tokens that do not fill a block are dropped.
STREAMED_DOCUMENTS = 1000


def pack_for_training(
    documents: AnyDataset,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    *,
    causal: bool = True,
    respect_documents: bool = False,
    num_proc: int | None = None,
) -> AnyDataset:
    """Tokenize `documents` and cut them, one after the other, into blocks of exactly `block_size` tokens.

    The end-of-text token stands before each document: it ends the previous document and is the context of the first
    token of the next document. Tokens that do not fill the last block are dropped (in a stream, once every thousand
    documents). Special tokens that are spelled out in a text are text.

    Args:
        documents: rows with a column `text`.
        tokenizer: its end-of-text (else separator, else begin-of-text) token separates documents; without one they
            follow each other directly.
        block_size: tokens a block, at least 2.
        causal: add `labels` equal to the inputs; the model shifts the labels. For masked language models the collator
            makes the labels.
        respect_documents: add `position_ids` that restart at each document, which makes a model mix every document
            alone.
        num_proc: processes that tokenize.

    Returns:
        Rows of `input_ids`, and `labels` and `position_ids` as asked for, each of `block_size` integers.

    Raises:
        ValueError: the block size is below 2, a text is no string, or the documents do not fill one block.
    """
    tokens = _tokenize(documents, tokenizer, with_bytes=False, num_proc=num_proc)
    pack = of_this_version(
        _pack, block_size=block_size, pad_id=None, overlap=0, causal=causal, respect_documents=respect_documents
    )
    blocks = _map_blocks(tokens, pack, block_size, with_bytes=False)
    if next(iter(blocks), None) is None:
        raise ValueError(
            f"the training text has fewer tokens than one block of {block_size}. Give more text or a smaller block"
            " size."
        )
    return blocks


def pack_for_evaluation(
    documents: AnyDataset,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    *,
    causal: bool = True,
    respect_documents: bool = False,
    num_proc: int | None = None,
) -> AnyDataset:
    """Tokenize `documents` and cut them into blocks in which every token is predicted exactly once.

    The arguments are those of [`pack_for_training`]. No token is dropped: the last block is padded.

    A causal model says nothing about the first token of a block. Blocks of a causal model therefore overlap by one
    token: each block begins with the last token of the previous block, as context only, and the first block begins
    with the end-of-text token; a tokenizer without one (nor a token that separates or begins texts) leaves the first
    token out. The sum of the losses over all blocks is then the code length of the whole text. The
    code length divided by [`total_bytes`] gives bits per byte, for a tokenizer that keeps all of a text: one that
    lowers its case or has unknown tokens codes another text. The end-of-text tokens between documents are predicted
    too and have no bytes, so the figure is, if anything, too high.

    Returns:
        Rows of `input_ids`, `num_bytes` (UTF-8 bytes of the text whose tokens this block predicts), `attention_mask`,
        and for causal models `labels` (-100 on padding). With `respect_documents` there are `position_ids` instead of
        the mask, and the padding is a document of its own.

    Raises:
        ValueError: as in [`pack_for_training`], but one token of text is enough, two without an end-of-text token.
    """
    tokens = _tokenize(documents, tokenizer, with_bytes=True, num_proc=num_proc)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else _separator(tokenizer)
    pack = of_this_version(
        _pack,
        block_size=block_size,
        pad_id=pad_id or 0,
        overlap=1 if causal else 0,
        causal=causal,
        respect_documents=respect_documents,
    )
    blocks = _map_blocks(tokens, pack, block_size, with_bytes=True)
    if next(iter(blocks), None) is None:
        raise ValueError(
            "the evaluation text has no token to predict. Give more text, or a tokenizer with an end-of-text token."
        )
    return blocks


def total_bytes(blocks: datasets.Dataset | datasets.IterableDataset) -> int:
    """Return how many UTF-8 bytes of text the blocks of [`pack_for_evaluation`] predict; a stream is read once."""
    if isinstance(blocks, datasets.Dataset):
        return int(np.sum(blocks.with_format("numpy")["num_bytes"][:]))
    return sum(row["num_bytes"] for row in blocks)


def _tokenize(
    documents: AnyDataset, tokenizer: PreTrainedTokenizerBase, *, with_bytes: bool, num_proc: int | None
) -> AnyDataset:
    options: dict[str, Any] = {}
    if isinstance(documents, datasets.Dataset):
        options = {"num_proc": num_proc, "desc": "Tokenizing"}
    encode = of_this_version(_encode, tokenizer=tokenizer, separator=_separator(tokenizer), with_bytes=with_bytes)
    # A stream may not know its columns, so they are named, here and in `_map_blocks`.
    texts = documents.select_columns(["text"])
    return texts.map(
        encode,
        batched=True,
        batch_size=100,
        with_indices=True,
        input_columns="text",
        remove_columns=["text"],
        **options,
    )


def _separator(tokenizer: PreTrainedTokenizerBase) -> int | None:
    candidates = (tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id)
    return next((token for token in candidates if token is not None), None)


def _encode(
    texts: list[str],
    rows: list[int],
    tokenizer: PreTrainedTokenizerBase,
    separator: int | None,
    with_bytes: bool,
) -> Batch:
    """Return the token ids of each text, the separator first, and how many bytes each token stands for."""
    for text, row in zip(texts, rows, strict=True):
        if not isinstance(text, str):
            raise ValueError(f"text of row {row} is {text!r}; it must be a string: filter such rows out first.")
    prefix = [] if separator is None else [separator]
    if reads_bytes(tokenizer):
        encoded_bytes = [byte_ids(text) for text in texts]
        batch: Batch = {"input_ids": [prefix + ids for ids in encoded_bytes]}
        if with_bytes:
            batch["num_bytes"] = [[0] * len(prefix) + [1] * len(ids) for ids in encoded_bytes]
        return batch
    with_offsets = with_bytes and tokenizer.is_fast
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=with_offsets,
        verbose=False,
    )
    batch = {"input_ids": [prefix + ids for ids in encoded["input_ids"]]}
    if with_bytes:
        offsets = encoded["offset_mapping"] if with_offsets else [None] * len(texts)
        batch["num_bytes"] = [
            [0] * len(prefix) + token_bytes(text, len(ids), places).tolist()
            for text, ids, places in zip(texts, encoded["input_ids"], offsets, strict=True)
        ]
    return batch


def _map_blocks(
    tokens: AnyDataset, pack: Callable[[Batch], Batch], block_size: int, *, with_bytes: bool
) -> AnyDataset:
    if block_size < 2:
        raise ValueError(
            f"the block size is {block_size}; a block needs at least 2 tokens, one to predict from another."
        )
    if isinstance(tokens, datasets.Dataset):
        # The whole split at once, so that only one block in all is incomplete.
        blocks = tokens.with_format("numpy").map(
            pack,
            batched=True,
            batch_size=None,
            remove_columns=tokens.column_names,
            desc=f"Packing blocks of {block_size}",
        )
    else:
        # As lists: a stream would hand arrays on as they are, and labels must not arrive as 32-bit tensors.
        blocks = tokens.map(
            lambda batch: {name: values.tolist() for name, values in pack(batch).items()},
            batched=True,
            batch_size=STREAMED_DOCUMENTS,
            remove_columns=["input_ids", "num_bytes"] if with_bytes else ["input_ids"],
        )
    return blocks.with_format(None)


def _pack(
    batch: Batch,
    block_size: int,
    pad_id: int | None,
    overlap: int,
    causal: bool,
    respect_documents: bool,
) -> Batch:
    """Return blocks of the concatenated documents; without a `pad_id` the incomplete last block is dropped."""
    documents = [np.asarray(ids, dtype=np.int32) for ids in batch["input_ids"]]
    length = sum(ids.size for ids in documents)
    stride = block_size - overlap
    if pad_id is None:
        num_blocks = max(length - overlap, 0) // stride
    else:
        num_blocks = -(-max(length - overlap, 0) // stride)

    def blocks(values: list[np.ndarray], fill: int) -> np.ndarray:
        if num_blocks == 0:
            return np.zeros((0, block_size), dtype=np.int32)
        flat = np.full((num_blocks - 1) * stride + block_size, fill, dtype=np.int32)
        joined = np.concatenate(values)[: flat.size]
        flat[: joined.size] = joined
        return np.lib.stride_tricks.sliding_window_view(flat, block_size)[::stride]

    is_text = blocks([np.ones(length, dtype=np.int32)], 0)
    packed: Batch = {"input_ids": blocks(documents, pad_id or 0)}
    if causal:
        packed["labels"] = np.where(is_text == 1, packed["input_ids"], np.int32(IGNORED_LABEL))
    if respect_documents:
        in_document = blocks([np.arange(ids.size, dtype=np.int32) for ids in documents], 0)
        in_block = np.arange(block_size, dtype=np.int32)
        in_padding = in_block - is_text.sum(axis=1, keepdims=True, dtype=np.int32)
        packed["position_ids"] = np.where(is_text == 1, np.minimum(in_document, in_block), in_padding)
    elif pad_id is not None:
        packed["attention_mask"] = is_text
    if pad_id is not None:
        num_bytes = blocks([np.asarray(count, dtype=np.int32) for count in batch["num_bytes"]], 0)
        packed["num_bytes"] = num_bytes[:, overlap:].sum(axis=1)
    return packed
