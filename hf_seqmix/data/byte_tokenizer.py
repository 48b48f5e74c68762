"""A tokenizer of UTF-8 bytes that adds nothing to a text, so that a prompt can be continued."""

import tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

__all__ = ["byte_tokenizer"]


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


def _characters() -> list[str]:
    """Return the characters by which byte-level tokenizers name the 256 bytes (GPT-2's): a visible one each."""
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = iter(range(256, 512))
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]
