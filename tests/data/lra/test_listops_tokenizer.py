"""ListOps' vocabulary: what is a token, what is left out, and that it is saved and loaded."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hf_seqmix.data import build_tokenizer
from hf_seqmix.data.lra.listops_tokenizer import WORDS, listops_tokenizer


def test_every_word_is_one_token_and_parentheses_are_none() -> None:
    tokenizer = listops_tokenizer()
    assert len(tokenizer) == 18
    ids = tokenizer(" ".join(WORDS))["input_ids"]
    assert len(set(ids)) == len(ids) == 16 and ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == " ".join(WORDS)
    nested = "( ( ( [MAX 4 ) ( ( ( [SM 3 ) 7 ) ] ) ) ] )"
    assert tokenizer(nested)["input_ids"] == tokenizer("[MAX 4 [SM 3 7 ] ]")["input_ids"]
    assert tokenizer("[MAX 10 ]")["input_ids"][1] == tokenizer.unk_token_id


@pytest.mark.parametrize("text", ["", "()"])
def test_nothing_but_the_end(text: str) -> None:
    tokenizer = listops_tokenizer()
    assert tokenizer(text)["input_ids"] == [tokenizer.eos_token_id]


def test_it_is_found_by_name_and_loaded_again(tmp_path: Path) -> None:
    tokenizer = build_tokenizer("listops")
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    batch = ["[MIN 2 9 ]", "5"]
    assert loaded(batch, padding=True)["input_ids"] == tokenizer(batch, padding=True)["input_ids"]
    assert loaded.pad_token_id == 0
