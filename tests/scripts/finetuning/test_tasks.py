"""finetune.py on every task: scores, baselines, predictions and the model that is read back."""

import importlib
import json
import math

import pytest
from datasets import Dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from tests.scripts.finetuning.inputs import LABELS, TABLE, TEXTS


@pytest.mark.parametrize(
    "model", ["causal", *(pytest.param(name, marks=pytest.mark.slow) for name in ("masked", "gpt2")), "bert"]
)
@pytest.mark.usefixtures("pictures")
def test_sequence_classification(finetune, tmp_path, model, capsys):
    results = finetune(TABLE, "--baseline", "bag-of-words", "--save-predictions", model=model, validation=TABLE)
    assert results["problem_type"] == "single_label_classification"
    assert 0 <= results["validation"]["accuracy"] <= 1 and "f1" in results["validation"]
    assert results["validation"]["baselines"]["majority class"] == {"accuracy": 0.5, "f1": pytest.approx(2 / 3)}
    assert results["validation"]["baselines"]["bag of words"]["accuracy"] == 1.0
    by_length = results["validation"]["by_length"]
    assert by_length["accuracy"] == results["validation"]["accuracy"] and sum(by_length["num_examples"]) == len(TEXTS)
    table = capsys.readouterr().out
    assert f"| validation | {model}" in table and "| validation | bag of words" in table

    saved = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert saved["validation"] == results["validation"] and saved["environment"]["versions"]
    assert (tmp_path / "out" / "loss.png").stat().st_size > 1000

    reloaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert reloaded.config.id2label == {0: "0", 1: "1"} and reloaded.config.pad_token_id == tokenizer.pad_token_id
    lines = (tmp_path / "out" / "predictions_validation.jsonl").read_text().splitlines()
    for row, (text, label, line) in enumerate(zip(TEXTS, LABELS, lines, strict=True)):
        logits = reloaded(**tokenizer(text, return_tensors="pt")).logits[0]
        assert json.loads(line) == {"row": row, "prediction": str(logits.argmax().item()), "label": str(label)}


def test_a_bag_of_words_reads_what_the_model_reads(finetune, tmp_path):
    """The word that tells lies behind the cut of the odd half of the rows: without it half is a guess."""
    texts = [("so " * 30 if i % 2 else "") + ("good" if i % 4 < 2 else "bad") for i in range(16)]
    rows = {"text": texts, "label": [int(i % 4 < 2) for i in range(16)]}
    options = ["--baseline", "bag-of-words", "--metrics", "accuracy", "--max-length", "20"]
    found = finetune(rows, *options, validation=rows, test=rows)
    for split in ("validation", "test"):
        scores = {name: values["accuracy"] for name, values in found[split]["baselines"].items()}
        assert scores == {"majority class": 0.5, "bag of words": 0.75, "bag of words, whole texts": 1.0}
    uncut = finetune(rows, *options[:-1], "100", validation=rows, output="uncut")
    assert list(uncut["validation"]["baselines"]) == ["majority class", "bag of words"]
    pairs = {"text": texts, "other": texts[::-1], "label": rows["label"]}
    found = finetune(pairs, "--text-columns", "text", "other", *options, validation=pairs, output="pairs")
    names = ["bag of words", "shared words", "bag of words, whole texts", "shared words, whole texts"]
    assert list(found["validation"]["baselines"]) == ["majority class", *names]


@pytest.mark.parametrize(
    ("model", "limit", "advice"),
    [
        ("masked", 20, "give a larger --max-length (the model sets no limit)"),
        ("bert", 20, "give a larger --max-length (at most 512 for this model)"),
        ("gpt2", 64, "the model takes no more, so shorten the texts or give a model for longer ones"),
    ],
)
def test_texts_that_are_cut_are_counted_and_said(finetune, tmp_path, caplog, model, limit, advice):
    rows = {"text": ["so good " * 40, *TEXTS[1:]], "label": LABELS}
    results = finetune(rows, "--max-length", str(limit), model=model, steps=1, validation=TABLE)
    assert results["cut_texts"] == {"train": 1, "validation": 0}
    said = f"train: 1 of 8, validation: 0 of 8 texts are longer than {limit} tokens and were cut; {advice}"
    assert said in caplog.messages
    saved = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert saved["cut_texts"] == results["cut_texts"]


def test_words_that_are_cut_are_counted(finetune, caplog):
    rows = {"tokens": [["so", "good"] * 20, ["bad"]] * 2, "tags": [["O", "B"] * 20, ["O"]] * 2}
    options = ["--task", "token-classification", "--max-length", "20"]
    results = finetune(rows, *options, model="masked", steps=1, validation=rows)
    assert results["cut_texts"] == {"train": 2, "validation": 2} and "train: 2 of 4" in caplog.text


