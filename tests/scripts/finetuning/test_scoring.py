"""Metrics of fine-tuned models, of predictions that are known."""

import datasets
import pytest
from finetuning.scoring import baselines, score

from hf_seqmix.data.labeled import TokenClassification


def token_task(tags):
    rows = datasets.Dataset.from_dict({"words": [list("abcdef")], "tags": [tags]})
    return TokenClassification.from_data(rows, "words", "tags")


@pytest.mark.parametrize(
    ("predicted", "f1"),
    [("OOOOOO", 0.0), ("BOOOOO", 2 / 3), ("BBOOOO", 1.0), ("BBBBOO", 2 / 3)],
)
def test_f1_of_tags_leaves_out_what_is_outside(predicted, f1):
    """Two tags, where scikit-learn would take the second, which is O, for what is looked for."""
    task = token_task(["B", "B", "O", "O", "O", "O"])
    numbers = {tag: index for index, tag in enumerate(task.label_names)}
    found = score(
        task, ["accuracy", "f1"], [[numbers[tag] for tag in predicted]], [[numbers[tag] for tag in "BBOOOO"]]
    )
    assert found["f1"] == pytest.approx(f1)


def test_f1_of_tags_leaves_out_those_that_neither_side_has():
    task = token_task(["x", "x", "y", "y", "z", "O"])
    x, y, outside = (task.label_names.index(tag) for tag in "xyO")
    for tags in ([x, x, outside], [outside, outside]):
        assert score(task, ["f1"], [tags], [tags])["f1"] == 1
    assert score(task, ["f1"], [[x, y, outside]], [[x, x, outside]])["f1"] == pytest.approx((2 / 3 + 0) / 2)


def test_words_without_a_label_are_not_scored():
    task = token_task([-100, -100, -100, 3, 4, 4])
    references = [[-100, 0, 1], [-100, 1]]
    for ignored in (0, 1):
        found = score(task, ["accuracy", "f1"], [[ignored, 0, 0], [ignored, 1]], references)
        assert found == {"accuracy": pytest.approx(2 / 3), "f1": pytest.approx(2 / 3)}
    rows = datasets.Dataset.from_dict({"words": [list("abcdef")], "tags": [[-100, -100, -100, 3, 4, 4]]})
    found = baselines(task, ["accuracy"], datasets.DatasetDict(train=rows), ["train"])
    assert found["train"]["majority class"]["accuracy"] == pytest.approx(2 / 3)


def test_f1_of_tags_without_an_outside_is_the_mean_over_all():
    task = token_task(["x", "x", "y", "y", "z", "z"])
    found = score(task, ["f1"], [[0, 0, 1, 1, 1, 1]], [[0, 0, 1, 1, 2, 2]])
    assert found["f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
