"""How well a masked language model fills gaps in held-out text, beside models that need no training."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.ngram import ByteNGram
from ...data.tokenization import token_bytes
from ...modules.evaluation import in_evaluation
from .documents import positions_explained, refuse_one_string, refuse_other_tokenizer

__all__ = [
    "MaskedBlock",
    "MaskedModelScore",
    "check_masking",
    "evaluate_masked_model",
    "majority_accuracy",
    "mask_documents",
    "ngram_bits_per_byte",
]

_TOKENS_PER_BATCH = 8192
_LOGITS_PER_BATCH = 2**26  # 256 MiB in float32


@dataclass(frozen=True)
class MaskedBlock:
    """A piece of a document and the tokens in it that are to be guessed.

    Attributes:
        input_ids: `(length,)`, the true tokens, the first block of a document after the separator.
        positions: `(masked,)`, which of them are masked.
        document: index of the text they come from.
        byte_starts, byte_ends: `(masked,)`, the UTF-8 bytes of the document that each masked token stands for.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    document: int
    byte_starts: np.ndarray
    byte_ends: np.ndarray


@dataclass(frozen=True, kw_only=True)
class MaskedModelScore:
    """How well a model guesses masked tokens.

    Attributes:
        context_length: tokens of a block, masked ones included.
        nll: negative log-likelihood of the masked tokens, in nats.
        num_right: masked tokens that were the model's first choice.
        num_masked, num_bytes: masked tokens, and the UTF-8 bytes they stand for.
        seconds: wall time of the evaluation.
    """

    context_length: int
    nll: float
    num_right: int
    num_masked: int
    num_bytes: int
    seconds: float

    @property
    def bits_per_byte(self) -> float:
        """Return nll / (ln 2 * bytes of the masked tokens): comparable whatever the tokenizer."""
        return self.nll / (math.log(2) * self.num_bytes)

    @property
    def token_loss(self) -> float:
        """Nats a masked token."""
        return self.nll / self.num_masked

    @property
    def accuracy(self) -> float:
        """Share of the masked tokens that were the model's first choice."""
        return self.num_right / self.num_masked

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes and the figures derived from them, ready for JSON."""
        derived = {"bits_per_byte": self.bits_per_byte, "token_loss": self.token_loss, "accuracy": self.accuracy}
        return {**asdict(self), **derived}


def check_masking(context_length: int, share: float) -> None:
    """Raise a ValueError unless blocks of so many tokens, of which this share is masked, can be made."""
    if context_length < 2:
        raise ValueError(f"context_length is {context_length}; a gap needs text around it: give 2 or more.")
    if not 0 < share < 1:
        raise ValueError(f"share is {share}; the share of tokens to mask must be between 0 and 1.")


def mask_documents(
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    *,
    context_length: int = 128,
    share: float = 0.15,
    seed: int = 0,
) -> list[MaskedBlock]:
    """Cut texts into blocks and choose the tokens to guess, each with probability `share`, apart from the model.

    Each text is a document of its own, after the tokenizer's end-of-sequence (else separator, else
    beginning-of-sequence) token, and is cut into blocks of `context_length` tokens. The choice depends on `seed`, the
    document's place and its number of tokens alone. A block in which nothing was chosen is left out.

    Raises:
        ValueError: `texts` is one string; `context_length` is below 2; `share` is not between 0 and 1; or nothing is
            masked.
    """
    refuse_one_string(texts)
    check_masking(context_length, share)
    candidates = (tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id)
    separator = next(([token] for token in candidates if token is not None), [])
    blocks = []
    for index, text in enumerate(texts):
        encoded = tokenizer(
            text,
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=tokenizer.is_fast,
            verbose=False,
        )
        own = np.asarray(encoded["input_ids"], dtype=np.int64)
        sizes = token_bytes(text, len(own), encoded.get("offset_mapping"))
        ends = np.concatenate([np.zeros(len(separator), dtype=np.int64), np.cumsum(sizes)])
        ids = np.concatenate([np.asarray(separator, dtype=np.int64), own])
        chosen = np.random.default_rng([seed, index]).random(len(ids)) < share
        chosen[: len(separator)] = False
        for start in range(0, len(ids), context_length):
            positions = np.flatnonzero(chosen[start : start + context_length])
            if positions.size:
                places = start + positions
                befores = np.where(places > 0, ends[places - 1], 0)
                blocks.append(
                    MaskedBlock(ids[start : start + context_length], positions, index, befores, ends[places])
                )
    if not blocks:
        raise ValueError("no token was masked: the texts are empty or too short for this share. Give more text.")
    return blocks


@torch.no_grad()
def evaluate_masked_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    blocks: Sequence[MaskedBlock],
    *,
    context_length: int,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    progress: bool = True,
) -> MaskedModelScore:
    """Score a masked language model on the gaps of `mask_documents`, every one of them replaced by the mask token.

    With m masked tokens w_i of a block x, the score is the sum of -ln p(w_i | x without its masked tokens), each gap
    by itself. Training usually keeps or replaces a fifth of the chosen tokens; here none is shown.

    Args:
        model: any masked language model; scored in evaluation mode and left in the mode it was in.
        tokenizer: the one that made the blocks.
        blocks: of `mask_documents`.
        context_length: that of the blocks, for the record.
        batch_size: blocks per forward; chosen from their length and the vocabulary by default.
        device: where to move the model; None leaves it where it is.
        progress: show a progress bar.

    Raises:
        ValueError: there are no blocks, the tokenizer has no mask token, its ids do not fit the model's vocabulary,
            the model has no positions for so many tokens, or its loss is not finite.
    """
    if not blocks:
        raise ValueError("blocks is empty: there is nothing to score.")
    mask, vocabulary = tokenizer.mask_token_id, model.config.vocab_size
    if mask is None:
        raise ValueError("the tokenizer has no mask token: use the one that the masked model was trained with.")
    refuse_other_tokenizer(max(mask, max(int(block.input_ids.max()) for block in blocks)), vocabulary)
    if device is not None:
        movable: Any = model  # the library's annotations of `to` hide its arguments
        movable.to(device)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be positive; given {batch_size}.")
    if batch_size is None:
        batch_size = max(1, min(_TOKENS_PER_BATCH, _LOGITS_PER_BATCH // vocabulary) // context_length)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0

    began = time.perf_counter()
    nll, right = 0.0, 0
    with in_evaluation(model):
        # Blocks of a length together: fewer pads, and the same score.
        ordered = sorted(blocks, key=lambda block: len(block.input_ids))
        for batch in tqdm(list(_batches(ordered, batch_size)), desc="masked tokens", disable=not progress):
            with positions_explained(model, max(len(block.input_ids) for block in batch)):
                logits, answers = _answers(model, batch, mask, pad)
            losses = torch.nn.functional.cross_entropy(logits, answers, reduction="sum")
            if not torch.isfinite(losses):
                raise ValueError(
                    f"{type(model).__name__} in {model.dtype} gave a loss that is not finite: the weights are broken, "
                    "or the dtype overflows (try float32)."
                )
            nll += losses.item()
            right += int((logits.argmax(-1) == answers).sum())
    return MaskedModelScore(
        context_length=context_length,
        nll=nll,
        num_right=right,
        num_masked=sum(block.positions.size for block in blocks),
        num_bytes=int(sum((block.byte_ends - block.byte_starts).sum() for block in blocks)),
        seconds=time.perf_counter() - began,
    )


def majority_accuracy(
    tokenizer: PreTrainedTokenizerBase, train: Iterable[str], blocks: Sequence[MaskedBlock]
) -> tuple[str, float]:
    """Return the most frequent token of the training texts, and the share of the gaps that it fills rightly."""
    counts: Counter[int] = Counter()
    for text in train:
        counts.update(tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"])
    if not counts:
        raise ValueError("the training text is empty: there is no most frequent token.")
    [(token, _)] = counts.most_common(1)
    answers = np.concatenate([block.input_ids[block.positions] for block in blocks])
    return str(tokenizer.decode([token])), float((answers == token).mean())


def ngram_bits_per_byte(ngram: ByteNGram, texts: Sequence[str], blocks: Sequence[MaskedBlock]) -> float:
    """Return bits per byte of the masked tokens under an n-gram that sees every byte before each, masked or not."""
    bits, num_bytes, held, lengths = 0.0, 0, -1, np.zeros(1)
    for block in blocks:
        if block.document != held:
            held = block.document
            lengths = np.concatenate([[0.0], np.cumsum(ngram.code_lengths(texts[held]))])
        bits += float((lengths[block.byte_ends] - lengths[block.byte_starts]).sum())
        num_bytes += int((block.byte_ends - block.byte_starts).sum())
    return bits / num_bytes


def _batches(blocks: Sequence[MaskedBlock], size: int) -> Iterator[Sequence[MaskedBlock]]:
    for start in range(0, len(blocks), size):
        yield blocks[start : start + size]


def _answers(
    model: PreTrainedModel, batch: Sequence[MaskedBlock], mask: int, pad: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits `(gaps, vocabulary)` in float32 and true tokens `(gaps,)` of all gaps of a batch."""
    width = max(len(block.input_ids) for block in batch)
    ids = np.full((len(batch), width), pad)
    present = np.zeros((len(batch), width), dtype=np.int64)
    gaps = np.zeros((len(batch), width), dtype=bool)
    for row, block in enumerate(batch):
        ids[row, : len(block.input_ids)] = block.input_ids
        present[row, : len(block.input_ids)] = 1
        gaps[row, block.positions] = True
    device = model.device
    answers = torch.from_numpy(ids[gaps]).to(device)
    ids[gaps] = mask
    logits = model(
        input_ids=torch.from_numpy(ids).to(device), attention_mask=torch.from_numpy(present).to(device)
    ).logits
    return logits[torch.from_numpy(gaps).to(device)].float(), answers
