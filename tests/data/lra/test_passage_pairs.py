"""Pairs of passages: balanced, without overlap, repetition, leaks or anything that one passage alone tells."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from hf_seqmix.analysis.baselines import bag_of_words
from hf_seqmix.data import load_documents, same_document_pairs

LETTERS = np.array(list("abcdefghij \n\u00e9\u4e2d\U0001f600"))
ROWS = {"train": 120, "validation": 20, "test": 20}


def make_documents(number, seed=0):
    """Documents of random characters of 1 to 4 bytes, and of random sizes."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(300, 1500, size=number)
    return {f"d{i}": "".join(rng.choice(LETTERS, size=size)) for i, size in enumerate(sizes)}


@pytest.fixture(scope="module", params=["document", "passage"])
def made(request):
    documents = make_documents(40)
    pairs = same_document_pairs(documents, ROWS, length=50, split_by=request.param, seed=3)
    return request.param, documents, pairs


def passages(rows):
    for side in "12":
        yield from zip(rows[f"document{side}"], rows[f"start{side}"], rows[f"text{side}"], strict=True)


def test_rows_are_balanced_passages_of_their_documents(made):
    _, documents, pairs = made
    assert {split: rows.num_rows for split, rows in pairs.items()} == ROWS
    for rows in pairs.values():
        assert sum(rows["label"]) == rows.num_rows / 2
        assert rows.features["label"].dtype == "int64"
        for document, start, text in passages(rows):
            assert documents[document][start : start + len(text)] == text
            assert 47 <= len(text.encode("utf-8")) <= 50
        for row in rows:
            assert (row["document1"] == row["document2"]) == row["label"]


def test_no_passages_overlap_within_or_between_splits(made):
    split_by, _, pairs = made
    spans = {
        (document, start, start + len(text), split)
        for split, rows in pairs.items()
        for document, start, text in passages(rows)
    }
    for (d, low, high, _), (other_d, other_low, other_high, _) in combinations(sorted(spans), 2):
        assert d != other_d or high <= other_low or other_high <= low
    splits_of = {name: {split for document, _, _, split in spans if document == name} for name, *_ in spans}
    if split_by == "document":
        assert all(len(splits) == 1 for splits in splits_of.values())
    else:
        assert sum(len(splits) > 1 for splits in splits_of.values()) > 5
    assert len(splits_of) > 30


def test_no_pair_occurs_twice_in_either_order(made):
    *_, pairs = made
    keys = [
        frozenset([(row["document1"], row["start1"]), (row["document2"], row["start2"])])
        for rows in pairs.values()
        for row in rows
    ]
    assert len(set(keys)) == len(keys) == 160 and all(len(key) == 2 for key in keys)


def test_one_passage_alone_tells_nothing(made):
    *_, pairs = made
    for rows in pairs.values():
        for side in "12":
            counts = Counter(zip(rows[f"document{side}"], rows[f"start{side}"], rows["label"], strict=True))
            assert all(counts[document, start, 1 - label] == n for (document, start, label), n in counts.items())


def test_seeds(made):
    split_by, documents, pairs = made
    again = same_document_pairs(documents, ROWS, length=50, split_by=split_by, seed=3)
    other = same_document_pairs(documents, ROWS, length=50, split_by=split_by, seed=4)
    for split, rows in pairs.items():
        assert again[split].to_dict() == rows.to_dict()
        assert other[split].to_dict() != rows.to_dict()


def test_the_result_says_what_it_is_and_how_it_was_split():
    rows = {"train": 40, "test": 8}
    for number, split_by in ((16, "each is in one split only"), (15, "a stretch of each of them")):
        pairs = same_document_pairs(list(make_documents(number).values()), rows, length=40)
        for split in pairs.values():
            assert split_by in split.info.description and f"{number} documents" in split.info.description
            assert "substitute" in split.info.description and "not its data" in split.info.description
    assert set(pairs["train"]["document1"]) <= {str(i) for i in range(15)}


def test_repeated_and_blank_passages_are_dropped():
    blank = " " * 40
    shared = "This is the license of all of these files"[:40]
    documents = [shared + blank + "".join(f"document {i}, line {k:02d}\n" for k in range(10)) for i in range(4)]
    documents.append(documents[0])
    pairs = same_document_pairs(documents, {"train": 4}, length=40)["train"]
    assert all(blank not in text for *_, text in passages(pairs))
    assert len({(document, start) for document, start, text in passages(pairs) if text == shared}) <= 1
    assert "4" not in pairs["document1"]


def test_every_pair_of_one_document_can_be_asked_for():
    """Six documents of three passages have three pairs each."""
    documents = ["".join(f"{name}{i} " for i in range(10, 13)) for name in "abcdef"]
    for seed in range(5):
        rows = same_document_pairs(documents, {"train": 36}, length=4, seed=seed)["train"]
        pairs = {frozenset(pair) for pair in zip(rows["text1"], rows["text2"], strict=True)}
        assert sum(rows["label"]) == 18 and len(pairs) == 36
    with pytest.raises(ValueError, match="too few, or too unequal, for 19 pairs"):
        same_document_pairs(documents, {"train": 38}, length=4)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"num_rows": {}}, "names no split"),
        ({"num_rows": {"train": 5}}, "num_rows\\['train'\\] is 5"),
        ({"num_rows": {"train": 0}}, "is 0"),
        ({"num_rows": {"train": 4, "test": 2}}, "num_rows\\['test'\\] is 2.* an even number of at least 4"),
        ({"length": 3}, "at least 4"),
        ({"split_by": "book"}, "split_by is 'book'"),
        ({"length": 5000}, "too few"),
        ({"documents": {**make_documents(1), "b": "z"}, "split_by": "document"}, "1 documents have two passages"),
        ({"documents": {"a": "".join(make_documents(3).values())}}, "too unequal"),
    ],
)
def test_bad_values_raise(values, message):
    given = {"documents": make_documents(6), "num_rows": {"train": 4, "test": 4}, "length": 40, **values}
    with pytest.raises(ValueError, match=message):
        same_document_pairs(given.pop("documents"), given.pop("num_rows"), **given)


def test_a_bag_of_words_learns_nothing_from_the_standard_library():
    documents = load_documents("embedded:python-stdlib")
    assert len(documents) > 300
    pairs = same_document_pairs(documents, {"train": 600, "test": 300}, length=500)
    columns = {split: [list(rows["text1"]), list(rows["text2"])] for split, rows in pairs.items()}
    labels = {split: np.array(rows["label"][:]) for split, rows in pairs.items()}
    guesses = bag_of_words(columns["train"], labels["train"], columns["test"], "single_label_classification")
    assert abs((guesses == labels["test"]).mean() - 0.5) < 0.1


def test_a_folder_of_books(tmp_path):
    notice = "*** {} OF THE PROJECT GUTENBERG EBOOK A BOOK ***\n"
    (tmp_path / "a.txt").write_text(
        "Title\n" + notice.format("START") + "The book\n" + notice.format("END") + "License"
    )
    (tmp_path / "b.txt").write_text("Another text\n")
    assert load_documents(tmp_path) == ["The book", "Another text\n"]
