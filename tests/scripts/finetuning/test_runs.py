"""Runs of finetune.py: what is held out, kept, resumed and overwritten, and several processes."""

import json
import os
import shutil
import subprocess
import sys

import datasets
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.data import train_bpe
from tests.scripts.finetuning.inputs import LABELS, SCRIPT, TABLE, TEXTS


def test_validation_data_is_held_out_where_there_is_none(finetune):
    rows = {"text": TEXTS * 3, "label": LABELS * 3}
    results = finetune(rows, "--validation-fraction", "0.25", "--max-train-samples", "10")
    assert (results["train"]["examples"], results["validation"]["examples"]) == (10, 6)


def test_predictions_name_the_rows_of_the_file(finetune, tmp_path):
    """The label of a row is its number, so that a line says both."""
    rows = {"text": TEXTS * 3, "label": [float(row) for row in range(24)]}
    drawn = ["--validation-fraction", "0.5", "--max-eval-samples", "6", "--save-predictions"]
    finetune(rows, *drawn, steps=1, test=rows)
    for split in ("validation", "test"):
        lines = (tmp_path / "out" / f"predictions_{split}.jsonl").read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines]
        assert len(found) == 6 and [line["row"] for line in found] == [line["label"] for line in found]


def test_labels_are_those_of_all_training_data(finetune):
    rows = {"text": TEXTS, "label": ["a", "b", "c", "d"] * 2}
    results = finetune(rows, "--max-train-samples", "2", validation=rows)
    assert (results["train"]["examples"], results["num_labels"]) == (2, 4)


def test_early_stopping_keeps_the_best_model(finetune, tmp_path):
    steps = ["--eval-strategy", "steps", "--eval-steps", "1", "--save-strategy", "steps", "--save-steps", "1"]
    results = finetune(
        TABLE, *steps, "--early-stopping-patience", "2", "--learning-rate", "0", steps=50, validation=TABLE
    )
    assert results["num_updates"] == 3
    assert results["best_checkpoint"].endswith("checkpoint-1")


@pytest.mark.parametrize(
    ("labels", "more"),
    [
        pytest.param(
            [1, 0] * 4, ["--metric-for-best-model", "loss", "--learning-rate", "1e-4"], marks=pytest.mark.slow
        ),
        ([1, 0] * 4, ["--metric-for-best-model", "loss", "--learning-rate", "1e-4", "--load-best-model-at-end"]),
        ([place / 10 for place in range(8)], ["--metric-for-best-model", "mse", "--load-best-model-at-end"]),
    ],
)
def test_the_best_model_is_that_of_the_metric_asked_for(finetune, tmp_path, labels, more):
    rows = {"text": TEXTS, "label": labels}
    steps = ["--eval-strategy", "steps", "--eval-steps", "1", "--save-strategy", "steps", "--save-steps", "1"]
    results = finetune(rows, *steps, *more, "--early-stopping-patience", "9", steps=6, validation=rows)
    losses = {point["step"]: point["loss"] for point in results["validation_curve"]}
    best = min(losses, key=losses.get)
    assert best > 1 and results["best_checkpoint"].endswith(f"checkpoint-{best}")


def weights(folder):
    return AutoModelForSequenceClassification.from_pretrained(folder).state_dict()


def test_resume_goes_on_as_if_nothing_had_happened(finetune, tmp_path):
    save = ["--save-strategy", "steps", "--save-steps", "2", "--save-total-limit", "5", "--learning-rate", "1e-2"]
    finetune(TABLE, *save, steps=4, validation=TABLE)
    whole = weights(tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoint-4")
    results = finetune(TABLE, *save, "--resume", steps=4, validation=TABLE)
    assert results["num_updates"] == 4
    for name, value in weights(tmp_path / "out").items():
        torch.testing.assert_close(value, whole[name], rtol=0, atol=0)


def test_a_classifier_gets_a_head_for_other_labels(finetune, tmp_path):
    finetune(TABLE, validation=TABLE)
    three = {"text": TEXTS[:3], "label": [0, 1, 2]}
    with pytest.raises(SystemExit, match="--new-head draws a head of other labels anew"):
        finetune(three, model=tmp_path / "out", validation=three, output="other")
    results = finetune(three, "--new-head", model=tmp_path / "out", validation=three, output="other")
    assert results["num_labels"] == 3 and results["num_updates"] == 2


def test_classes_keep_their_rows_of_a_head(finetune, tmp_path):
    """The labels of the second data set are declared in another order, or are others."""
    names = ["pos", "neg", "meh"]
    rows = {"text": TEXTS[:6], "label": [names[place % 3] for place in range(6)]}
    declared = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    datasets.Dataset.from_dict(rows).cast(declared).to_parquet(tmp_path / "declared.parquet")
    files = [
        word for split in ("train", "validation") for word in (f"--{split}-file", str(tmp_path / "declared.parquet"))
    ]
    learn = ["--learning-rate", "1e-2", "--eval-strategy", "no", "--save-strategy", "no"]  # not after each epoch
    first = finetune(rows, *files, *learn, validation=rows, steps=40)
    assert first["validation"]["accuracy"] == 1
    still = ["--learning-rate", "0"]
    again = finetune(rows, *still, model=tmp_path / "out", validation=rows, output="again")
    assert again["validation"]["accuracy"] == 1
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "again").config.id2label[0] == "pos"

    others = {"text": rows["text"], "label": [f"x{name}" for name in rows["label"]]}
    with pytest.raises(SystemExit, match=r"tells pos, neg, meh apart.*xmeh, xneg, xpos\. Draw a head.*--new-head"):
        finetune(others, *still, model=tmp_path / "out", validation=others, output="others")
    finetune(others, *still, "--new-head", model=tmp_path / "out", validation=others, output="others")
    before, after = (weights(tmp_path / folder) for folder in ("out", "others"))
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed and not any(name.startswith("model.") for name in changed)
    finetune(rows, *still, "--new-head", model=tmp_path / "out", validation=rows, output="same")
    assert not torch.equal(
        weights(tmp_path / "same")["classifier.out_proj.weight"], before["classifier.out_proj.weight"]
    )
    swapped = {"text": rows["text"], "label": [{"pos": 2, "neg": 0, "meh": 1}[name] for name in rows["label"]]}
    declared = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["1", "0", "2"])}
    )
    table = {"text": rows["text"], "label": [["1", "0", "2"].index(str(label)) for label in swapped["label"]]}
    datasets.Dataset.from_dict(table, features=declared).to_parquet(tmp_path / "declared.parquet")
    finetune(swapped, *files, *learn, validation=swapped, steps=40, output="numbered")
    found = finetune(swapped, *still, model=tmp_path / "numbered", validation=swapped, output="numbered-again")
    assert found["validation"]["accuracy"] == 1  # numbers that are names of the head, in its order
    numbers = {"text": rows["text"], "label": [names.index(name) for name in rows["label"]]}
    by_number = finetune(numbers, *still, model=tmp_path / "out", validation=numbers, output="numbers")
    assert by_number["validation"]["accuracy"] == 1


