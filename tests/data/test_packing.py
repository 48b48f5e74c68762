"""Blocks: nothing lost in evaluation, every byte counted, documents apart when asked for."""

import datasets
import numpy as np
import pytest

from hf_seqmix.data import (
    build_tokenizer,
    count_bytes,
    load_corpus,
    pack_for_evaluation,
    pack_for_training,
    total_bytes,
)

TEXTS = ["abcdefg", "x", "\u20acuro and \U0001f600", "the end of it all"]
EOS = 1  # ByT5's </s>; a byte b is the token b + 3


def documents(texts=TEXTS, streaming: bool = False):
    rows = datasets.Dataset.from_dict({"text": list(texts), "label": list(range(len(texts)))})
    return rows.to_iterable_dataset() if streaming else rows


def stream_of(texts) -> list[int]:
    """All tokens in order, each document behind an end of text."""
    return [token for text in texts for token in (EOS, *(byte + 3 for byte in text.encode("utf-8")))]


@pytest.fixture(scope="module")
def byte():
    return build_tokenizer("byte")


@pytest.fixture(scope="module")
def bpe():
    return build_tokenizer("bpe:280", ["the end of it all, " * 50])


def columns(blocks) -> dict[str, list]:
    rows = list(blocks)
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("block_size", [2, 5, 16, 44])
def test_training_blocks_are_the_token_stream_without_its_rest(byte, block_size: int, streaming: bool) -> None:
    packed = columns(pack_for_training(documents(streaming=streaming), byte, block_size))
    stream = stream_of(TEXTS)
    whole = len(stream) // block_size
    assert packed["input_ids"] == np.reshape(stream[: whole * block_size], (whole, block_size)).tolist()
    assert packed["labels"] == packed["input_ids"]
    assert set(packed) == {"input_ids", "labels"}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("respect_documents", [False, True])
@pytest.mark.parametrize("block_size", [2, 3, 16, 43, 44, 45, 100])
def test_evaluation_predicts_every_token_once(byte, block_size: int, respect_documents: bool, streaming: bool) -> None:
    blocks = pack_for_evaluation(documents(streaming=streaming), byte, block_size, respect_documents=respect_documents)
    packed = columns(blocks)
    predicted, contexts = [], []
    for ids, labels in zip(packed["input_ids"], packed["labels"], strict=True):
        assert len(ids) == len(labels) == block_size
        contexts.append(ids[0])
        # A causal model predicts labels[1:], each from the inputs before it.
        predicted += [label for label in labels[1:] if label != -100]
        assert all(label in (-100, token) for label, token in zip(labels, ids, strict=True))
    stream = stream_of(TEXTS)
    assert predicted == stream[1:]
    assert contexts == stream[: -1 : block_size - 1]
    assert sum(packed["num_bytes"]) == total_bytes(blocks) == sum(map(count_bytes, TEXTS))


def test_bytes_of_a_block_are_those_it_predicts(byte) -> None:
    packed = columns(pack_for_evaluation(documents(), byte, 6))
    for labels, num_bytes in zip(packed["labels"], packed["num_bytes"], strict=True):
        assert num_bytes == sum(label not in (-100, EOS) for label in labels[1:])


@pytest.mark.parametrize("block_size", [4, 64])
def test_bytes_of_a_bpe_sum_to_the_text(bpe, block_size: int) -> None:
    texts = [*TEXTS, "<|endoftext|> spelled out", "\U0001f468\u200d\U0001f469 " * 5]
    blocks = pack_for_evaluation(documents(texts), bpe, block_size)
    assert total_bytes(blocks) == sum(map(count_bytes, texts))
    # Ends of text stand between the documents and nowhere else, also where one is spelled out.
    predicted = [label for row in blocks for label in row["labels"][1:]]
    assert predicted.count(bpe.eos_token_id) == len(texts) - 1


def test_the_attention_mask_and_labels_leave_out_the_padding(byte) -> None:
    packed = columns(pack_for_evaluation(documents(["abcde"]), byte, 4))
    a = ord("a") + 3
    assert packed["input_ids"] == [[EOS, a, a + 1, a + 2], [a + 2, a + 3, a + 4, byte.pad_token_id]]
    assert packed["attention_mask"] == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert packed["labels"][1] == [a + 2, a + 3, a + 4, -100]


def test_masked_evaluation_blocks_do_not_overlap(byte) -> None:
    blocks = pack_for_evaluation(documents(), byte, 16, causal=False)
    packed = columns(blocks)
    tokens = [
        token
        for ids, mask in zip(packed["input_ids"], packed["attention_mask"], strict=True)
        for token, real in zip(ids, mask, strict=True)
        if real
    ]
    assert tokens == stream_of(TEXTS)
    assert "labels" not in packed
    assert total_bytes(blocks) == sum(map(count_bytes, TEXTS))
    assert "labels" not in columns(pack_for_training(documents(), byte, 16, causal=False))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("pack", [pack_for_training, pack_for_evaluation])
