"""The `Trainer` with every head of every family: accumulation, resuming, early stopping, scores by `evaluate`."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import EarlyStoppingCallback, EvalPrediction, PreTrainedModel, Trainer, TrainingArguments

from hf_seqmix.metrics import load_metric
from hf_seqmix.models.auto import FAMILIES
from tests.ecosystem.tiny import thorough, tiny_model

pytestmark = pytest.mark.ecosystem("accelerate", "evaluate")

LENGTH, LABELS = 9, 3
IMAGES = {"image_size": [6, 4], "patch_size": 2, "num_channels": 1}
HEADS = [
    (family.config_class.model_type, suffix) for family in FAMILIES for suffix in family.classes if suffix != "Model"
]
WHOLE = ("ForSequenceClassification", "ForImageClassification")
LANGUAGE = ("ForCausalLM", "ForMaskedLM")


def make(model_type: str, suffix: str, **fields: Any) -> PreTrainedModel:
    if suffix == "ForImageClassification":
        fields = {**IMAGES, **fields}
    if suffix in ("ForTokenClassification", *WHOLE):
        fields = {"num_labels": LABELS, **fields}
    return tiny_model(model_type, suffix, **fields).double()


def examples(suffix: str, count: int, opposite: bool = False, problem: str = "single label") -> list[dict[str, Any]]:
    """Return rows that differ in how many targets they have, where a row has several.

    Args:
        suffix: the head.
        count: number of rows.
        opposite: give the same rows other targets: a model that learns one kind of targets unlearns the other.
        problem: kind of the labels, for a classifier of whole inputs.
    """
    generator = torch.Generator().manual_seed(1)
    rows = []
    for row in range(count):
        ids = torch.randint(20, (LENGTH,), generator=generator)
        example: dict[str, Any] = {"input_ids": ids}
        counted = torch.arange(LENGTH) < 2 + row
        if suffix in ("ForCausalLM", "ForMaskedLM"):
            example["labels"] = torch.where(counted, ids + 100 * opposite, -100)
        elif suffix == "ForTokenClassification":
            example["labels"] = torch.where(counted, opposite + ids % 2, -100)
        elif suffix == "ForQuestionAnswering":
            start = 5 * opposite + row % 2
            example |= {"start_positions": torch.tensor(start), "end_positions": torch.tensor(start + 2)}
        elif problem == "single label":
            example["labels"] = torch.tensor(opposite + row % 2)
        elif problem == "several labels":
            example["labels"] = torch.tensor([float((row >> bit) & 1) for bit in range(LABELS)], dtype=torch.double)
        else:
            example["labels"] = torch.tensor(float(row), dtype=torch.double)
        if suffix == "ForImageClassification":
            example["pixel_values"] = torch.randn(1, 6, 4, generator=generator, dtype=torch.double)
            del example["input_ids"]
        rows.append(example)
    return rows


def settings(folder: Path, **options: Any) -> TrainingArguments:
    shared = {
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(str(folder), **{**shared, **options})


def flat(model: PreTrainedModel) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# -- accumulation ----------------------------------------------------------------------------------------------------

# One head of all families makes the language models' losses, which families add to; the others have one loss each.
PROBLEMS = [
    pytest.param(*head.values, "single label", marks=[] if head.values[1] in LANGUAGE else head.marks)
    for head in thorough(HEADS)
] + [pytest.param(HEADS[0][0], suffix, problem) for suffix in WHOLE for problem in ("several labels", "regression")]


@pytest.mark.parametrize(("model_type", "suffix", "problem"), PROBLEMS)
@pytest.mark.one_in(3)
def test_accumulated_batches_make_the_update_of_the_whole(model_type, suffix, problem, tmp_path):
    """Micro-batches of three rows and of two, with other numbers of targets; without counting them the step differs.

    The `Trainer` counts targets in `labels`, which question answering has none of: there it takes the mean of the
    batches' means, which is right for batches of equally many rows.
    """
    fields = {"single label": {}, "regression": {"num_labels": 1}}.get(
        problem, {"problem_type": "multi_label_classification"}
    )
    start = make(model_type, suffix, **fields)
    count, size = (4, 2) if suffix == "ForQuestionAnswering" else (5, 3)
    weights = []
    for batch_size, steps in ((count, 1), (size, 2)):
        options = settings(
            tmp_path,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=steps,
            max_steps=1,
            learning_rate=0.5,
            optim="sgd",
            max_grad_norm=0.0,
        )
        trainer = Trainer(copy.deepcopy(start), options, train_dataset=examples(suffix, count, problem=problem))
        trainer.train()
        weights.append(flat(trainer.model))
    step = weights[0] - flat(start)
    assert step.norm() > 1e-3
    assert (weights[1] - weights[0]).norm() < 1e-5 * step.norm()


# -- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model_type", "suffix"), thorough(HEADS))
@pytest.mark.one_in(3)
def test_a_resumed_run_has_the_curve_of_an_uninterrupted_one(model_type, suffix, tmp_path):
    start = make(model_type, suffix, hidden_dropout=0.2)
    rows = examples(suffix, 6)

    def run(**options: Any) -> tuple[list[float], Tensor]:
        arguments = settings(
            tmp_path,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=4,
            learning_rate=1e-2,
            save_strategy="steps",
            save_steps=2,
        )
        trainer = Trainer(copy.deepcopy(start), arguments, train_dataset=rows)
        trainer.train(**options)
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], flat(trainer.model)

    curve, weights = run()
    resumed, again = run(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert len(curve) == 4 and len(set(curve)) == 4
    assert resumed == curve
    assert torch.equal(again, weights)


# -- stopping, and scores --------------------------------------------------------------------------------------------

WORDS = [f"w{place}" for place in range(LENGTH)]


def scorer(suffix: str) -> Any:
    """A `compute_metrics` by a module of `evaluate`: accuracy where something was asked for, or F1 of answers."""
    metric = load_metric("squad" if suffix == "ForQuestionAnswering" else "accuracy")

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        if suffix == "ForQuestionAnswering":
            spans = [np.stack([logits.argmax(axis=-1) for logits in prediction.predictions]), prediction.label_ids]
            found, asked = ([" ".join(WORDS[i : j + 1]) for i, j in np.transpose(span)] for span in spans)
            return metric.compute(predictions=found, references=[[answer] for answer in asked])
        best, labels = prediction.predictions.argmax(axis=-1), prediction.label_ids
        if suffix == "ForCausalLM":
            best, labels = best[:, :-1], labels[:, 1:]
        return metric.compute(predictions=best[labels != -100], references=labels[labels != -100])

    return compute


def score_by_hand(model: PreTrainedModel, suffix: str, rows: list[dict[str, Any]]) -> float:
    """The same for each row alone, without a metric: the share of right ones, or the mean F1 in percent."""
    right, total = 0.0, 0
    for row in rows:
        with torch.no_grad():
            outputs = model.eval()(**{key: value[None] for key, value in row.items()})
        if suffix == "ForQuestionAnswering":
            found = set(range(int(outputs.start_logits.argmax()), int(outputs.end_logits.argmax()) + 1))
            asked = set(range(int(row["start_positions"]), int(row["end_positions"]) + 1))
            right, total = right + 200 * len(found & asked) / (len(found) + len(asked)), total + 1
            continue
        scores, labels = outputs.logits[0], row["labels"]
        if suffix == "ForCausalLM":
            scores, labels = scores[:-1], labels[1:]
        for score, label in zip(scores.view(-1, scores.shape[-1]), labels.flatten(), strict=True):
            if label != -100:
                right, total = right + (score.argmax() == label).item(), total + 1
    return right / total


@pytest.mark.parametrize(("model_type", "suffix"), thorough(HEADS))
@pytest.mark.one_in(3)
def test_stopping_early_keeps_the_best_model_and_its_scores(model_type, suffix, tmp_path):
    """Training teaches what evaluation counts as wrong: an early checkpoint is the best."""
    rows, opposite = examples(suffix, 6), examples(suffix, 6, opposite=True)
    options = settings(
        tmp_path,
        per_device_train_batch_size=6,
        per_device_eval_batch_size=4,
        max_steps=20,
        learning_rate=2e-2,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
    )
    trainer = Trainer(
        make(model_type, suffix),
        options,
        train_dataset=rows,
        eval_dataset=opposite,
        compute_metrics=scorer(suffix),
        callbacks=[EarlyStoppingCallback(2)],
    )
    trainer.train()
    values = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    best = int(np.argmin(values))
    assert best + 3 == len(values) == trainer.state.global_step < 20
    checkpoint = tmp_path / f"checkpoint-{best + 1}"
    assert trainer.state.best_model_checkpoint == str(checkpoint)
    assert torch.equal(flat(trainer.model), flat(type(trainer.model).from_pretrained(checkpoint, dtype="auto")))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(values[best], rel=1e-6)

    # What was trained last knows something, so that the scores say something.
    last = type(trainer.model).from_pretrained(tmp_path / f"checkpoint-{len(values)}", dtype="auto")
    both = [*rows, *opposite]
    score = Trainer(last, options, eval_dataset=both, compute_metrics=scorer(suffix)).evaluate()
    expected = score_by_hand(last, suffix, both)
    assert score["eval_f1" if suffix == "ForQuestionAnswering" else "eval_accuracy"] == pytest.approx(expected)
    assert expected > 0
