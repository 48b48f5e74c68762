import math
import os
import subprocess
import sys
from pathlib import Path

import datasets
import evaluate
import numpy as np
import pytest
import torch
from transformers import ByT5Tokenizer

import hf_seqmix.metrics
from hf_seqmix import TNNConfig, TNNForSequenceClassification
from hf_seqmix.metrics import list_metrics, load_metric

FOLDER = Path(hf_seqmix.metrics.__file__).parent


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError(f"a metric reached for the network: {args}")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


def test_a_metric_names_the_extra_that_it_lacks(monkeypatch, tmp_path):
    def lacking(*args, **kwargs):
        raise ImportError("To be able to use f1, you need to install sklearn")

    monkeypatch.setattr(evaluate, "load", lacking)
    with pytest.raises(ImportError, match=r"^f1 needs .* pip install 'hf-seqmix\[eval\]'\.$"):
        load_metric("f1")
    with pytest.raises(ImportError, match="To be able"):  # a metric of a user's may stand on anything
        load_metric(str(tmp_path))


def test_every_metric_is_listed():
    assert list_metrics() == [
        "accuracy",
        "accuracy_by_length",
        "bits_per_byte",
        "f1",
        "matthews_correlation",
        "pearson",
        "perplexity",
        "perplexity_by_position",
        "recall_accuracy",
        "spearman",
        "squad",
    ]


@pytest.mark.parametrize("name", list_metrics())
def test_loads_by_name_by_folder_and_by_script(name):
    by_name = load_metric(name)
    for path in (FOLDER / name, FOLDER / name / f"{name}.py"):
        by_path = evaluate.load(str(path))
        assert isinstance(by_path, evaluate.Metric)
        assert by_path.features == by_name.features
        assert "Returns" in by_path.inputs_description


def test_unknown_metric_names_the_known_ones():
    with pytest.raises(ValueError, match=r"no metric 'bleu'.*accuracy.*squad"):
        load_metric("bleu")


@pytest.mark.parametrize(("name", "config_name"), [("f1", "multi-label"), ("pearson", "multilabel")])
def test_unknown_configurations_are_refused(name, config_name):
    with pytest.raises(ValueError, match=f"config_name is '{config_name}'; it must be one of 'default'"):
        load_metric(name, config_name)


def test_own_metric_by_path(tmp_path):
    script = tmp_path / "mine" / "mine.py"
    script.parent.mkdir()
    script.write_text((FOLDER / "accuracy" / "accuracy.py").read_text())
    assert load_metric(str(script)).compute(predictions=[1], references=[1]) == {"accuracy": 1.0}


@pytest.mark.slow
def test_processes_at_the_same_time_do_not_disturb_each_other(tmp_path):
    code = (
        "import sys; from hf_seqmix.metrics import load_metric\n"
        "metric = load_metric('accuracy'); other = load_metric('accuracy')\n"
        "n = int(sys.argv[1])\n"
        "for _ in range(20):\n"
        "    metric.add_batch(predictions=[1] * n, references=[1] * (n - 1) + [0])\n"
        "    other.add(prediction=1, reference=1)\n"
        "    assert metric.compute() == {'accuracy': (n - 1) / n} and other.compute() == {'accuracy': 1.0}\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(n)], env=environment, stderr=subprocess.PIPE, text=True)
        for n in (3, 5)
    ]
    for run in runs:
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 0, errors


def test_accuracy():
    assert load_metric("accuracy").compute(predictions=[0, 1, 2, 2], references=[0, 1, 2, 0]) == {"accuracy": 0.75}
    assert load_metric("accuracy").compute(
        predictions=np.array([1, 0]), references=np.array([1, 1]), normalize=False
    ) == {"accuracy": 1.0}
    multilabel = load_metric("accuracy", "multilabel")
    assert multilabel.compute(predictions=[[1, 0], [1, 1]], references=[[1, 0], [0, 1]]) == {"accuracy": 0.5}


def test_f1():
    # 2 true positives, 1 false positive, 1 false negative
    predictions, references = [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]
    assert load_metric("f1").compute(predictions=predictions, references=references)["f1"] == pytest.approx(2 / 3)
    each = load_metric("f1").compute(predictions=predictions, references=references, average=None)["f1"]
    assert each == pytest.approx([0.5, 2 / 3])
    macro = load_metric("f1").compute(predictions=[0, 1, 2], references=[0, 1, 1], average="macro")["f1"]
    assert macro == pytest.approx((1 + 2 / 3 + 0) / 3)
    multilabel = load_metric("f1", "multilabel")
    micro = multilabel.compute(predictions=[[1, 0], [1, 1]], references=[[1, 0], [0, 1]], average="micro")["f1"]
    assert micro == pytest.approx(2 * 2 / (3 + 2))
    with pytest.raises(ValueError, match="average"):
        load_metric("f1").compute(predictions=[0, 1, 2], references=[0, 1, 1])


