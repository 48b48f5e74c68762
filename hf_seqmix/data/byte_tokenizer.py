"""A tokenizer of UTF-8 bytes that adds nothing to a text, so that a prompt can be continued."""

import numpy as np
import tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

__all__ = ["byte_ids", "byte_tokenizer", "reads_bytes"]

_FIRST = 3  # the id of byte 0, after padding, end and unknown


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with the ids of transformers' `ByT5Tokenizer`, which does not end a text by itself.

    `ByT5Tokenizer` adds the end of the text to all that it encodes. A causal model then takes a prompt for a finished
    text, and what `generate` adds begins another one. Vocabulary, special tokens and their ids are the same.
    """
    pattern = ByT5Tokenizer()
    vocabulary = {pattern.pad_token: 0, pattern.eos_token: 1, pattern.unk_token: 2}
    vocabulary |= {character: byte + len(vocabulary) for byte, character in enumerate(_characters())}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pattern.pad_token,
        eos_token=pattern.eos_token,
        unk_token=pattern.unk_token,
        extra_special_tokens=[pattern.convert_ids_to_tokens(place) for place in range(len(vocabulary), len(pattern))],
        clean_up_tokenization_spaces=False,
    )


def reads_bytes(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the ids of a tokenizer are those of `byte_tokenizer`, also if it was loaded from a folder."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.vocab_size != _FIRST + 256:
        return False
    return bool(tokenizer.convert_tokens_to_ids(_characters()) == list(range(_FIRST, _FIRST + 256)))


def byte_ids(text: str) -> list[int]:
    """Return the ids of a text by `byte_tokenizer`, special tokens read as text.

    The tokenizer itself needs some 300 bytes of memory for each byte of a text, which long documents do not have.
    """
    ids: list[int] = (np.frombuffer(text.encode("utf-8"), np.uint8) + np.int64(_FIRST)).tolist()
    return ids


def _characters() -> list[str]:
    """Return the characters by which byte-level tokenizers name the 256 bytes (GPT-2's): a visible one each."""
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = iter(range(256, 512))
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]
