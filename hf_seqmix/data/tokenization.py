"""Tokenizers for language models trained here: bytes, a BPE trained on the spot, or any pretrained tokenizer."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tokenizers
from transformers import (
    AutoTokenizer,
    ByT5Tokenizer,
    GPT2Tokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
)

from .byte_tokenizer import byte_tokenizer
from .lra.listops_tokenizer import listops_tokenizer

__all__ = [
    "build_tokenizer",
    "count_bytes",
    "covered_text",
    "lost_distinctions",
    "token_bytes",
    "train_bpe",
    "warn_of_other_tokens",
]

logger = logging.getLogger(__name__)

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
MASK = "<|mask|>"

SMALLEST_BPE = 256 + 2  # every byte, the end of a text, padding
LARGEST_BPE = 10_000_000  # memory for all tokens asked for is taken at once

_DISTINCTIONS = {"case": ("The", "the"), "accents": ("née", "nee")}


def build_tokenizer(
    spec: str | Path, texts: Iterable[str] | None = None, *, mask_token: bool = False, ends_texts: bool = True
) -> PreTrainedTokenizerBase:
    """Return the tokenizer that `spec` names.

    Args:
        spec: `"byte"` (transformers' `ByT5Tokenizer`: one token a UTF-8 byte), `"listops"` (see
            [`listops_tokenizer`]), `"bpe:4096"` (a byte-level BPE of that many tokens trained on `texts`, see
            [`train_bpe`]), or the name or folder of a pretrained tokenizer. A folder with only `vocab.json` and
            `merges.txt` is read as the byte-level BPE of GPT-2 or RoBERTa, by the special tokens of its vocabulary.
        texts: what a BPE is trained on; not used otherwise.
        mask_token: add a mask token, for masked language models, unless the tokenizer has a mask token.
        ends_texts: whether `"byte"` ends each text that it encodes, as `ByT5Tokenizer` does. A causal model would take
            a prompt for a finished text: False gives the same ids without the end (see [`byte_tokenizer`]).

    Raises:
        ValueError: the specification is none of these, a BPE has nothing to be trained on, or the folder or Hub name
            holds no tokenizer.
    """
    kind, _, argument = str(spec).partition(":")
    tokenizer: PreTrainedTokenizerBase
    if kind == "bpe":
        tokenizer = train_bpe(texts or (), _vocab_size(argument))
    elif spec == "byte":
        tokenizer = ByT5Tokenizer() if ends_texts else byte_tokenizer()
    elif spec == "listops":
        tokenizer = listops_tokenizer()
    else:
        tokenizer = _pretrained(str(spec))
    if mask_token and tokenizer.mask_token is None:
        tokenizer.add_special_tokens({"mask_token": MASK})
    return tokenizer


def train_bpe(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of `vocab_size` tokens, special tokens included; of fewer, where the texts give no more.

    All 256 bytes are in the vocabulary, so there are no unknown tokens, and decoding gives any text back exactly.
    `<|endoftext|>` opens and ends a text and `<|pad|>` pads.

    Raises:
        ValueError: the vocabulary is too small for the bytes, or `texts` is one string or has no text.
    """
    if isinstance(texts, str):
        raise ValueError("texts must be a list of documents; given one string: put it in a list.")
    if vocab_size < SMALLEST_BPE:
        raise ValueError(
            f"a byte-level BPE of {vocab_size} tokens is too small: the 256 bytes and 2 special tokens need"
            f" {SMALLEST_BPE}."
        )
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, PAD],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    texts = [text for text in texts if text and text.strip()]
    if not texts:
        raise ValueError("there is no text to train a BPE on; give `texts` with some text in it.")
    backend.train_from_iterator(texts, trainer, length=len(texts))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )


