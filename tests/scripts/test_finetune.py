import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
    ByT5Tokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from hf_seqmix import TNNConfig, TNNForCausalLM, TNNForMaskedLM
from hf_seqmix.data import train_bpe

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "finetune.py"
TEXTS = ["a good film", "a bad film", "very good", "very bad", "good good", "bad bad", "so good", "so bad"]
LABELS = [1, 0] * 4


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("finetune", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["finetune"] = module  # the dataclasses of the script look for their module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["finetune"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Untrained models: causal with a tokenizer that has no padding token, masked with one of bytes, two of others."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    bpe = train_bpe(TEXTS * 3, 300)
    unpadded = PreTrainedTokenizerFast(
        tokenizer_object=bpe.backend_tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 64, "hidden_dropout": 0.0}
    models = {
        "causal": (TNNForCausalLM(TNNConfig(vocab_size=400, **sizes)), unpadded),
        "masked": (TNNForMaskedLM(TNNConfig(vocab_size=384, is_causal=False, **sizes)), ByT5Tokenizer()),
        "gpt2": (
            GPT2LMHeadModel(GPT2Config(vocab_size=400, n_positions=64, n_embd=16, n_layer=1, n_head=2)),
            unpadded,
        ),
        "bert": (
            BertModel(
                BertConfig(
                    vocab_size=384,
                    hidden_size=16,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    intermediate_size=16,
                    hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                )
            ),
            ByT5Tokenizer(),
        ),
    }
    for name, (model, tokenizer) in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture
def finetune(script, checkpoints, tmp_path):
    """Runs the script for two steps on rows given as a table."""

    def run(rows, *options, model="causal", steps=2, output="out", **splits):
        files = []
        for split, table in {"train": rows, **splits}.items():
            path = tmp_path / f"{split}.json"
            path.write_text(json.dumps(Dataset.from_dict(table).to_list()), encoding="utf-8")
            files += [f"--{split}-file", str(path)]
        return script.main(
            [
                *("--model", str(checkpoints / model), *files, "--output-dir", str(tmp_path / output)),
                *(
                    "--max-steps",
                    str(steps),
                    "--use-cpu",
                    "--disable-tqdm",
                    "true",
                    "--cache-dir",
                    str(tmp_path / "cache"),
                ),
                *("--per-device-train-batch-size", "4", *options),
            ]
        )

    return run


TABLE = {"text": TEXTS, "label": LABELS}


@pytest.mark.parametrize("model", ["causal", "masked", "gpt2", "bert"])
def test_sequence_classification(finetune, tmp_path, model, capsys):
    results = finetune(TABLE, "--baseline", "bag-of-words", "--save-predictions", model=model, validation=TABLE)
    assert results["problem_type"] == "single_label_classification"
    assert 0 <= results["validation"]["accuracy"] <= 1 and "f1" in results["validation"]
    assert results["validation"]["baselines"]["majority class"] == {"accuracy": 0.5, "f1": pytest.approx(2 / 3)}
    assert results["validation"]["baselines"]["bag of words"]["accuracy"] == 1.0
    table = capsys.readouterr().out
    assert f"| validation | {model}" in table and "| validation | bag of words" in table

    saved = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert saved["validation"] == results["validation"] and saved["environment"]["versions"]
    assert (tmp_path / "out" / "loss.png").stat().st_size > 1000

    reloaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert reloaded.config.id2label == {0: "0", 1: "1"} and reloaded.config.pad_token_id == tokenizer.pad_token_id
    lines = (tmp_path / "out" / "predictions_validation.jsonl").read_text().splitlines()
    for text, label, line in zip(TEXTS, LABELS, lines, strict=True):
        logits = reloaded(**tokenizer(text, return_tensors="pt")).logits[0]
        assert json.loads(line) == {"prediction": str(logits.argmax().item()), "label": str(label)}


def test_it_learns(finetune):
    results = finetune(TABLE, "--learning-rate", "1e-2", "--warmup-steps", "0", steps=60, validation=TABLE)
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


@pytest.mark.parametrize("model", ["causal", "masked"])
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


@pytest.mark.parametrize("model", ["causal", "masked"])
def test_question_answering(finetune, tmp_path, model):
    rows = {
        "question": ["what film?"] * 4,
        "context": [f"it was {text}, they said, and they said it again and again" for text in TEXTS[:4]],
        "answers": [{"text": [text], "answer_start": [7]} for text in TEXTS[:4]],
    }
    options = ["--task", "question-answering", "--max-length", "40", "--stride", "4", "--save-predictions"]
    results = finetune(rows, *options, model=model, validation=rows)
    assert {"exact_match", "f1", "loss"} <= results["validation"].keys()
    assert results["validation"]["baselines"]["most frequent answer"]["exact_match"] == 25.0
    assert AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out").config.pad_token_id is not None
    first = json.loads((tmp_path / "out" / "predictions_validation.jsonl").read_text().splitlines()[0])
    assert first["label"] == [TEXTS[0]] and first["prediction"] in rows["context"][0]


def test_validation_data_is_held_out_where_there_is_none(finetune):
    rows = {"text": TEXTS * 3, "label": LABELS * 3}
    results = finetune(rows, "--validation-fraction", "0.25", "--max-train-samples", "10")
    assert (results["train"]["examples"], results["validation"]["examples"]) == (10, 6)


def test_early_stopping_keeps_the_best_model(finetune, tmp_path):
    steps = ["--eval-strategy", "steps", "--eval-steps", "1", "--save-strategy", "steps", "--save-steps", "1"]
    results = finetune(
        TABLE, *steps, "--early-stopping-patience", "2", "--learning-rate", "0", steps=50, validation=TABLE
    )
    assert results["num_updates"] == 3
    assert results["best_checkpoint"].endswith("checkpoint-1")


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


def test_folder_is_not_overwritten_by_accident(finetune, tmp_path):
    (tmp_path / "out" / "checkpoint-9").mkdir(parents=True)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit, match=r"not empty.*--resume.*--overwrite-output-dir"):
        finetune(TABLE, validation=TABLE)
    finetune(TABLE, "--overwrite-output-dir", validation=TABLE)
    assert not (tmp_path / "out" / "checkpoint-9").exists()
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


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


