"""Masks: right shares, a function of seed and batch, the same at every evaluation."""

import datasets
import pytest
import torch

from hf_seqmix.data import (
    ReproducibleMaskingCollator,
    build_tokenizer,
    mask_blocks,
    pack_for_evaluation,
    pack_for_training,
)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer("byte", mask_token=True)


def blocks(count: int, length: int = 32, seed: int = 0) -> list[dict[str, list[int]]]:
    ids = torch.randint(3, 259, (count, length), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row.tolist(), "position_ids": list(range(length))} for row in ids]


def test_masks_are_a_function_of_seed_and_batch(tokenizer) -> None:
    batch = blocks(4)
    collator = ReproducibleMaskingCollator(tokenizer=tokenizer, seed=1)
    first = collator(batch)
    torch.rand(10)  # the global stream has no say
    collator(blocks(4, seed=1))  # neither have the batches before
    again = ReproducibleMaskingCollator(tokenizer=tokenizer, seed=1)(batch)
    for name in ("input_ids", "labels", "position_ids"):
        torch.testing.assert_close(first[name], again[name], rtol=0, atol=0)
    other_seed = ReproducibleMaskingCollator(tokenizer=tokenizer, seed=2)(batch)
    assert not torch.equal(first["labels"], other_seed["labels"])


def test_a_block_in_other_company_is_masked_anew(tokenizer) -> None:
    a, b, c = blocks(3)
    collator = ReproducibleMaskingCollator(tokenizer=tokenizer)
    assert not torch.equal(collator([a, b])["labels"][0], collator([a, c])["labels"][0])


def test_rows_for_a_causal_model_are_refused(tokenizer) -> None:
    """Their labels are the tokens that a masked model would read."""
    documents = datasets.Dataset.from_dict({"text": ["a text of some bytes " * 9]})
    rows = pack_for_training(documents, tokenizer, 16)
    with pytest.raises(ValueError, match="labels are the tokens themselves, which are not masked"):
        ReproducibleMaskingCollator(tokenizer=tokenizer)([rows[0], rows[1]])


def test_rows_may_be_ids_alone_as_the_library_takes_them(tokenizer) -> None:
    rows = [{"input_ids": row["input_ids"]} for row in blocks(3)]
    collator = ReproducibleMaskingCollator(tokenizer=tokenizer, seed=1)
    expected = collator(rows)
    for others in ([row["input_ids"] for row in rows], [torch.tensor(row["input_ids"]) for row in rows]):
        batch = collator(others)
        assert all(torch.equal(batch[name], expected[name]) for name in ("input_ids", "labels"))


def test_masking_leaves_the_global_random_stream_alone(tokenizer) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    ReproducibleMaskingCollator(tokenizer=tokenizer)(blocks(2))
    assert torch.equal(state, torch.get_rng_state())


def test_shares_of_masked_replaced_and_kept_tokens(tokenizer) -> None:
    batch = blocks(400, length=100)
    masked = ReproducibleMaskingCollator(tokenizer=tokenizer, mlm_probability=0.15)(batch)
    original = torch.tensor([row["input_ids"] for row in batch])
    chosen = masked["labels"] != -100
    assert torch.equal(masked["labels"][chosen], original[chosen])
    assert torch.equal(masked["input_ids"][~chosen], original[~chosen])
    assert chosen.float().mean().item() == pytest.approx(0.15, abs=0.01)
    is_mask = masked["input_ids"][chosen] == tokenizer.mask_token_id
    is_kept = masked["input_ids"][chosen] == original[chosen]
    assert is_mask.float().mean().item() == pytest.approx(0.8, abs=0.03)
    assert is_kept.float().mean().item() == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("streaming", [False, True])
def test_evaluation_blocks_are_masked_once_and_for_all(tokenizer, streaming: bool) -> None:
    rows = datasets.Dataset.from_dict({"text": ["a text of some length"] * 9})
    rows = rows.to_iterable_dataset() if streaming else rows
    packed = pack_for_evaluation(rows, tokenizer, 16, causal=False)
    masked = list(mask_blocks(packed, tokenizer, mlm_probability=0.5))
    assert [dict(row) for row in mask_blocks(packed, tokenizer, mlm_probability=0.5)] == masked
    collator = ReproducibleMaskingCollator(tokenizer=tokenizer)
    for row, original in zip(masked, packed, strict=True):
        # Whatever the batch, an evaluation block is passed on as it is.
        batch = collator([row, masked[0]])
        assert batch["input_ids"][0].tolist() == list(row["input_ids"])
        assert batch["labels"][0].tolist() == list(row["labels"])
        for label, token, real in zip(row["labels"], original["input_ids"], original["attention_mask"], strict=True):
            special = not real or token == tokenizer.eos_token_id
            assert label == -100 if special else label in (-100, token)
    assert sum(label != -100 for row in masked for label in row["labels"]) > 0


def test_no_batch_of_a_training_is_without_a_hidden_token(tokenizer) -> None:
    rows = [[{"input_ids": [60 + place, 61, 62, 63]}] for place in range(50)]
    options = {"tokenizer": tokenizer, "mlm_probability": 0.05}
    plain, never = ReproducibleMaskingCollator(**options), ReproducibleMaskingCollator(**options, never_empty=True)
    hidden = [[int((collator(row)["labels"] != -100).sum()) for row in rows] for collator in (plain, never)]
    assert 0 in hidden[0] and 0 not in hidden[1]
    # What has a hidden token stays as it is, and a second call is the same.
    for row, number in zip(rows, hidden[0], strict=True):
        assert torch.equal(never(row)["labels"], never(row)["labels"])
        assert number == 0 or torch.equal(never(row)["input_ids"], plain(row)["input_ids"])
    never([{"input_ids": [tokenizer.eos_token_id] * 4}])  # nothing can be hidden: it ends


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    with pytest.raises(ValueError, match="mask token"):
        ReproducibleMaskingCollator(tokenizer=build_tokenizer("byte"))


def test_batches_of_another_library_are_refused(tokenizer) -> None:
    """The library would draw their masks from a stream of its own, whatever the seed."""
    with pytest.raises(ValueError, match="return_tensors is 'np'; masks are drawn by PyTorch, so it must be 'pt'"):
        ReproducibleMaskingCollator(tokenizer=tokenizer, return_tensors="np")


def test_evaluation_blocks_have_other_masks_by_another_seed(tokenizer) -> None:
    packed = datasets.Dataset.from_list(blocks(4))
    first, other = (list(mask_blocks(packed, tokenizer, mlm_probability=0.5, seed=seed)) for seed in (0, 1))
    assert all(one["labels"] != two["labels"] for one, two in zip(first, other, strict=True))
