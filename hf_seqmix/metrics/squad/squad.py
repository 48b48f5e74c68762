"""Exact match and F1 of extracted answers, as defined for SQuAD."""

import collections
import re
import string
from typing import Any

from hf_seqmix.metrics import base


class Squad(base.BaseMetric):
    """Exact match and F1 of extracted answers, both in percent.

    Exact match is the share of predicted answers that equal a true one, after lower-casing and removing punctuation,
    articles and extra spaces. F1 is the mean over questions of the best harmonic mean of precision and recall of the
    answer's words. A question without an answer is answered right by what is empty
    once articles and punctuation are removed, and by nothing else.

    Args:
        predictions (list of str): one answer per question, empty for "there is no answer".
        references (list of list of str): the answers accepted for each question; an empty list: it has no answer.

    Returns:
        exact_match (float): between 0 and 100.
        f1 (float): between 0 and 100.

    Raises:
        ValueError: no questions, or lists of different lengths.
    """

    columns = {"predictions": "text", "references": "texts"}
    citation = """
@inproceedings{rajpurkar2016squad,
  title = {{SQuAD}: 100,000+ Questions for Machine Comprehension of Text},
  author = {Rajpurkar, Pranav and Zhang, Jian and Lopyrev, Konstantin and Liang, Percy},
  booktitle = {EMNLP}, year = {2016}
}
"""
    url = "https://rajpurkar.github.io/SQuAD-explorer/"

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        if len(predictions) == 0:
            raise ValueError("predictions is empty; give at least one answer.")
        exact = f1 = 0.0
        for prediction, answers in zip(predictions, references, strict=True):
            words = _words(prediction)
            accepted = [_words(answer) for answer in answers] or [[]]
            exact += max(words == answer for answer in accepted)
            f1 += max(_f1(words, answer) for answer in accepted)
        return {"exact_match": 100 * exact / len(predictions), "f1": 100 * f1 / len(predictions)}


def _words(text: str) -> list[str]:
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _f1(prediction: list[str], answer: list[str]) -> float:
    if not prediction or not answer:
        return float(prediction == answer)
    common = sum((collections.Counter(prediction) & collections.Counter(answer)).values())
    return 2 * common / (len(prediction) + len(answer))