def test_a_split_without_the_column_of_labels_is_warned_of_before_training(finetune, script, caplog, monkeypatch):
    def stop(*args):
        raise ValueError("before training")

    monkeypatch.setattr(script, "prepare_inputs", stop)
    with pytest.raises(SystemExit, match="before training"):
        finetune(TABLE, validation=TABLE, test={"text": TEXTS, "lable": LABELS})
    said = "the test data has no column 'label' (it has 'text', 'lable'): it is predicted, not scored."
    assert said in caplog.messages
    caplog.clear()
    with pytest.raises(SystemExit, match="before training"):  # hidden, on purpose
        finetune(TABLE, validation=TABLE, test={"text": TEXTS, "label": [-1] * len(TEXTS)})
    words = {"tokens": [text.split() for text in TEXTS], "tags": [["O", "X"]] * 4 + [["X", "O"]] * 4}
    words["tags"] = [tags + ["O"] * (len(row) - 2) for row, tags in zip(words["tokens"], words["tags"], strict=True)]
    with pytest.raises(SystemExit, match="before training"):
        finetune(words, "--task", "token-classification", validation=words, test={"tokens": words["tokens"]})
    assert [text for text in caplog.messages if "not scored" in text] == [
        "the test data has no column 'tags' (it has 'tokens'): it is predicted, not scored."
    ]


def test_it_learns(finetune):
    once = ["--eval-strategy", "no", "--save-strategy", "no"]  # not after each epoch
    results = finetune(TABLE, *once, "--learning-rate", "1e-2", "--warmup-steps", "0", steps=60, validation=TABLE)
    assert results["validation"]["accuracy"] == 1.0


def test_pairs_regression_and_hidden_test_labels(finetune, tmp_path):
    rows = {"one": TEXTS, "two": TEXTS[::-1], "score": [i / 2 for i in range(8)]}
    hidden = {"one": TEXTS[:3], "two": TEXTS[:3]}
    results = finetune(
        rows,
        *(
            "--text-columns",
            "one",
            "two",
            "--label-column",
            "score",
            "--save-predictions",
            "--baseline",
            "bag-of-words",
        ),
        validation=rows,
        test=hidden,
    )
    assert results["problem_type"] == "regression"
    baselines = results["validation"]["baselines"]
    assert math.isnan(baselines["mean"]["pearsonr"]) and baselines["mean"]["mse"] == pytest.approx(21 / 16)
    assert baselines["bag of words"]["mse"] < 21 / 16
    assert results["validation"]["mse"] == pytest.approx(results["validation"]["loss"], rel=1e-4)
    assert results["test"] == {"examples": 3}
    lines = (tmp_path / "out" / "predictions_test.jsonl").read_text().splitlines()
    assert len(lines) == 3 and isinstance(json.loads(lines[0])["prediction"], float)
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert saved["validation"]["baselines"]["mean"]["pearsonr"] is None


def test_several_labels(finetune):
    rows = {"text": TEXTS, "label": [["x"], ["y"], ["x", "y"], []] * 2}
    results = finetune(rows, "--baseline", "bag-of-words", "--metrics", "accuracy", validation=rows)
    assert (results["problem_type"], results["num_labels"]) == ("multi_label_classification", 2)
    assert results["validation"]["baselines"]["majority class"] == {"accuracy": 0.25}
    assert "f1" not in results["validation"]


@pytest.mark.parametrize("model", [pytest.param("causal", marks=pytest.mark.slow), "masked"])
def test_token_classification(finetune, tmp_path, model):
    rows = {"tokens": [text.split() for text in TEXTS], "tags": [["O"] * len(text.split()) for text in TEXTS]}
    for words, tags in zip(rows["tokens"], rows["tags"], strict=True):
        tags[-1] = words[-1]
    results = finetune(rows, "--task", "token-classification", "--save-predictions", model=model, validation=rows)
    majority = sum(tag == "O" for tags in rows["tags"] for tag in tags) / sum(map(len, rows["tags"]))
    assert results["validation"]["baselines"]["majority class"]["accuracy"] == pytest.approx(majority)
    assert results["num_labels"] == 4
    reloaded = AutoModelForTokenClassification.from_pretrained(tmp_path / "out")
    lines = (tmp_path / "out" / "predictions_validation.jsonl").read_text().splitlines()
    predicted = [json.loads(line) for line in lines]
    assert [row["label"] for row in predicted] == rows["tags"]
    right = [a == b for row in predicted for a, b in zip(row["prediction"], row["label"], strict=True)]
    assert sum(right) / len(right) == pytest.approx(results["validation"]["accuracy"])
    assert reloaded.config.id2label[0] == "O"