def test_folder_is_not_overwritten_by_accident(finetune, tmp_path):
    (tmp_path / "out" / "checkpoint-9").mkdir(parents=True)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit, match=r"not empty.*--resume.*--overwrite-output-dir"):
        finetune(TABLE, validation=TABLE)
    finetune(TABLE, "--overwrite-output-dir", validation=TABLE)
    assert not (tmp_path / "out" / "checkpoint-9").exists()
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


@pytest.mark.slow  # by default other tests accumulate: those of heads, and of the Trainer
@pytest.mark.parametrize("model", ["causal", "bert"])
def test_gradient_accumulation_is_the_same_as_a_larger_batch(finetune, tmp_path, model):
    """One step of plain gradient descent; heads of transformers would take one four times too long."""
    step = ["--optim", "sgd", "--learning-rate", "0.1", "--warmup-steps", "0", "--max-grad-norm", "0", "--seed", "3"]
    finetune(TABLE, *step, model=model, steps=1, output="large", validation=TABLE)
    small = ["--per-device-train-batch-size", "1", "--gradient-accumulation-steps", "4"]
    finetune(TABLE, *step, *small, model=model, steps=1, output="small", validation=TABLE)
    small_steps = weights(tmp_path / "small")
    for name, value in weights(tmp_path / "large").items():
        torch.testing.assert_close(small_steps[name], value, rtol=1e-4, atol=1e-6)


def test_random_init_takes_the_configuration_only(finetune, checkpoints, tmp_path):
    finetune(TABLE, "--random-init", "--learning-rate", "0", validation=TABLE)
    original = TNNForCausalLM.from_pretrained(checkpoints / "causal").model.embed_tokens.weight
    drawn = weights(tmp_path / "out")["model.embed_tokens.weight"]
    assert drawn.shape == original.shape and not torch.equal(drawn, original)


def test_tokenizer_without_padding_or_end(finetune, checkpoints, tmp_path):
    """A new token is added, and the embedding grows with it."""
    tokenizer = train_bpe(TEXTS * 3, 300)
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    model = TNNForCausalLM(TNNConfig(vocab_size=len(bare), hidden_size=16, num_hidden_layers=1))
    model.save_pretrained(checkpoints / "bare")
    bare.save_pretrained(checkpoints / "bare")
    finetune(TABLE, model="bare", validation=TABLE)
    grown = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert grown.config.pad_token_id == len(bare)
    assert grown.get_input_embeddings().num_embeddings == len(bare) + 1


@pytest.mark.parametrize(("given", "warned"), [("bert", False), ("bpe:300", True)])
def test_a_tokenizer_of_other_tokens_is_warned_of(finetune, checkpoints, caplog, given, warned):
    name = str(checkpoints / given) if given == "bert" else given
    finetune(TABLE, "--tokenizer", name, model="masked")
    assert ("whose embeddings then mean something else" in caplog.text) == warned


@pytest.mark.slow
def test_two_processes(checkpoints, tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "".join(f"{t},{y}\n" for t, y in zip(TEXTS, LABELS, strict=True)))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)),
        *("--model", str(checkpoints / "causal"), "--train-file", str(path), "--validation-file", str(path)),
        *("--output-dir", str(tmp_path / "out"), "--max-steps", "2", "--use-cpu", "--baseline", "bag-of-words"),
        *("--cache-dir", str(tmp_path / "cache"), "--save-predictions"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["num_processes"] == 2
    assert len((tmp_path / "out" / "predictions_validation.jsonl").read_text().splitlines()) == len(TEXTS)
    assert run.stdout.count("majority class") == 1


def test_an_interrupted_run_says_how_it_goes_on(script, tmp_path, monkeypatch, caplog):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "prepare", interrupted)
    with pytest.raises(SystemExit) as error:
        script.main(["--model", "any", "--train-file", "train.csv", "--output-dir", str(tmp_path / "run")])
    assert error.value.code == 130 and "--resume continues" in caplog.messages[-1]
