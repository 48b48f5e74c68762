"""The tokenizer of bytes for causal models: ByT5's ids, and nothing added."""

import datasets
import pytest
from transformers import AutoTokenizer, ByT5Tokenizer

from hf_seqmix.data import build_tokenizer, pack_for_evaluation, total_bytes, train_bpe
from hf_seqmix.data.byte_tokenizer import byte_ids, byte_tokenizer, reads_bytes

TEXTS = [
    "",
    "a",
    "def f(x):\n\treturn  x\r\n",
    "Grüße, 世界 🙂 – ﬁn",
    "\x00\x7f\u00a0 ",
    "a</s>b<pad><extra_id_3>",
    "  two  ",
]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_byt5_without_the_end(text, tmp_path):
    mine, reference = byte_tokenizer(), ByT5Tokenizer()
    assert mine(text).input_ids == reference(text, add_special_tokens=False).input_ids
    assert mine.decode(mine(text).input_ids) == text
    mine.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(text).input_ids == mine(text).input_ids
    assert again(text, add_special_tokens=True).input_ids == mine(text).input_ids


def test_the_vocabulary_is_that_of_byt5():
    mine, reference = byte_tokenizer(), ByT5Tokenizer()
    assert len(mine) == len(reference) == 384
    assert mine.all_special_ids == reference.all_special_ids
    assert mine.convert_ids_to_tokens([0, 1, 2, 383]) == reference.convert_ids_to_tokens([0, 1, 2, 383])
    assert (mine.pad_token_id, mine.eos_token_id, mine.bos_token_id) == (0, 1, None)


def test_a_specification_says_whether_texts_are_ended():
    assert build_tokenizer("byte")("a").input_ids == [100, 1]
    assert build_tokenizer("byte", ends_texts=False)("a").input_ids == [100]
    masked = build_tokenizer("byte", ends_texts=False, mask_token=True)
    assert masked.mask_token_id == 384


@pytest.mark.parametrize("text", TEXTS)
def test_ids_without_the_tokenizer_are_the_same(text, tmp_path):
    """Special tokens that a text spells out are text there, as in packing."""
    mine = byte_tokenizer()
    assert byte_ids(text) == mine(text, split_special_tokens=True).input_ids
    mine.save_pretrained(tmp_path)
    assert reads_bytes(mine) and reads_bytes(AutoTokenizer.from_pretrained(tmp_path))
    assert not reads_bytes(ByT5Tokenizer()) and not reads_bytes(train_bpe(["a b"], 259))


def test_each_token_of_a_packed_text_is_a_byte():
    """Blocks end within characters, too."""
    documents, mine = datasets.Dataset.from_dict({"text": ["é😀ab" * 9]}), byte_tokenizer()
    blocks = pack_for_evaluation(documents, mine, 8, causal=True)
    assert blocks[0]["num_bytes"] == blocks[1]["num_bytes"] == 7
    assert total_bytes(blocks) == len(documents[0]["text"].encode())
