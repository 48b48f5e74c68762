import numpy as np
import pytest

from hf_seqmix.analysis.baselines import bag_of_words, constant_labels, most_frequent, word_overlap


def test_most_frequent():
    assert most_frequent([2, 1, 1, 2, 2]) == 2
    assert most_frequent(["b", "a"]) == "b"
    with pytest.raises(ValueError, match="empty"):
        most_frequent([])


def test_constant_labels():
    assert constant_labels(np.array([0, 2, 2]), "single_label_classification", 2).tolist() == [2, 2]
    several = constant_labels(np.array([[1, 0], [1, 1], [1, 0]]), "multi_label_classification", 2)
    assert several.tolist() == [[1, 0], [1, 0]]
    assert constant_labels(np.array([1.0, 2.0, 6.0]), "regression", 2).tolist() == [3.0, 3.0]


GOOD, BAD = ["a good film", "very good indeed"], ["a bad film", "very bad indeed"]


def test_bag_of_words_learns_which_word_matters():
    predictions = bag_of_words(
        [GOOD + BAD], np.array([1, 1, 0, 0]), [["good stuff", "bad stuff"]], "single_label_classification"
    )
    assert predictions.tolist() == [1, 0]
    numbers = bag_of_words([GOOD + BAD], np.array([4.0, 4.0, 1.0, 1.0]), [["good", "bad"]], "regression")
    assert numbers[0] > 2.5 > numbers[1]


def test_bag_of_words_of_several_labels_some_of_them_constant():
    labels = np.array([[1, 1, 0], [1, 1, 0], [0, 1, 0], [0, 1, 0]])
    predictions = bag_of_words([GOOD + BAD], labels, [["good", "bad"]], "multi_label_classification")
    assert predictions.tolist() == [[1, 1, 0], [0, 1, 0]]
    varied = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    assert bag_of_words([GOOD + BAD], varied, [["good", "bad"]], "multi_label_classification").tolist() == [
        [1, 0],
        [0, 1],
    ]
    constant = np.ones((4, 2), dtype=int)
    assert bag_of_words([GOOD + BAD], constant, [["good"]], "multi_label_classification").tolist() == [[1, 1]]


def test_bag_of_words_tells_two_columns_apart():
    first, second = ["good", "bad"] * 3, ["bad", "good"] * 3
    predictions = bag_of_words(
        [first, second], np.array([1, 0] * 3), [["good", "bad"], ["bad", "good"]], "single_label_classification"
    )
    assert predictions.tolist() == [1, 0]


def test_texts_without_words_say_nothing():
    """And a column without words leaves the other as it is."""
    labels, letters = np.array([1, 0, 1]), ["a c g t", "", "g"]
    for rule in (bag_of_words, word_overlap):
        predictions = rule([letters, letters], labels, [["word"] * 2] * 2, "single_label_classification")
        assert predictions.tolist() == [1, 1]
        assert rule([letters] * 2, labels / 2, [["a"]] * 2, "regression") == pytest.approx([1 / 3])
    several = bag_of_words([letters], np.array([[1, 0], [1, 1], [0, 0]]), [["a"]], "multi_label_classification")
    assert several.tolist() == [[1, 0]]
    words, numbers = ["good", "bad", "fine"], np.array([3.0, 1.0, 2.0])
    alone = bag_of_words([words], numbers, [words], "regression")
    assert bag_of_words([letters, words], numbers, [letters, words], "regression") == pytest.approx(alone)


def test_word_overlap_sees_what_a_bag_of_words_cannot():
    # Every text stands on each side with each label, so that only the pair tells.
    words = [f"word{index} other{index}" for index in range(12)]
    first, second = words * 2, words + words[1:] + words[:1]
    labels = np.array([1] * 12 + [0] * 12)
    held_out = [["left right", "word1 word2"], ["right left", "other5 word7"]]
    predictions = word_overlap([first, second], labels, [first, second], "single_label_classification")
    assert predictions.tolist() == labels.tolist()
    bag = bag_of_words([first, second], labels, [first, second], "single_label_classification")
    assert np.mean(bag == labels) < 0.75
    assert word_overlap([first, second], labels, held_out, "single_label_classification").tolist() == [0, 0]
    numbers = word_overlap([first, second], labels * 5.0, [first, second], "regression")
    assert np.allclose(numbers, labels * 5.0)


def test_labels_of_one_class_are_predicted():
    labels, kind = np.array([2, 2]), "single_label_classification"
    assert bag_of_words([["a b", "c d"]], labels, [["e f", "g h", "a b"]], kind).tolist() == [2, 2, 2]
    assert word_overlap([["a b", "c d"]] * 2, labels, [["e f"], ["g h"]], kind).tolist() == [2]


def test_word_overlap_is_for_pairs():
    with pytest.raises(ValueError, match="two columns"):
        word_overlap([["a b"]], np.array([1]), [["a b"]], "single_label_classification")
