import pytest

from hf_seqmix.data.labeled.special_tokens import SpecialTokens, tokenize

FIRST, SECOND = "where is the café?", "in paris"


@pytest.mark.parametrize("kind", ["bert", "bytes"])
def test_equals_what_the_tokenizer_does_itself(tokenizers, kind):
    tokenizer = tokenizers[kind]
    special = SpecialTokens.of(tokenizer)
    [first], [second] = tokenize(tokenizer, [FIRST]), tokenize(tokenizer, [SECOND])
    assert special.join(first, None) == dict(tokenizer(FIRST))
    assert special.join(first, second) == dict(tokenizer(FIRST, SECOND))
    for length in range(5, 40):
        assert special.join(first, None, length) == dict(tokenizer(FIRST, truncation=True, max_length=length))


def test_longest_text_is_cut_first(tokenizers):
    special = SpecialTokens.of(tokenizers["bert"])
    long, short = list(range(100, 120)), list(range(200, 203))
    assert special.join(long, short, 16)["input_ids"] == [2, *long[:10], 3, *short, 3]
    assert special.join(short, long, 16)["input_ids"] == [2, *short, 3, *long[:10], 3]
    assert special.join(long, long, 16)["input_ids"] == [2, *long[:7], 3, *long[:6], 3]
    assert special.join(short, short, 16)["input_ids"] == [2, *short, 3, *short, 3]
    assert special.join(long, short, 16)["token_type_ids"] == [0] * 12 + [1] * 4


def test_a_separator_stands_where_the_tokenizer_has_none(tokenizers):
    tokenizer = tokenizers["bpe"]
    special = SpecialTokens.of(tokenizer)
    assert tokenizer("a", "b")["input_ids"] == tokenizer("ab")["input_ids"]  # why it is needed
    assert special.join([7, 8], [9])["input_ids"] == [7, 8, tokenizer.eos_token_id, 9]
    assert special.join([7, 8], None)["input_ids"] == [7, 8]


def test_rows_are_never_empty_and_room_is_needed(tokenizers):
    special = SpecialTokens.of(tokenizers["bpe"])
    assert special.join([], None) == {"input_ids": [tokenizers["bpe"].eos_token_id], "attention_mask": [1]}
    with pytest.raises(ValueError, match="max_length is 2, of which 2 are special tokens; give at least 3"):
        SpecialTokens.of(tokenizers["bert"]).join([5], None, 2)
