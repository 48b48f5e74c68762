"""The lm-evaluation-harness on models of the causal families: what it scores is what they compute."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ecosystem.tiny import CAUSAL, tiny_model, tiny_tokenizer

EXAMPLES = Path(__file__).resolve().parents[2] / "scripts" / "examples"
TASKS = EXAMPLES / "lm_eval_task"
CONTEXT = 64

pytestmark = pytest.mark.ecosystem("lm_eval")
MODELS = [*CAUSAL, "copy head"]


def model_of(name: str) -> Any:
    if name == "copy head":
        return tiny_model("ipa", copy_head=True, rank=4).eval()
    return tiny_model(name).eval()


def rows(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TASKS / file).read_text().splitlines()]


@pytest.fixture
def score():
    """Results of a task, with the model's answer to each request, in the order of the documents."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    def run(model: Any, task: str, batch_size: int = 5) -> tuple[dict[str, float], list[Any]]:
        results = lm_eval.simple_evaluate(
            HFLM(pretrained=model, tokenizer=tiny_tokenizer(), batch_size=batch_size, device="cpu"),
            tasks=[task],
            task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
            bootstrap_iters=0,
        )
        samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
        return results["results"][task], [sample["filtered_resps"] for sample in samples]

    return run


def log_probability(model: Any, before: list[int], after: list[int]) -> float:
    """Return log p(after | before), each row read alone."""
    ids = torch.tensor([before + after])
    with torch.no_grad():
        scores = model(ids).logits[0, :-1].double().log_softmax(dim=-1)
    return scores.gather(1, ids[0, 1:, None])[len(before) - 1 :].sum().item()


@pytest.mark.parametrize("name", MODELS)
def test_a_choice_between_continuations(score, name):
    model, tokenizer = model_of(name), tiny_tokenizer()
    results, responses = score(model, "python_choice")
    right = 0
    for row, answers in zip(rows("choice.jsonl"), responses, strict=True):
        # The harness splits the ids of the whole where the ids of the text before end, without its last blanks.
        first = tokenizer(row["prefix"].rstrip())["input_ids"]
        expected = []
        for choice in row["choices"]:
            whole = tokenizer(row["prefix"] + choice)["input_ids"]
            expected.append(log_probability(model, first, whole[len(first) :]))
        assert [float(score) for score, _ in answers] == pytest.approx(expected, rel=1e-5, abs=1e-5)
        right += int(Tensor(expected).argmax()) == row["answer"]
    assert results["acc,none"] == pytest.approx(right / 12)


@pytest.mark.parametrize("name", MODELS)
def test_bits_per_byte_of_texts(score, name):
    """Each token is scored once; the first token of a window sees the token before, that of the text the end token."""
    model, tokenizer = model_of(name), tiny_tokenizer()
    results, responses = score(model, "python_text")
    total, size = 0.0, 0
    for row, (response,) in zip(rows("text.jsonl"), responses, strict=True):
        ids = tokenizer(row["text"])["input_ids"]
        assert len(ids) > 80
        expected, context = 0.0, [tokenizer.eos_token_id]
        for start in range(0, len(ids), CONTEXT):
            window = ids[start : start + CONTEXT]
            if len(window) < CONTEXT and start:  # the last window is filled up from the left
                context = ids[len(ids) - CONTEXT - 1 : start]
            expected += log_probability(model, context, window)
            context = window[-1:]
        assert float(response) == pytest.approx(expected, rel=1e-5)
        total, size = total + expected, size + len(row["text"].encode())
    assert results["bits_per_byte,none"] == pytest.approx(-total / size / torch.tensor(2.0).log().item(), rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_continuations_in_padded_batches(score, name):
    model, tokenizer = model_of(name), tiny_tokenizer()
    responses = score(model, "python_completion")[1]
    for row, (response,) in zip(rows("completion.jsonl"), responses, strict=True):
        prompt = tokenizer(row["prefix"], return_tensors="pt")["input_ids"][:, 16 - CONTEXT :]  # leaves room for 16
        output = model.generate(prompt, max_new_tokens=16, do_sample=False, eos_token_id=None)
        text = tokenizer.decode(output[0, prompt.shape[1] :], skip_special_tokens=True)
        assert response == text.split("\n")[0].split(tokenizer.eos_token)[0]
    assert len(set(map(str, responses))) > 1


def test_what_is_scored_depends_on_nothing_behind_it(score):
    """The harness pads on the right and passes no mask, so padding depends on the size of the batch."""
    model = model_of("fd_tnn")
    for task in ("python_choice", "python_text"):
        alone, together = score(model, task, 1)[1], score(model, task, 12)[1]
        for one, other in zip(alone, together, strict=True):
            assert Tensor([float(x[0] if isinstance(x, tuple) else x) for x in one]).tolist() == pytest.approx(
                [float(x[0] if isinstance(x, tuple) else x) for x in other], rel=1e-5
            )