@pytest.mark.parametrize("folder", sorted(GLUE))
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


@pytest.mark.parametrize(
    "options, message",
    [
        (["--text-columns", "words"], "training data has no column 'words'; it has 'text', 'label'"),
        (["--label-column", "y"], "no column 'y'"),
        (["--metrics", "bleu"], "no metric 'bleu'"),
        (["--task", "token-classification"], "no column 'tokens', 'tags'"),
        (["--task", "question-answering"], "no column 'question', 'context', 'answers'"),
        (["--task", "token-classification", "--baseline", "bag-of-words"], "is for sequence classification"),
        (["--glue-task", "sst2"], "one of --glue-task, --dataset and --train-file"),
        (["--data-dir", "x"], "--data-dir belongs to --glue-task"),
        (["--validation-fraction", "1"], "between 0 and 1"),
        (["--max-train-samples", "0"], "--max-train-samples must be positive"),
        (["--early-stopping-patience", "0"], "must be positive"),
        (["--early-stopping-patience", "1", "--save-strategy", "no"], "must agree"),
        (["--tokenizer", "no/such"], "no/such"),
    ],
)
def test_bad_arguments(finetune, options, message):
    with pytest.raises(SystemExit, match=message):
        finetune(TABLE, *options, validation=TABLE)


def test_bad_data(finetune, script, checkpoints, tmp_path):
    with pytest.raises(SystemExit, match="validation data has no labels"):
        finetune(TABLE, validation={"text": TEXTS})
    with pytest.raises(SystemExit, match="no label in column 'label', the first is row 1"):
        finetune({"text": TEXTS[:3], "label": [1, None, 0]}, validation=TABLE, output="other")
    with pytest.raises(SystemExit, match="which the training data has not"):
        finetune(TABLE, validation={"text": TEXTS[:1], "label": [2]}, output="third")
    for content, message in ((b"", "empty"), (b"text,label\n\xff,1\n", "not UTF-8"), (None, "There is no file")):
        path = tmp_path / "data.csv"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(SystemExit, match=message):
            script.main(
                [
                    "--model",
                    str(checkpoints / "causal"),
                    "--train-file",
                    str(path),
                    "--output-dir",
                    str(tmp_path / "o"),
                ]
            )
    with pytest.raises(SystemExit, match="missing"):
        finetune(TABLE, model="missing", output="fourth", validation=TABLE)


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
