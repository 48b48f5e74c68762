"""Heads: losses that accumulate exactly, and a family's own distribution over tokens."""

import copy
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from hf_seqmix import TNNConfig, TNNForCausalLM, TNNForMaskedLM, TNNForQuestionAnswering, TNNForTokenClassification
from hf_seqmix import TNNForSequenceClassification as Classifier
from hf_seqmix.models.tnn.modeling_tnn import TNN_FAMILY
from tests.models.suite import perturb

VOCAB = 31


def config(**kwargs: Any) -> TNNConfig:
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "expand_ratio": 1, "rpe_hidden_size": 8}
    return TNNConfig(**{**fields, "hidden_dropout": 0.0, "is_causal": False, **kwargs})


class Tempered(TNNForCausalLM):
    """Half the logits, and what the hook was told."""

    def compute_logits(self, hidden_states, kept, past, **call):
        self.told = (hidden_states.shape[1], kept, past, call)
        return super().compute_logits(hidden_states, kept, past, **call) / 2


def test_a_family_may_have_a_distribution_of_its_own():
    model = perturb(Tempered(config(is_causal=True))).double().eval()
    plain = TNNForCausalLM(model.config).double().eval()
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(VOCAB, (2, 7))
    out = model(ids, labels=ids)
    torch.testing.assert_close(out.logits, plain(ids).logits / 2)
    expected = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(out.loss, expected, check_dtype=False)
    assert model.told[2] == 0 and model.told[3]["past_key_values"] is out.past_key_values  # the cache it made itself
    later = model(ids[:, :3], past_key_values=out.past_key_values, logits_to_keep=1)
    assert later.logits.shape == (2, 1, VOCAB)
    length, kept, past, call = model.told
    assert (length, kept, past) == (3, slice(-1, None), 7)
    assert call["input_ids"] is not None and call["past_key_values"].get_seq_length() == 10


def test_a_class_derived_from_a_family_keeps_its_configuration():
    assert Tempered.config_class is TNNForCausalLM.config_class is TNNConfig
    assert "Tempered" not in {cls.__name__ for cls in TNN_FAMILY.classes.values()}


HEADS = {
    "causal": (TNNForCausalLM, {"is_causal": True}),
    "masked": (TNNForMaskedLM, {}),
    "single label": (Classifier, {"num_labels": 3}),
    "multi label": (Classifier, {"num_labels": 3, "problem_type": "multi_label_classification"}),
    "regression": (Classifier, {"num_labels": 1}),
    "token": (TNNForTokenClassification, {"num_labels": 2}),
    "question answering": (TNNForQuestionAnswering, {}),
}


def examples(head: str) -> list[dict[str, Any]]:
    """Eight rows whose numbers of counted labels differ, so that a mean of means is not the mean."""
    rows = []
    for row in range(8):
        ids = torch.randint(VOCAB, (10,))
        example: dict[str, Any] = {"input_ids": ids.tolist()}
        uneven = torch.where(torch.arange(10) < 1 + row, ids, -100)
        if head in ("causal", "masked"):
            example["labels"] = uneven.tolist()
        elif head == "token":
            example["labels"] = torch.where(uneven == -100, -100, ids % 2).tolist()
        elif head == "single label":
            example["labels"] = row % 3
        elif head == "multi label":
            example["labels"] = [float((row >> i) & 1) for i in range(3)]
        elif head == "regression":
            example["labels"] = float(row)
        else:
            example |= {"start_positions": row, "end_positions": row + 1}
        rows.append(example)
    return rows


@pytest.mark.parametrize("head", HEADS)
def test_a_subclass_of_any_name_has_the_loss_of_its_head(head):
    model_class, fields = HEADS[head]
    model = perturb(model_class(config(**fields))).eval()
    renamed = type("Mine", (model_class,), {})(model.config).eval()
    renamed.load_state_dict(model.state_dict())
    batch = {name: torch.tensor([row[name] for row in examples(head)]) for name in examples(head)[0]}
    assert torch.equal(renamed(**batch).loss, model(**batch).loss)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.one_in(3)
def test_four_accumulated_batches_equal_one_large_batch(head, tmp_path):
    model_class, fields = HEADS[head]
    model = perturb(model_class(config(**fields)))
    data = Dataset.from_list(examples(head))
    weights = []
    for batch_size, accumulation in ((8, 1), (2, 4)):
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            learning_rate=0.5,
            optim="sgd",
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trained = copy.deepcopy(model)
        Trainer(trained, arguments, train_dataset=data).train()
        weights.append(torch.cat([p.detach().flatten() for p in trained.parameters()]))
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    step = (weights[0] - start).norm()
    assert step > 1e-3
    assert (weights[1] - weights[0]).norm() < 1e-4 * step


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_labels_are_not_rounded_to_half_precision(dtype):
    """2,001 would be 2,000 in bfloat16, 70,000 would be infinite in float16."""
    labels = torch.tensor([1999.0, 2001.0, 2003.0, 70_000.0])
    model = Classifier(config(num_labels=1, problem_type="regression")).to(dtype).eval()
    outputs = model(torch.randint(VOCAB, (4, 5)), labels=labels)
    expected = (outputs.logits.float().squeeze(-1) - labels).square().mean()
    torch.testing.assert_close(outputs.loss, expected)


