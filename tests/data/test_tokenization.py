"""Tokenizers give every text back, and every token knows its bytes."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import normalizers
from transformers import AutoTokenizer

from hf_seqmix.data import build_tokenizer, count_bytes, token_bytes, train_bpe
from hf_seqmix.data.tokenization import covered_text, lost_distinctions

TRAINING = ["def f(x):\n    return x + 1\n" * 20, "the cat sat on the mat, and the dog on the log\n" * 20]

ODD_TEXTS = [
    "plain text",
    "  leading,  double and trailing spaces  ",
    "\ttabs\r\nand \x00 control \x7f characters\n\n",
    "caf\u00e9 \u20ac \U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u05e9\u05dc\u05d5\u05dd e\u0301",
    "<|endoftext|> spelled out <|pad|> </s> <pad> <|mask|>",
    "".join(map(chr, range(1, 0x3000, 7))),
    "don't 're ,.!? 'VE 12345 __init__",
]


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(TRAINING, 290)


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_a_bpe_gives_any_text_back(bpe, text: str) -> None:
    assert bpe.decode(encode(bpe, text)) == text


def test_a_bpe_has_the_size_asked_for_and_compresses(bpe) -> None:
    assert len(bpe) == 290
    assert len(encode(bpe, TRAINING[1])) < 0.6 * count_bytes(TRAINING[1])
    assert bpe.eos_token_id == bpe.bos_token_id != bpe.pad_token_id
    assert bpe.mask_token is None


def test_a_saved_bpe_comes_back_the_same(bpe, tmp_path: Path) -> None:
    bpe.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert len(again) == len(bpe)
    assert again.special_tokens_map == bpe.special_tokens_map
    for text in ODD_TEXTS:
        assert encode(again, text) == encode(bpe, text)
        assert again.decode(encode(again, text)) == text


@pytest.mark.parametrize(
    ("normalizer", "lost"),
    [
        (normalizers.Lowercase(), ["case"]),
        (normalizers.BertNormalizer(), ["case", "accents"]),
        (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), ["accents"]),
        (normalizers.NFKC(), []),
        (normalizers.Sequence([normalizers.Prepend("_"), normalizers.Replace(" ", "_")]), []),  # as Llama's
    ],
)
def test_what_a_tokenizer_drops_is_found(normalizer: normalizers.Normalizer, lost: list[str]) -> None:
    tokenizer = train_bpe(TRAINING, 290)
    assert lost_distinctions(tokenizer) == []
    tokenizer.backend_tokenizer.normalizer = normalizer
    assert lost_distinctions(tokenizer) == lost


@pytest.mark.parametrize("spec", ["byte", "listops"])
def test_bytes_and_unknown_tokens_are_no_lost_case(spec: str) -> None:
    assert lost_distinctions(build_tokenizer(spec)) == []


def test_training_twice_gives_the_same_bpe(bpe) -> None:
    assert train_bpe(TRAINING, 290).get_vocab() == bpe.get_vocab()


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_a_text_is_cut_where_its_tokens_end(bpe, text: str) -> None:
    encoded = bpe(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    ids, raw = encoded["input_ids"], text.encode()
    for kept in {0, 1, 2, len(ids) // 2, len(ids) - 1, len(ids), len(ids) + 3}:
        part = covered_text(text, len(ids), kept, encoded["offset_mapping"])
        assert text.startswith(part)
        decoded = bpe.decode(ids[:kept]).rstrip("\ufffd")
        assert part in (decoded, text[: len(decoded) + 1])  # the offsets give a whole character to its first byte
        # Of bytes, each a token: the first bytes, without a part of a character.
        assert covered_text(text, len(raw), kept) == raw[:kept].decode(errors="ignore")
    assert covered_text(text, len(ids), len(ids), encoded["offset_mapping"]) == text


def test_bytes_are_bytes() -> None:
    tokenizer = build_tokenizer("byte")
    for text in ODD_TEXTS:
        assert encode(tokenizer, text) == [byte + 3 for byte in text.encode("utf-8")]


@pytest.mark.parametrize("spec", ["byte", "bpe:280"])
def test_a_mask_token_is_added_only_on_request(spec: str, tmp_path: Path) -> None:
    plain, masked = (build_tokenizer(spec, TRAINING, mask_token=mask) for mask in (False, True))
    assert plain.mask_token_id is None
    assert masked.mask_token_id == len(plain) == len(masked) - 1
    masked.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert (again.mask_token_id, len(again)) == (masked.mask_token_id, len(masked))


@pytest.mark.parametrize("specials", [["<|endoftext|>"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]])
def test_a_folder_of_vocabulary_and_merges(bpe, tmp_path: Path, specials: list[str]) -> None:
    backend = json.loads(bpe.backend_tokenizer.to_str())["model"]
    pieces = sorted(set(backend["vocab"]) - {"<|endoftext|>", "<|pad|>"}, key=backend["vocab"].__getitem__)
    vocabulary = {piece: i for i, piece in enumerate([*specials, *pieces])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = "\n".join(" ".join(pair) for pair in backend["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")

    tokenizer = build_tokenizer(tmp_path)
    assert len(tokenizer) == len(vocabulary)
    assert tokenizer.eos_token == ("<|endoftext|>" if len(specials) == 1 else "</s>")
    assert (tokenizer.mask_token is None) == (len(specials) == 1)
    for text in ODD_TEXTS:
        ids = encode(tokenizer, text)
        assert tokenizer.convert_ids_to_tokens(ids) == bpe.convert_ids_to_tokens(encode(bpe, text))
        assert tokenizer.decode(ids) == text


def test_a_pretrained_folder(bpe, tmp_path: Path) -> None:
    bpe.save_pretrained(tmp_path)
    assert build_tokenizer(str(tmp_path)).get_vocab() == bpe.get_vocab()


@pytest.mark.parametrize("content", ['{"a": 1}', "", "[]", '{"model": 3}'])
def test_a_damaged_folder(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"gave no tokenizer: .*\S.* Allowed are 'byte'"):
        build_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bpe:many", "write, for example, 'bpe:4096'"),
        ("bpe", "write, for example, 'bpe:4096'"),
        ("bpe:100", "need 258"),
        ("bpe:1000000000", "asks for 1,000,000,000 tokens; at most 10,000,000"),
        ("no-such-owner/no-such-tokenizer", "(?s)gave no tokenizer.*Allowed are 'byte'"),
    ],
)
def test_wrong_specifications_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_tokenizer(spec, TRAINING)


def test_a_bpe_needs_text() -> None:
    with pytest.raises(ValueError, match="no text to train"):
        build_tokenizer("bpe:300", ["", " \n"])
    with pytest.raises(ValueError, match="no text to train"):
        build_tokenizer("bpe:300")
    for make in (train_bpe, lambda texts, size: build_tokenizer(f"bpe:{size}", texts)):
        with pytest.raises(ValueError, match="given one string: put it in a list"):
            make("the text itself, whose letters would be documents", 300)


def test_count_bytes() -> None:
    assert [count_bytes(text) for text in ("", "abc", "\u00e9", "\u20ac", "\U0001f600", "\r\n")] == [0, 3, 2, 3, 4, 2]


# Decoding all beginnings takes long where there are thousands.
@pytest.mark.parametrize(
    "text",
    [pytest.param(text, marks=pytest.mark.slow if len(text) > 500 else []) for text in ODD_TEXTS]
    + [ODD_TEXTS[5][:100] + ODD_TEXTS[5][300:350] + ODD_TEXTS[5][-50:]],  # of one, two and three bytes
)
def test_bytes_of_tokens_sum_to_those_of_the_text(bpe, text: str) -> None:
    encoded = bpe(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    counts = token_bytes(text, len(encoded["input_ids"]), encoded["offset_mapping"])
    assert counts.sum() == count_bytes(text)
    assert (counts >= 0).all()
    # Up to any token whose end is the end of a character, the bytes are those of the text decoded so far.
    for i in range(len(counts)):
        prefix = bpe.decode(encoded["input_ids"][: i + 1])
        if text.startswith(prefix):
            assert counts[: i + 1].sum() == count_bytes(prefix)


def test_bytes_of_tokens_with_gaps_overlaps_and_no_offsets() -> None:
    # Skipped spaces go to the token after them, the rest of the text to the last one.
    np.testing.assert_array_equal(token_bytes("ab  cd \u20ac", 2, [(0, 2), (4, 6)]), [2, 8])
    np.testing.assert_array_equal(token_bytes("\u20acx", 3, [(0, 1), (0, 1), (1, 2)]), [3, 0, 1])
    # A token within those before it stands for nothing more.
    np.testing.assert_array_equal(token_bytes("abcd", 3, [(0, 3), (1, 2), (2, 4)]), [3, 0, 1])
    np.testing.assert_array_equal(token_bytes("\u20acx", 4), [1, 1, 1, 1])
    np.testing.assert_array_equal(token_bytes("abcde", 2), [2, 3])
    assert token_bytes("", 0).shape == (0,)