def test_matthews_correlation():
    metric = load_metric("matthews_correlation")
    # tp 2, tn 1, fp 1, fn 1: (2*1 - 1*1) / sqrt(3 * 3 * 2 * 2)
    value = metric.compute(predictions=[1, 1, 1, 0, 0], references=[1, 1, 0, 1, 0])["matthews_correlation"]
    assert value == pytest.approx(1 / 6)
    assert metric.compute(predictions=[1, 1], references=[1, 0])["matthews_correlation"] == 0


def test_correlations():
    x, y = [1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]
    pearson = load_metric("pearson").compute(predictions=x, references=y)
    assert pearson == {"pearsonr": pytest.approx(np.corrcoef(x, y)[0, 1])}
    spearman = load_metric("spearman").compute(predictions=x, references=y, return_pvalue=True)
    assert spearman == {"spearmanr": pytest.approx(1.0), "p-value": pytest.approx(0.0)}
    for name, key in (("pearson", "pearsonr"), ("spearman", "spearmanr")):
        assert math.isnan(load_metric(name).compute(predictions=[1, 1, 1], references=[1, 2, 3])[key])


def test_bits_per_byte_weights_documents_by_their_bytes():
    text = ["naïve", "ab"]  # 6 and 2 bytes, 7 characters: characters would give another number
    nll = [6 * math.log(2), 4 * math.log(2)]
    result = load_metric("bits_per_byte").compute(nll=nll, num_bytes=[len(t.encode()) for t in text])
    assert result == {"bits_per_byte": pytest.approx(10 / 8)}


def test_bits_per_byte_of_a_uniform_byte_model_is_eight():
    assert load_metric("bits_per_byte").compute(nll=[1000 * math.log(256)], num_bytes=[1000]) == {
        "bits_per_byte": pytest.approx(8.0)
    }


def test_perplexity_per_token_and_per_word():
    metric = load_metric("perplexity")
    result = metric.compute(nll=[10.0, 20.0], num_tokens=[5, 10], num_words=[4, 6])
    assert result == {"perplexity": pytest.approx(math.exp(2)), "word_perplexity": pytest.approx(math.exp(3))}
    assert metric.compute(nll=[10.0], num_tokens=[5], num_words=5)["word_perplexity"] == pytest.approx(math.exp(2))
    assert "word_perplexity" not in metric.compute(nll=[10.0], num_tokens=[5])
    assert metric.compute(nll=[1e6], num_tokens=[1]) == {"perplexity": math.inf}


def test_perplexity_by_position():
    metric = load_metric("perplexity_by_position")
    result = metric.compute(nll=[4.0, 3.0, 2.0, 1.0, 6.0], positions=[0, 1, 2, 3, 0])
    assert result["start"] == [0, 1, 2]
    assert result["end"] == [1, 2, 4]
    assert result["num_tokens"] == [2, 1, 2]
    assert result["perplexity"] == pytest.approx([math.exp(5), math.exp(3), math.exp(1.5)])
    # sums with counts are the same thing, and empty buckets are left out
    summed = metric.compute(nll=[10.0, 3.0], positions=[0, 5], num_tokens=[2, 1], edges=[0, 1, 3, 6])
    assert summed["start"] == [0, 3] and summed["end"] == [1, 6] and summed["num_tokens"] == [2, 1]
    assert summed["perplexity"] == pytest.approx([math.exp(5), math.exp(3)])


def test_squad():
    metric = load_metric("squad")
    result = metric.compute(
        predictions=["The Eiffel tower!", "in Paris", "", "x"],
        references=[["eiffel tower", "tower"], ["Paris"], [], []],
    )
    assert result == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3 + 1 + 0) / 4)}
    # "There is no answer" may be one of several answers.
    assert metric.compute(predictions=["", "x"], references=[["", "x"]] * 2) == {"exact_match": 100.0, "f1": 100.0}


