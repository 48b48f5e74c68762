"""What finetune.py makes of a model's output."""

from types import SimpleNamespace

import pytest
from finetuning.evaluation import predictions_of

from hf_seqmix.data.labeled import QuestionAnswering


@pytest.mark.parametrize(
    ("answers", "expected"), [([["a"], ["b", "c"]], False), ([["a"], []], True), ([[], []], True)]
)
def test_no_answer_is_an_answer_where_some_training_question_has_none(monkeypatch, answers, expected):
    monkeypatch.setattr(QuestionAnswering, "predictions", lambda task, *given: given[-1])
    examples = {"train": {"answers": [{"text": text} for text in answers]}, "test": None}
    run = SimpleNamespace(task=QuestionAnswering(), encoded={"test": None}, examples=examples)
    assert predictions_of(run, "test", output=None) is expected