def lost_distinctions(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return which differences between texts a tokenizer drops, of "case" and "accents".

    A model's bits per byte are then those of a simpler text, and lower than bits per byte of the text that was given.
    """

    def alike(one: str, other: str) -> bool:
        first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (one, other))
        return bool(first) and first == second and tokenizer.unk_token_id not in first

    return [name for name, pair in _DISTINCTIONS.items() if alike(*pair)]


def warn_of_other_tokens(
    model: str, name: str, tokenizer: PreTrainedTokenizerBase, *, trust_remote_code: bool = False
) -> None:
    """Warn where a checkpoint has a tokenizer of other tokens, whose meanings its embeddings have learned.

    Args:
        model: the checkpoint.
        name: of the tokenizer that was asked for in place of the checkpoint's.
        tokenizer: of that name.
        trust_remote_code: run code that comes with the checkpoint.
    """
    try:
        own = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError):
        return  # a checkpoint without a tokenizer
    if own.get_vocab() != tokenizer.get_vocab():
        logger.warning(
            f"--tokenizer {name} has other tokens than the tokenizer of {model}, whose embeddings then mean something "
            "else: leave --tokenizer out, unless the checkpoint was trained with that one."
        )


def count_bytes(text: str) -> int:
    """Return the number of UTF-8 bytes of `text`, the denominator of bits per byte; no tokenizer is involved."""
    return len(text.encode("utf-8"))


def token_bytes(text: str, num_tokens: int, offsets: list[tuple[int, int]] | None = None) -> np.ndarray:
    """Return how many UTF-8 bytes of `text` each token stands for, so that any run of tokens has a size in bytes.

    A token counts the bytes from the furthest place that earlier tokens reach to the place where the token ends. The
    last token counts all remaining bytes. The counts therefore always sum to [`count_bytes`] of the text, also where
    tokens share or skip a character. Without offsets the bytes are spread evenly, which is exact for a tokenizer of
    bytes.

    Args:
        text: the raw text.
        num_tokens: how many tokens the text has, special tokens not counted.
        offsets: start and end of each token in `text`, in characters.

    Returns:
        `np.ndarray` of shape `(num_tokens,)`, int32.
    """
    if num_tokens == 0:
        return np.zeros(0, dtype=np.int32)
    total = count_bytes(text)
    if offsets is None:
        ends = total * np.arange(1, num_tokens + 1) // num_tokens
    else:
        last_characters = np.maximum.accumulate(np.array([end for _, end in offsets]))
        ends = last_characters if text.isascii() else _byte_positions(text)[last_characters]
        ends[-1] = total
    return np.diff(ends, prepend=0).astype(np.int32)


def covered_text(text: str, num_tokens: int, kept: int, offsets: list[tuple[int, int]] | None = None) -> str:
    """Return the beginning of `text` that its first `kept` tokens stand for.

    A character whose bytes are in several tokens, some of them cut off, belongs to it where the offsets say so.

    Args:
        text: the raw text.
        num_tokens: how many tokens the text has, special tokens not counted.
        kept: how many of them are kept.
        offsets: as for [`token_bytes`], which says what each token stands for.
    """
    if kept >= num_tokens:
        return text
    size = int(token_bytes(text, num_tokens, offsets)[:kept].sum())
    return text.encode("utf-8")[:size].decode("utf-8", errors="ignore")


def _byte_positions(text: str) -> np.ndarray:
    """Return the number of UTF-8 bytes before each character and before the end, shape `(len(text) + 1,)`."""
    code_points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (code_points > 0x7F).astype(np.int64) + (code_points > 0x7FF) + (code_points > 0xFFFF)
    return np.concatenate([[0], np.cumsum(sizes)])


def _vocab_size(argument: str) -> int:
    if not argument.isdecimal():
        raise ValueError(f"'bpe:{argument}' does not say how many tokens to learn; write, for example, 'bpe:4096'.")
    if int(argument) > LARGEST_BPE:
        raise ValueError(f"'bpe:{argument}' asks for {int(argument):,} tokens; at most {LARGEST_BPE:,} are made.")
    return int(argument)


def _pretrained(name: str) -> PreTrainedTokenizerBase:
    folder = Path(name).expanduser()
    if folder.is_dir():
        files = {path.name for path in folder.iterdir()}
        if {"vocab.json", "merges.txt"} <= files and not {"tokenizer.json", "tokenizer_config.json"} & files:
            # Without a file that says which class it is, the vocabulary tells: only RoBERTa's has `<s>`.
            vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
            return (RobertaTokenizer if "<s>" in vocabulary else GPT2Tokenizer).from_pretrained(str(folder))
    try:
        return AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else name)
    except Exception as error:  # tokenizers raise bare ones, and files of another form a KeyError or TypeError
        known = folder.is_dir() and not any(folder.glob("tokenizer*"))
        reason = (
            "it has no tokenizer.json." if known else (str(error) or repr(error)).splitlines()[0]
        )  # the rest is links
        raise ValueError(
            f"{name!r} gave no tokenizer: {reason} Allowed are 'byte', 'listops', 'bpe:SIZE' such as 'bpe:4096', a"
            " folder with tokenizer.json or with vocab.json and merges.txt, and the name of a pretrained tokenizer."
        ) from error