def test_words_are_scored_alike_on_whichever_side_a_tokenizer_pads(finetune, monkeypatch):
    rows = {"tokens": [["a"], ["b", "c", "dddd"], ["e", "f"]] * 4, "tags": [["B"], ["O", "B", "O"], ["O", "B"]] * 4}
    inputs = importlib.import_module("finetuning.inputs")
    load, found = inputs.load_tokenizer, []
    for side in ("right", "left"):

        def padded(*given, side=side):
            tokenizer = load(*given)
            tokenizer.padding_side = side
            return tokenizer

        monkeypatch.setattr(inputs, "load_tokenizer", padded)
        options = ["--task", "token-classification", "--save-predictions", "--overwrite-output-dir"]
        found.append(finetune(rows, *options, model="masked", validation=rows)["validation"]["accuracy"])
    assert found[0] == found[1]


def test_a_class_may_fall_whole_into_what_is_held_out(script, finetune):
    rows = {"text": [f"text {number}" for number in range(20)], "label": ["a", "b"] * 9 + ["a", "rare"]}
    table = Dataset.from_dict(rows)
    held_out = (list(table.train_test_split(0.05, seed=seed)["test"]["label"]) for seed in range(200))
    seed = next(seed for seed, labels in enumerate(held_out) if labels == ["rare"])
    found = finetune(rows, "--seed", str(seed), "--validation-fraction", "0.05", model="masked")
    assert found["num_labels"] == 3


@pytest.mark.parametrize("model", ["causal", pytest.param("masked", marks=pytest.mark.slow)])
def test_question_answering(finetune, tmp_path, model):
    rows = {
        "question": ["what film?"] * 4,
        "context": [f"it was {text}, they said, and they said it again and again" for text in TEXTS[:4]],
        "answers": [{"text": [text], "answer_start": [7]} for text in TEXTS[:4]],
    }
    options = ["--task", "question-answering", "--max-length", "40", "--stride", "4", "--save-predictions"]
    results = finetune(rows, *options, model=model, validation=rows)
    assert results["cut_texts"] == {}
    assert {"exact_match", "f1", "loss"} <= results["validation"].keys()
    assert results["validation"]["baselines"]["most frequent answer"]["exact_match"] == 25.0
    assert AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out").config.pad_token_id is not None
    first = json.loads((tmp_path / "out" / "predictions_validation.jsonl").read_text().splitlines()[0])
    assert first["label"] == [TEXTS[0]] and first["prediction"] in rows["context"][0]


def test_a_schedule_counts_the_windows_of_contexts(finetune):
    """Four questions are one batch, and their windows several."""
    rows = {
        "question": ["what film?"] * 4,
        "context": [f"it was {text}, they said, and they said it again and again" for text in TEXTS[:4]],
        "answers": [{"text": [text], "answer_start": [7]} for text in TEXTS[:4]],
    }
    length = ["--schedule-steps", "1", "--num-train-epochs", "1", "--max-steps", "-1"]
    options = ["--task", "question-answering", "--max-length", "40", "--stride", "4", *length]
    with pytest.raises(SystemExit, match=r"--schedule-steps is 1, but the run makes [2-9] updates"):
        finetune(rows, *options, "--per-device-train-batch-size", "4", model="masked", validation=rows)


GLUE = {
    "SST-2": (
        "sst2",
        "sentence\tlabel\n" + "".join(f"{t}\t{y}\n" for t, y in zip(TEXTS, LABELS, strict=True)),
        "accuracy",
    ),
    "CoLA": (
        "cola",
        "".join(f"x\t{y}\t\t{t}\n" for t, y in zip(TEXTS, LABELS, strict=True)),
        "matthews_correlation",
    ),
    "STS-B": (
        "stsb",
        "sentence1\tsentence2\tscore\n" + "".join(f"{t}\t{t}\t{y}.5\n" for t, y in zip(TEXTS, LABELS, strict=True)),
        "spearmanr",
    ),
}


@pytest.mark.parametrize(
    "folder", [pytest.param(name, marks=pytest.mark.slow if name == "CoLA" else []) for name in sorted(GLUE)]
)
def test_glue(script, checkpoints, tmp_path, folder):
    task, content, metric = GLUE[folder]
    (tmp_path / folder).mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / folder / name).write_text(content)
    results = script.main(
        [
            *("--model", str(checkpoints / "causal"), "--glue-task", task, "--data-dir", str(tmp_path)),
            *("--output-dir", str(tmp_path / "out"), "--max-steps", "1", "--use-cpu", "--disable-tqdm", "true"),
            *("--cache-dir", str(tmp_path / "cache"), "--eval-strategy", "no", "--save-strategy", "no"),
        ]
    )
    assert metric in results["validation"]
