"""A text beside its rewriting: what stands where, what is shared, and what is refused."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from hf_seqmix.data import ReproducibleMaskingCollator, build_tokenizer, rewritten_pairs
from hf_seqmix.data.labeled.special_tokens import SpecialTokens
from hf_seqmix.data.rewriting import pair_with_rewriting

SPECIAL = SpecialTokens(before=(1,), between=(2, 2), after=(3,))


def rewritten(ids: list[int], special: SpecialTokens = SPECIAL, seed: int = 0) -> list[int]:
    return pair_with_rewriting(ids, special, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [6, 7, 64, 65, 129])
def test_both_texts_stand_where_fine_tuning_puts_them(length: int) -> None:
    ids = list(range(10, 10 + length))
    pair = rewritten(ids)
    first = (length - 4 + 1) // 2
    assert len(pair) == length
    assert pair[: first + 3] == [1, *ids[:first], 2, 2]
    assert pair[-1] == 3
    assert SPECIAL.join(pair[1 : first + 1], pair[first + 3 : -1])["input_ids"] == pair
    assert set(pair[first + 3 : -1]) <= set(ids)


def test_parts_move_whole_and_a_quarter_of_the_tokens_is_foreign() -> None:
    length, foreign, moved, kept_together, tokens = 200, 0, 0, 0, 0
    first = (length - 4 + 1) // 2
    for seed in range(200):
        second = rewritten(list(range(10, 10 + length)), seed=seed)[first + 3 : -1]
        tokens += len(second)
        foreign += sum(token >= 10 + first for token in second)
        moved += sum(token != 10 + place for place, token in enumerate(second))
        kept_together += sum(b == a + 1 for a, b in pairwise(second))
        assert max(Counter(token for token in second if token < 10 + first).values()) == 1
    assert foreign / tokens == pytest.approx(0.25, abs=0.03)
    assert kept_together / tokens == pytest.approx(7 / 8, abs=0.03)
    assert moved / tokens > 0.9


def test_ends_of_texts_within_a_block_are_no_borders() -> None:
    pair = rewritten([2, 10, 11, 2, *range(12, 40)])
    assert pair.count(2) == 2 and pair.index(2) == len(pair) // 2 - 1
    few = [2, 10, 2, 11, *[2] * 6]  # where the rest does not suffice
    assert len(rewritten(few)) == len(few)


def test_it_is_a_function_of_the_generator() -> None:
    ids = list(range(10, 90))
    assert rewritten(ids) == rewritten(ids) != rewritten(ids, seed=1)


def test_no_room_for_two_texts_is_refused() -> None:
    with pytest.raises(ValueError, match="a block of 5 tokens has no room for two texts; give longer blocks"):
        rewritten([10, 11, 12, 13, 14])


def test_a_pair_has_the_positions_of_one_text() -> None:
    """Positions that restart would cut the pair where the documents of the block were cut."""
    tokenizer = build_tokenizer("byte", mask_token=True)
    rows = [{"input_ids": list(range(10, 42)), "position_ids": [*range(14), *range(18)]}]
    alone, pair = (ReproducibleMaskingCollator(tokenizer=tokenizer, pair_share=share)(rows) for share in (0, 1))
    assert alone["position_ids"].tolist() == [rows[0]["position_ids"]]
    assert pair["position_ids"].tolist() == [list(range(32))]


def test_the_collator_makes_pairs_of_a_share_of_the_rows() -> None:
    tokenizer = build_tokenizer("byte", mask_token=True)
    drawn = torch.randint(3, 259, (200, 33), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row} for row in drawn.tolist()]
    collator = ReproducibleMaskingCollator(tokenizer=tokenizer, mlm_probability=0.3, seed=3, pair_share=0.5)
    batch, again = collator(rows), collator(rows)
    assert torch.equal(batch["input_ids"], again["input_ids"]) and torch.equal(batch["labels"], again["labels"])
    texts = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    originals = torch.tensor([row["input_ids"] for row in rows])
    plain = (texts == originals).all(dim=1)
    assert plain.float().mean().item() == pytest.approx(0.5, abs=0.1)
    separators = (batch["input_ids"] == tokenizer.eos_token_id).sum(dim=1)
    assert (separators[~plain] >= 1).all() and (separators[plain] == 0).all()
    assert (batch["labels"][batch["input_ids"] == tokenizer.eos_token_id] == -100).all()


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_beyond_its_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=rf"pair_share is {share}; it must lie between 0 and 1"):
        ReproducibleMaskingCollator(tokenizer=build_tokenizer("byte", mask_token=True), pair_share=share)


def is_in_order(short: list[str], long: list[str]) -> bool:
    rest = iter(long)
    return all(word in rest for word in short)


TEXTS = [
    "One two three four five six. Too short. Alpha beta gamma delta epsilon zeta eta theta!",
    "red green blue yellow brown white\nnot a sentence\nWhy do so many words stand here?",
]


def test_pairs_of_sentences_share_what_the_score_says() -> None:
    pairs = rewritten_pairs(TEXTS, 400)
    sentences = {
        "One two three four five six.",
        "red green blue yellow brown white",
        "Why do so many words stand here?",
    }
    sentences |= {"Alpha beta gamma delta epsilon zeta eta theta!"}
    words = {word.lower() for sentence in sentences for word in sentence.split()}
    originals_first = omitted = in_order = foreign = 0
    for row in pairs:
        texts = row["sentence1"], row["sentence2"]
        assert sentences & set(texts)
        originals_first += texts[0] in sentences
        one, two = ({word.lower() for word in text.split()} for text in texts)
        assert one | two <= words and min(len(text.split()) for text in texts) >= 1
        omitted += len(texts[0].split()) != len(texts[1].split())
        if not (one <= two or two <= one):  # words of another sentence take the place of as many
            foreign += 1
            assert len(texts[0].split()) == len(texts[1].split())
        in_order += is_in_order(*sorted((text.split() for text in texts), key=len))
        assert row["score"] == pytest.approx(5 * 2 * len(one & two) / (len(one) + len(two)))
    assert 0.4 < originals_first / len(pairs) < 0.8
    assert 0.3 < foreign / len(pairs) < 0.5
    assert 0.25 < omitted / len(pairs) < 0.55 and 0.2 < in_order / len(pairs) < 0.6
    scores = torch.tensor(pairs["score"])
    assert 1 < scores.mean() < 4 and scores.min() < 0.5 and scores.max() == 5
    assert pairs.to_list() == rewritten_pairs(TEXTS, 400).to_list() != rewritten_pairs(TEXTS, 400, seed=1).to_list()


@pytest.mark.parametrize(
    ("texts", "rows", "message"),
    [
        (TEXTS, 0, "num_rows is 0; it must be at least 1"),
        (["too short."], 3, "the texts have 0 sentences of 5 to 30 words"),
        (["One two three four five. " * 9], 3, "the texts have 1 sentences"),
    ],
)
def test_pairs_that_cannot_be_made_are_refused(texts: list[str], rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rewritten_pairs(texts, rows)