def test_an_empty_row_has_a_loss_without_logits():
    model = TNNForCausalLM(config(is_causal=True, copy_head=True))
    ids = torch.empty(2, 0, dtype=torch.long)
    assert model(ids, labels=ids, skip_logits=True, num_items_in_batch=1).loss == 0


@pytest.mark.parametrize("label", [-1, 3])
@pytest.mark.parametrize(
    "kind", ["CausalLM", "copying", "without logits", "SequenceClassification", "TokenClassification"]
)
def test_labels_that_are_no_class_are_named(kind, label):
    fields = {"vocab_size": 3, "num_labels": 3, "hidden_size": 8, "num_hidden_layers": 1}
    config = TNNConfig(**fields, copy_head=kind == "copying")
    heads = {"SequenceClassification": Classifier, "TokenClassification": TNNForTokenClassification}
    model = heads.get(kind, TNNForCausalLM)(config)
    labels = torch.tensor([0, label] if kind == "SequenceClassification" else [[0, 0, -100], [0, 0, label]])
    more = {"skip_logits": True} if kind in ("copying", "without logits") else {}
    low, high = sorted((0, label))
    with pytest.raises(ValueError, match=f"labels run from {low} to {high}; allowed are 0 to 2, and -100"):
        model(torch.zeros(2, 3, dtype=torch.long), labels=labels, **more)


KINDS_OF_LABELS = {
    "int32": torch.Tensor.int,
    "uint8": torch.Tensor.byte,
    "bool": torch.Tensor.bool,
    "transposed": lambda labels: labels.t().contiguous().t(),
}


@pytest.mark.parametrize("kind", KINDS_OF_LABELS)
@pytest.mark.parametrize("head", ["causal", "masked", "single label", "token"])
def test_labels_of_other_integers(head, kind):
    model_class, fields = HEADS[head]
    model = model_class(config(**{"num_labels": 2, **fields})).eval()
    ids = torch.randint(VOCAB, (2, 7))
    labels = torch.randint(2, (2,) if head == "single label" else (2, 7))
    assert torch.equal(model(ids, labels=KINDS_OF_LABELS[kind](labels)).loss, model(ids, labels=labels).loss)


@pytest.mark.parametrize("head", ["causal", "masked", "single label", "token", "regression"])
def test_labels_that_are_no_tensor(head):
    model_class, fields = HEADS[head]
    with pytest.raises(TypeError, match="labels is a list; it must be a tensor"):
        model_class(config(**fields))(torch.randint(VOCAB, (2, 7)), labels=[0, 1])


@pytest.mark.parametrize("num_labels", [1, 3])
def test_numbers_in_the_place_of_classes(num_labels):
    ids = torch.randint(VOCAB, (2, 5))
    of_tokens = TNNForTokenClassification(config(num_labels=num_labels))
    with pytest.raises(TypeError, match=r"labels have torch\.float32, .* problem_type='regression'"):
        of_tokens(ids, labels=torch.rand(2, 5))
    of_rows = Classifier(config(num_labels=num_labels + 1, problem_type="single_label_classification"))
    with pytest.raises(TypeError, match=r"labels have torch\.float32, but ids of classes are integers"):
        of_rows(ids, labels=torch.rand(2))


@pytest.mark.parametrize(
    ("head", "shape"), [("causal", (2, 5)), ("masked", (2, 6)), ("single label", (2, 3)), ("token", (2, 7, 2))]
)
def test_labels_of_another_shape(head, shape):
    model_class, fields = HEADS[head]
    with pytest.raises(ValueError, match=rf"labels have shape \({str(shape)[1:-1]}\), but the model returns \(2, "):
        model_class(config(**fields))(torch.randint(VOCAB, (2, 7)), labels=torch.ones(shape, dtype=torch.long))


def test_problem_types_are_checked():
    with pytest.raises(ValueError, match="problem_type is 'foo'; it must be one of"):
        TNNConfig(problem_type="foo")
    with pytest.raises(
        ValueError, match="'multi_label_classification', but TNNForTokenClassification gives one class"
    ):
        TNNForTokenClassification(TNNConfig(problem_type="multi_label_classification"))
