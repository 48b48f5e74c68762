"""Recall accuracy, against a count by hand, by brute force, and on the package's own data."""

import itertools

import numpy as np
import pytest

from hf_seqmix.data import associative_recall, rare_word_repetition
from hf_seqmix.metrics import load_metric

X = -100


def test_by_hand():
    result = load_metric("recall_accuracy").compute(
        references=[[X, 5, X, 6], [7, X, X, 8], [X, X, X, X], [9]],
        predictions=[[1, 5, 1, 6], [7, 1, 1, 1], [1, 1, 1, 1], [9]],
    )
    assert result == {
        "accuracy": pytest.approx(4 / 5),
        "row_accuracy": pytest.approx(2 / 3),
        "num_queries": 5,
        "num_rows": 3,
        "accuracy_by_order": pytest.approx([1.0, 1 / 2]),
        "num_queries_by_order": [3, 2],
    }


def brute_force(references, predictions, shift, distances, edges):
    """One query after the other."""
    queries = []
    for row, (answers, guesses) in enumerate(zip(references, predictions, strict=True)):
        order = 0
        for place, answer in enumerate(answers):
            if answer != X and not (shift and place == 0):
                right = guesses[place - int(shift)] == answer
                queries.append((row, order, right, distances[row][place]))
                order += 1
    rows = sorted({row for row, *_ in queries})
    orders = [[right for _, k, right, _ in queries if k == order] for order in range(max(q[1] for q in queries) + 1)]
    buckets = []
    for start, end in itertools.pairwise(edges):
        hits = [right for *_, right, distance in queries if start <= distance < end]
        if hits:
            buckets.append((start, end, len(hits), np.mean(hits)))
    start, end, counts, accuracies = map(list, zip(*buckets, strict=True))
    return {
        "accuracy": np.mean([right for _, _, right, _ in queries]),
        "row_accuracy": np.mean([all(right for r, _, right, _ in queries if r == row) for row in rows]),
        "num_queries": len(queries),
        "num_rows": len(rows),
        "accuracy_by_order": pytest.approx([np.mean(hits) for hits in orders]),
        "num_queries_by_order": [len(hits) for hits in orders],
        "start": start,
        "end": end,
        "num_queries_by_distance": counts,
        "accuracy_by_distance": pytest.approx(accuracies),
    }


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("edges", [None, [1, 3, 10, 64, 99]])
def test_against_brute_force(shift, ragged, edges):
    rng = np.random.default_rng(1)
    references = np.where(rng.random((40, 12)) < 0.3, rng.integers(2, size=(40, 12)), X)
    references[3] = X
    predictions = rng.integers(2, size=(40, 12))
    distances = rng.integers(1, 40, size=(40, 12)).astype(float)
    distances[references == X] = np.nan
    rows = [references, predictions, distances]
    if ragged:
        sizes = rng.integers(12, size=40)
        sizes[:2] = 0
        rows = [[row[:size].tolist() for row, size in zip(table, sizes, strict=True)] for table in rows]
    result = load_metric("recall_accuracy").compute(
        references=rows[0], predictions=rows[1], distances=rows[2], shift=shift, edges=edges
    )
    limits = edges or [0, 1, 2, 4, 8, 16, 32, 64]
    assert result == brute_force(rows[0], rows[1], shift, rows[2], limits)


def test_rows_of_the_package():
    """A perfect answer, one that knows only the first query of each row, and the shift of causal logits."""
    metric = load_metric("recall_accuracy")
    rows = associative_recall({"test": 20}, num_pairs=4, num_queries=3, vocab_size=16, length=24)["test"]
    tokens, labels = np.array(rows["input_ids"][:]), np.array(rows["labels"][:])
    perfect = metric.compute(predictions=tokens, references=labels)
    assert (perfect["accuracy"], perfect["row_accuracy"], perfect["num_queries_by_order"]) == (1.0, 1.0, [20] * 3)
    first = np.where(np.cumsum(labels != X, axis=1) == 1, tokens, 0)
    result = metric.compute(predictions=first, references=labels)
    assert (result["accuracy"], result["row_accuracy"]) == (pytest.approx(1 / 3), 0.0)
    assert result["accuracy_by_order"] == [1.0, 0.0, 0.0]
    next_tokens = np.roll(tokens, -1, axis=1)
    assert metric.compute(predictions=next_tokens, references=labels, shift=True) == perfect
    assert metric.compute(predictions=next_tokens, references=labels)["accuracy"] < 0.5


def test_one_distance_a_row():
    rows = rare_word_repetition({"train": 8, "test": 60}, length=64)["test"]
    far = np.array(rows["distance"][:])
    labels, tokens = np.array(rows["labels"][:]), np.array(rows["input_ids"][:])
    forgetful = np.where((far < 16)[:, None], tokens, 0)
    result = load_metric("recall_accuracy").compute(predictions=forgetful, references=labels, distances=far.tolist())
    assert result["start"] == [4, 8, 16, 32]
    assert result["accuracy_by_distance"] == [1.0, 1.0, 0.0, 0.0]
    assert sum(result["num_queries_by_distance"]) == 60
    assert result["accuracy"] == pytest.approx((far < 16).mean())


@pytest.mark.parametrize(
    "values, message",
    [
        ({"predictions": [[1, 2]], "references": [[1]]}, r"row 0 of predictions has shape \(2,\)"),
        ({"predictions": [[1, 2]], "references": [[X, X]]}, "no query: every place is -100"),
        ({"predictions": [[1, 2]], "references": [[1, X]], "shift": True}, "every place after the first"),
        ({"predictions": [[0.5]], "references": [[1]]}, "predictions must be integers"),
        ({"predictions": [[1]], "references": [[float("nan")]]}, "references must be integers"),
        ({"predictions": [[1]], "references": [[1]], "distances": [1, 2]}, "2 entries for 1 rows"),
        ({"predictions": [[1]], "references": [[1]], "distances": [[1, 2]]}, "row 0 of distances"),
        ({"predictions": [[1]], "references": [[1]], "distances": [-1]}, "negative"),
        ({"predictions": [[1]], "references": [[1]], "distances": [1.5]}, "distances must be integers"),
        ({"predictions": [[1]], "references": [[1]], "distances": [4], "edges": [0, 4]}, "beyond the largest, 4"),
        ({"predictions": [[1]], "references": [[1]], "edges": [0, 4]}, "give `distances`, too"),
    ],
)
def test_values_that_make_no_sense_raise(values, message):
    with pytest.raises(ValueError, match=message):
        load_metric("recall_accuracy").compute(**values)