LABELS = {"predictions": [1, 0], "references": [1, 1]}
NUMBERS = {"predictions": [1.0, 0.0, 2.0], "references": [1.0, 1.0, 3.0]}
GOOD = {
    "accuracy": LABELS,
    "accuracy_by_length": {**LABELS, "lengths": [3, 9]},
    "f1": LABELS,
    "matthews_correlation": LABELS,
    "pearson": NUMBERS,
    "spearman": NUMBERS,
    "bits_per_byte": {"nll": [1.0, 2.0], "num_bytes": [3, 4]},
    "perplexity": {"nll": [1.0, 2.0], "num_tokens": [3, 4]},
    "perplexity_by_position": {"nll": [1.0, 2.0], "positions": [0, 1]},
    "recall_accuracy": {"predictions": [[1, 2], [3, 4]], "references": [[-100, 2], [3, -100]]},
    "squad": {"predictions": ["a", "b"], "references": [["a"], ["b"]]},
}


@pytest.mark.parametrize("name", list_metrics())
def test_empty_input_and_mismatched_lengths_raise(name):
    load_metric(name).compute(**GOOD[name])
    with pytest.raises(ValueError, match=r"empty|at least two"):
        load_metric(name).compute(**{key: [] for key in GOOD[name]})
    first, *others = GOOD[name]
    with pytest.raises(ValueError, match="Mismatch"):
        load_metric(name).compute(**{first: GOOD[name][first][:1], **{key: GOOD[name][key] for key in others}})


@pytest.mark.parametrize("name", [name for name in list_metrics() if name not in ("recall_accuracy", "squad")])
@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_numbers_that_are_not_finite_raise(name, bad):
    for key in GOOD[name]:
        with pytest.raises(ValueError, match="missing"):
            load_metric(name).compute(**{**GOOD[name], key: [bad, *GOOD[name][key][1:]]})


@pytest.mark.parametrize("name", ["accuracy", "accuracy_by_length", "f1", "matthews_correlation"])
def test_probabilities_are_not_taken_for_labels(name):
    with pytest.raises(ValueError, match="integer labels"):
        load_metric(name).compute(**{**GOOD[name], "predictions": [0.7, 0.2]})


@pytest.mark.parametrize(
    "name, values, message",
    [
        ("bits_per_byte", {"nll": [1.0], "num_bytes": [0]}, "at least one byte"),
        ("bits_per_byte", {"nll": [1.0], "num_bytes": [-3]}, "negative"),
        ("bits_per_byte", {"nll": [-1.0], "num_bytes": [3]}, "negative"),
        ("perplexity", {"nll": [1.0], "num_tokens": [0]}, "at least one"),
        ("perplexity", {"nll": [1.0], "num_tokens": [1.5]}, "whole numbers"),
        ("perplexity", {"nll": [1.0, 2.0], "num_tokens": [1, 1], "num_words": [1]}, "num_words has 1 entries for 2"),
        ("perplexity", {"nll": [1.0], "num_tokens": [1], "num_words": 0}, "at least one"),
        (
            "perplexity_by_position",
            {"nll": [1.0], "positions": [4], "edges": [0, 4]},
            "beyond the largest position, 4",
        ),
        ("perplexity_by_position", {"nll": [1.0], "positions": [0], "num_tokens": [1, 2]}, "2 entries for 1"),
        (
            "perplexity_by_position",
            {"nll": [1.0], "positions": [0], "num_tokens": [0]},
            "above 0 where there is an nll",
        ),
        ("perplexity_by_position", {"nll": [0.0], "positions": [0], "num_tokens": [0]}, "give at least one token"),
        ("perplexity_by_position", {"nll": [1.0], "positions": [0], "num_tokens": [1.5]}, "must be whole numbers"),
    ],
)
def test_values_that_make_no_sense_raise(name, values, message):
    with pytest.raises(ValueError, match=message):
        load_metric(name).compute(**values)


def test_the_library_s_evaluator_takes_models_and_metrics():
    config = TNNConfig(vocab_size=384, hidden_size=8, num_hidden_layers=1, num_labels=2, is_causal=False)
    model, texts = TNNForSequenceClassification(config).eval(), ["one", "two", "three"]
    with torch.no_grad():
        right = [model(**ByT5Tokenizer()(text, return_tensors="pt")).logits.argmax().item() for text in texts]
    data = datasets.Dataset.from_dict({"text": texts, "label": [right[0], right[1], 1 - right[2]]})
    found = evaluate.evaluator("text-classification").compute(
        model_or_pipeline=model,
        data=data,
        tokenizer=ByT5Tokenizer(),
        metric=load_metric("accuracy"),
        label_mapping={"LABEL_0": 0, "LABEL_1": 1},
    )
    assert found["accuracy"] == pytest.approx(2 / 3)