def test_positions_restart_at_every_document_and_block(byte, pack, streaming: bool) -> None:
    packed = columns(pack(documents(["abc", "", "d", "efghij"], streaming), byte, 6, respect_documents=True))
    for ids, positions in zip(packed["input_ids"], packed["position_ids"], strict=True):
        expected = []
        for i, token in enumerate(ids):
            previous = ids[i - 1] if i else None
            starts = i == 0 or token == EOS or (token == byte.pad_token_id != previous)
            expected.append(0 if starts else expected[-1] + 1)
        assert positions == expected
    assert "attention_mask" not in packed


def test_labels_are_64_bit_in_a_stream_and_out_of_one(byte) -> None:
    import torch
    from transformers import default_data_collator

    for streaming in (False, True):
        batch = default_data_collator(list(pack_for_training(documents(streaming=streaming), byte, 8)))
        assert batch["labels"].dtype == batch["input_ids"].dtype == torch.int64


def test_a_tokenizer_without_end_of_text_joins_documents(bpe) -> None:
    tokenizer = build_tokenizer("byte")
    tokenizer.eos_token = None
    packed = columns(pack_for_training(documents(["ab", "cd"]), tokenizer, 4))
    assert packed["input_ids"] == [[byte + 3 for byte in b"abcd"]]
    blocks = pack_for_evaluation(documents(["ab", "cd"]), tokenizer, 4)
    # The first token has nothing to be predicted from, so its byte does not count either.
    assert total_bytes(blocks) == 3


@pytest.mark.parametrize(("lacks", "separator"), [([], "</s>"), (["eos"], "<pad>"), (["eos", "sep"], "<unk>")])
def test_the_end_of_a_text_stands_between_documents_before_other_tokens(lacks: list[str], separator: str) -> None:
    tokenizer = build_tokenizer("byte")
    tokenizer.sep_token, tokenizer.bos_token = "<pad>", "<unk>"
    for name in lacks:
        setattr(tokenizer, f"{name}_token", None)
    between = tokenizer.convert_tokens_to_ids(separator)
    packed = columns(pack_for_training(documents(["ab", "cd"]), tokenizer, 6))
    assert packed["input_ids"] == [[between, 100, 101, between, 102, 103]]


def test_a_stream_drops_one_rest_every_thousand_documents(byte) -> None:
    packed = columns(pack_for_training(documents(["abcd"] * 1500, streaming=True), byte, 1000))
    assert len(packed["input_ids"]) == 5 + 2  # 5000 and 2500 tokens


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_every_kind_of_file_can_be_packed(byte, tmp_path, name: str, streaming: bool) -> None:
    """A stream of text or CSV does not know its columns."""
    line = {"a.txt": "{}\n", "a.csv": "{},1\n", "a.jsonl": '{{"text": "{}", "id": 1}}\n'}[name]
    header = "text,id\n" if name == "a.csv" else ""
    (tmp_path / name).write_text(header + "".join(map(line.format, ["ab", "cde"])), encoding="utf-8")
    train = load_corpus(tmp_path / name, sample_by="line", streaming=streaming)["train"]
    assert columns(pack_for_training(train, byte, 7)) == columns(pack_for_training(documents(["ab", "cde"]), byte, 7))
    blocks = pack_for_evaluation(train, byte, 4)
    assert columns(blocks) == columns(pack_for_evaluation(documents(["ab", "cde"]), byte, 4))
    assert total_bytes(blocks) == 5


@pytest.mark.parametrize("streaming", [False, True])
def test_too_little_text_and_too_small_blocks_are_refused(byte, streaming: bool) -> None:
    with pytest.raises(ValueError, match="fewer tokens than one block of 1000"):
        pack_for_training(documents(streaming=streaming), byte, 1000)
    with pytest.raises(ValueError, match="block size is 1; a block needs at least 2"):
        pack_for_training(documents(streaming=streaming), byte, 1)


def test_loaded_text_can_be_packed_by_several_processes(byte, tmp_path) -> None:
    for i, text in enumerate(TEXTS):
        (tmp_path / f"{i}.txt").write_text(text, encoding="utf-8")
    train = load_corpus(tmp_path)["train"]
    packed = columns(pack_for_training(train, byte, 5, num_proc=2))
    assert packed == columns(pack_for_training(documents(), byte, 5))


def test_caches_end_with_the_version(tmp_path, monkeypatch):
    tokenizer = build_tokenizer("byte")
    documents = datasets.Dataset.from_dict({"text": ["some text"]})
    documents.save_to_disk(str(tmp_path))

    def num_bytes(version):
        monkeypatch.setattr("hf_seqmix.data.versioned.__version__", version)
        return total_bytes(pack_for_evaluation(datasets.load_from_disk(str(tmp_path)), tokenizer, 8))

    assert num_bytes("1") == 9
    monkeypatch.setattr("hf_seqmix.data.packing.token_bytes", lambda text, count, offsets: np.ones(count, int) * 100)
    assert num_bytes("1") == 9 and num_bytes("2") == 900


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("pack", [pack_for_training, pack_for_evaluation])
def test_a_text_that_is_missing_is_named(byte, pack, streaming: bool) -> None:
    with pytest.raises(ValueError, match="text of row 103 is None; it must be a string"):
        list(pack(documents(["abc"] * 103 + [None], streaming=streaming), byte, 4))
