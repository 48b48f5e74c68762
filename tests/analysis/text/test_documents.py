"""Documents of tokens: the prefix, the size of the text, what is left out and refused."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers.normalizers import BertNormalizer
from transformers import ByT5Tokenizer

from hf_seqmix.analysis.text.documents import (
    find_prefix_token,
    positions_explained,
    refuse_other_tokenizer,
    tokenize_documents,
)
from hf_seqmix.data import train_bpe


def test_documents_begin_with_the_prefix_and_sizes_are_of_the_text() -> None:
    tokenizer = ByT5Tokenizer()
    assert find_prefix_token(tokenizer) == tokenizer.eos_token_id  # there is no token for the beginning
    documents, sizes = tokenize_documents(tokenizer, ["ab", "", "é </s>"], prefix=7)
    assert [ids[0] for ids in documents] == [7, 7]
    np.testing.assert_array_equal(documents[0][1:] - 3, list(b"ab"))  # ids of bytes come after three special tokens
    np.testing.assert_array_equal(documents[1][1:] - 3, list("é </s>".encode()))
    assert sizes == {"num_tokens": 9, "num_bytes": 9, "num_words": 3, "num_documents": 2, "num_unknown": 0}


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    refuse_other_tokenizer(largest=9, vocabulary=10)
    with pytest.raises(ValueError, match=r"the id 10, and the model's vocabulary has 10 entries: use the tokenizer"):
        refuse_other_tokenizer(largest=10, vocabulary=10)


def test_only_tokens_beyond_the_positions_of_a_model_explain_an_error() -> None:
    model: Any = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4))
    with pytest.raises(IndexError, match="another"), positions_explained(model, 4):
        raise IndexError("another")
    with pytest.raises(ValueError, match=r"choose context lengths up to 4"), positions_explained(model, 5):
        raise IndexError("no such position")


def test_figures_of_a_simpler_text_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = train_bpe(["The the. " * 9], 270)
    tokenize_documents(tokenizer, ["The"], prefix=0)
    assert not caplog.text
    tokenizer.backend_tokenizer.normalizer = BertNormalizer()
    tokenize_documents(tokenizer, ["The"], prefix=0)
    assert "the tokenizer drops case and accents: bits per byte are of a simpler text" in caplog.text


def test_a_prefix_that_is_also_the_unknown_token_is_no_unknown_text() -> None:
    tokenizer = ByT5Tokenizer(unk_token="</s>")  # as GPT-2's three are one
    _, sizes = tokenize_documents(tokenizer, ["ab", "c"], prefix=tokenizer.eos_token_id)
    assert tokenizer.unk_token_id == tokenizer.eos_token_id and sizes["num_unknown"] == 0
