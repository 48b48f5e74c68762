"""What a classifier has to beat: the most frequent answer, a bag of words, and for pairs the words that they share."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

__all__ = ["bag_of_words", "constant_labels", "most_frequent", "word_overlap"]

T = TypeVar("T", bound=Hashable)


def most_frequent(values: Sequence[T]) -> T:
    """Return the value that occurs most often; of equally frequent ones the first.

    Raises:
        ValueError: there are no values.
    """
    if len(values) == 0:
        raise ValueError("there is nothing to count: values is empty.")
    return Counter(values).most_common(1)[0][0]


def constant_labels(train: np.ndarray, problem_type: str, number: int) -> np.ndarray:
    """Return the same prediction for each of `number` examples, from the training labels alone.

    Args:
        train: class ids (examples,), zeros and ones (examples, labels), or numbers (examples,).
        problem_type: "single_label_classification" (the most frequent class), "multi_label_classification" (each label
            by its own majority) or "regression" (the mean).
        number: how many predictions to make.

    Returns:
        Predictions in the form of `train`.
    """
    if problem_type == "single_label_classification":
        return np.full(number, most_frequent(train.tolist()))
    if problem_type == "multi_label_classification":
        return np.tile((train.mean(axis=0) > 0.5).astype(np.int64), (number, 1))
    return np.full(number, train.mean())


def bag_of_words(
    train_texts: Sequence[Sequence[str]], train: np.ndarray, texts: Sequence[Sequence[str]], problem_type: str
) -> np.ndarray:
    """Return predictions of a linear model on TF-IDF weights of words and word pairs, weighted column by column.

    Logistic regression for classes, one for each label for several labels, ridge regression for numbers;
    scikit-learn's default penalties, nothing is tuned. A word has two letters or more; a column whose training texts
    have none is left out, and without any other the predictions are those of `constant_labels`.

    Args:
        train_texts: one or two columns of texts to learn from.
        texts: the same columns of texts to predict.
        train: labels as for `constant_labels`.
        problem_type: as for `constant_labels`.

    Returns:
        Predictions in the form of `train`.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    if problem_type == "single_label_classification" and (train == train[0]).all():
        return constant_labels(train, problem_type, len(texts[0]))  # nothing to tell apart
    columns = [pair for pair in zip(train_texts, texts, strict=True) if _has_words(pair[0])]
    if not columns:
        return constant_labels(train, problem_type, len(texts[0]))
    vectorizers = [TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True) for _ in columns]
    features = hstack([v.fit_transform(own) for v, (own, _) in zip(vectorizers, columns, strict=True)]).tocsr()
    held_out = hstack([v.transform(other) for v, (_, other) in zip(vectorizers, columns, strict=True)]).tocsr()
    if problem_type == "regression":
        return Ridge().fit(features, train).predict(held_out)
    classifier: Any = LogisticRegression(max_iter=1000)
    if problem_type == "single_label_classification":
        return classifier.fit(features, train).predict(held_out)
    predictions = np.tile(train[0], (held_out.shape[0], 1))
    varied = np.flatnonzero(train.min(axis=0) != train.max(axis=0))  # a label that never changes needs no classifier
    if len(varied):
        predictions[:, varied] = (
            OneVsRestClassifier(classifier).fit(features, train[:, varied]).predict(held_out).reshape(-1, len(varied))
        )
    return predictions


def word_overlap(
    train_pairs: Sequence[Sequence[str]], train: np.ndarray, pairs: Sequence[Sequence[str]], problem_type: str
) -> np.ndarray:
    """Return predictions for pairs of texts from one number each, the cosine of their TF-IDF weights of words.

    A bag of words sees what each text says but not what both say. Logistic regression for classes, least squares for
    numbers. Where no training text has a word, of two letters or more, the predictions are those of `constant_labels`.

    Args:
        train_pairs: two columns of texts to learn from.
        pairs: two columns of texts to predict.
        train: labels as for `constant_labels`, of one label.
        problem_type: "single_label_classification" or "regression".

    Returns:
        Predictions in the form of `train`.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: there are not two columns, or several labels are asked for.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LinearRegression, LogisticRegression

    if len(train_pairs) != 2 or len(pairs) != 2 or problem_type == "multi_label_classification":
        raise ValueError(
            f"shared words need two columns of texts and one label; given {len(pairs)} columns and {problem_type}."
        )
    if problem_type == "single_label_classification" and (train == train[0]).all():
        return constant_labels(train, problem_type, len(pairs[0]))  # nothing to tell apart
    if not any(map(_has_words, train_pairs)):
        return constant_labels(train, problem_type, len(pairs[0]))
    vectorizer = TfidfVectorizer(sublinear_tf=True).fit([text for column in train_pairs for text in column])

    def cosines(columns: Sequence[Sequence[str]]) -> np.ndarray:
        first, second = (vectorizer.transform(column) for column in columns)  # rows of length 1
        return np.asarray(first.multiply(second).sum(axis=1)).reshape(-1, 1)

    regression = problem_type == "regression"
    model: Any = LinearRegression() if regression else LogisticRegression(C=1e6, max_iter=1000)
    return model.fit(cosines(train_pairs), train).predict(cosines(pairs))


def _has_words(texts: Sequence[str]) -> bool:
    """Return whether a text has what the vectorizers take for a word."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words_of = TfidfVectorizer().build_analyzer()
    return any(words_of(text) for text in texts)
