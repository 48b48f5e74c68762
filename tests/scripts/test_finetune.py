import importlib
import io
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
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
from hf_seqmix.data import build_tokenizer, train_bpe
from hf_seqmix.training import parse_overrides
from tests.markers import needs_no_torchvision

RECIPES = Path(__file__).resolve().parents[2] / "scripts" / "recipes" / "lra"
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "finetune.py"
TEXTS = ["a good film", "a bad film", "very good", "very bad", "good good", "bad bad", "so good", "so bad"]
LABELS = [1, 0] * 4


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        yield importlib.import_module("finetune")


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


@pytest.mark.parametrize("model", ["causal", "masked", pytest.param("gpt2", marks=pytest.mark.slow), "bert"])
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
    for text, label, line in zip(TEXTS, LABELS, lines, strict=True):
        logits = reloaded(**tokenizer(text, return_tensors="pt")).logits[0]
        assert json.loads(line) == {"prediction": str(logits.argmax().item()), "label": str(label)}


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


@pytest.mark.parametrize("model", ["causal", pytest.param("bert", marks=pytest.mark.slow)])
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
    for content, message in ((b"", "empty"), (b"text,label\n\xff,1\n", "not UTF-8"), (None, "there is no file")):
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


FAMILIES = ("tnn", "ski_tnn", "fd_tnn")

# Backbones of the published TNNs, in millions: projections, encoders, gated linear units and batch norms.
PUBLISHED = {
    "image": 3.093,
    "text": 0.622,
    "listops": 0.424,
    "pathfinder": 0.459,
    "path-x": 0.459,
    "retrieval": 0.066,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_lra_recipe_is_read_and_its_model_built(script, recipe, family, tmp_path):
    data = [] if "dataset:" in recipe.read_text(encoding="utf-8") else ["--train-file", "a.tsv"]
    arguments = script.parse_arguments(
        ["--recipe", str(recipe), "--family", family, *data, "--output-dir", str(tmp_path), "--use-cpu"]
    )
    training, run = arguments.training, arguments.run
    assert (training.seed, run.schedule_steps, training.lr_scheduler_type) == (2222, 50_000, "cosine")
    tokenizer = None if arguments.reads_images else build_tokenizer(arguments.model.tokenizer)
    with torch.device("meta"):
        model = script.load_model(arguments, {"num_labels": 10}, tokenizer)
    config = model.config
    assert (config.model_type, config.is_causal, config.norm_type) == (family, False, "batch")
    assert config.max_position_embeddings == (arguments.data.max_length or config.image_size**2)
    assert (config.embedding_scale, model.num_labels) == (1.0, 10)
    if family == "tnn":
        parameters = model.model.named_parameters()
        backbone = sum(weight.numel() for name, weight in parameters if not name.startswith("embed_"))
        assert round(backbone / 1e6, 3) == PUBLISHED[recipe.stem]
        assert (config.kernel_max_lag is None) == arguments.reads_images
    else:
        assert training.max_steps == 50_000 and not hasattr(
            config, "rpe_norm_type" if family == "ski_tnn" else "decay"
        )


def test_families_of_lra_differ_in_their_mixers_and_batches_alone(script, tmp_path):
    def settings(family):
        recipe = ["--recipe", str(RECIPES / "text.yaml"), "--family", family, "--output-dir", str(tmp_path)]
        arguments = script.parse_arguments(recipe)
        training = {f"training.{name}": value for name, value in arguments.training.to_dict().items()}
        return {
            **parse_overrides(arguments.model.config_overrides),
            **training,
            **vars(arguments.run),
            **vars(arguments.data),
        }

    tnn, ski, fd = (settings(family) for family in FAMILIES)
    shared = tnn.keys() & ski.keys() & fd.keys()
    differing = {name for name in shared if not tnn[name] == ski[name] == fd[name]}
    assert differing == {
        f"training.{name}" for name in ("per_device_train_batch_size", "max_steps", "num_train_epochs")
    }
    assert all(ski[name] == fd[name] for name in shared)
    assert (tnn["training.per_device_train_batch_size"], tnn["training.num_train_epochs"]) == (32, 32)
    assert {"hidden_size", "norm_type", "max_length", "schedule_steps"} <= shared


def test_a_shorter_run_has_a_schedule_of_its_own(script, tmp_path):
    recipe = ["--recipe", str(RECIPES / "image.yaml"), "--output-dir", str(tmp_path), "--train-file", "a.parquet"]
    for family in FAMILIES:
        arguments = script.parse_arguments([*recipe, "--family", family, "--max-steps", "7"])
        training = arguments.training
        assert (training.max_steps, arguments.run.schedule_steps, training.get_warmup_steps(100)) == (7, None, 10)
        assert arguments.data.dataset is None


def images(path, number, size=(9, 7)):
    """Pictures as parquet files of the Hub have them: dark ones of class 0, bright ones of class 1, in color."""
    rows = []
    for index in range(number):
        buffer = io.BytesIO()
        level = 40 + 170 * (index % 2)
        Image.new("RGB", size, (level, level, max(level - 30, 0))).save(buffer, "PNG")
        rows.append({"image": {"bytes": buffer.getvalue()}, "label": index % 2})
    Dataset.from_list(rows).to_parquet(path)
    return str(path)


def from_scratch(script, tmp_path, recipe, family, files, *options):
    """A recipe at a tiny size on the CPU."""
    small = ["hidden_size=8", "intermediate_size=8", "num_hidden_layers=1"]
    return script.main(
        [
            *("--recipe", str(RECIPES / f"{recipe}.yaml"), "--family", family, "--config-overrides", *small),
            *("--output-dir", str(tmp_path / "out"), "--use-cpu", "--disable-tqdm", "true", *files),
            *("--cache-dir", str(tmp_path / "cache"), "--per-device-train-batch-size", "4", *options),
        ]
    )


def table(path, rows):
    path.write_text("\n".join("\t".join(map(str, row)) for row in rows) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("family", [pytest.param("tnn", marks=pytest.mark.slow), "ski_tnn"])
def test_text_from_scratch(script, tmp_path, family):
    path = table(tmp_path / "reviews.tsv", [("text", "label"), *zip(TEXTS * 2, LABELS * 2, strict=True)])
    files = ["--train-file", path, "--validation-file", path]
    fast = ["--max-steps", "30", "--warmup-steps", "2", "--learning-rate", "1e-2", "--logging-steps", "1"]
    results = from_scratch(script, tmp_path, "text", family, files, *fast, "--max-length", "80")
    assert results["num_updates"] == 30 and results["model"] == family
    losses = [loss for _, loss in results["train_loss_curve"]]
    assert len(losses) == 30 and sum(losses[-4:]) < sum(losses[:4])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert (model.config.vocab_size, model.config.max_position_embeddings) == (384, 80)
    assert isinstance(AutoTokenizer.from_pretrained(tmp_path / "out"), ByT5Tokenizer)


def test_pairs_from_scratch_are_two_segments(script, tmp_path):
    """A pair's logits are those of its texts, each encoded alone, whatever pads them in a batch."""
    rows = [(i % 2, 0, 0, TEXTS[i], TEXTS[(i + i % 2) % 8]) for i in range(8)]
    path = table(tmp_path / "pairs.tsv", rows)
    files = ["--train-file", path, "--validation-file", path]
    results = from_scratch(
        script,
        tmp_path,
        "retrieval",
        "fd_tnn",
        files,
        *("--max-steps", "2", "--max-length", "64", "--save-predictions"),
    )
    assert results["validation"]["baselines"]["majority class"]["accuracy"] == 0.5
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert model.config.num_segments == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    lines = (tmp_path / "out" / "predictions_validation.jsonl").read_text().splitlines()
    for (label, _, _, first, second), line in zip(rows, lines, strict=True):
        pair = tokenizer([first, second], padding=True, return_tensors="pt")
        logits = model(**{name: values.unsqueeze(0) for name, values in pair.items()}).logits[0]
        assert json.loads(line) == {"prediction": str(logits.argmax().item()), "label": str(label)}
    with pytest.raises(SystemExit, match="reads pairs, so give two text columns"):
        from_scratch(script, tmp_path / "one", "retrieval", "tnn", files, "--text-columns", "3")


@needs_no_torchvision
@pytest.mark.parametrize(
    "family", [FAMILIES[0], *(pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES[1:])]
)
def test_images_from_scratch(script, tmp_path, family):
    train, test = images(tmp_path / "train.parquet", 12), images(tmp_path / "test.parquet", 4, size=(32, 20))
    files = ["--train-file", train, "--validation-file", test, "--test-file", test]
    fast = ["--max-steps", "12", "--learning-rate", "1e-2", "--logging-steps", "1", "--save-predictions"]
    size = ["--config-overrides", "image_size=[6, 4]"]
    points = ["num_inducing_points=3"] if family == "ski_tnn" else []
    results = from_scratch(script, tmp_path, "image", family, files, *fast, *size, *points)
    assert results["task"] == "image-classification" and results["test"]["examples"] == 4
    losses = [loss for _, loss in results["train_loss_curve"]]
    assert len(losses) == 12 and sum(losses[-3:]) < sum(losses[:3])
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "out").eval()
    processor = AutoImageProcessor.from_pretrained(tmp_path / "out")
    pictures = [row["image"] for row in datasets.Dataset.from_parquet(test).cast_column("image", datasets.Image())]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    assert pixels.shape == (4, 1, 6, 4)
    gray = (0.299 * 40 + 0.587 * 40 + 0.114 * 10) / 255
    torch.testing.assert_close(pixels[0].mean().item(), (gray - 0.4808) / 0.2392, rtol=0, atol=0.02)
    labels = model(pixel_values=pixels).logits.argmax(dim=-1).tolist()
    lines = (tmp_path / "out" / "predictions_test.jsonl").read_text().splitlines()
    assert [json.loads(line)["prediction"] for line in lines] == [str(label) for label in labels]
    # A trained classifier goes on from there, with its own processor.
    options = ["--task", "image-classification", "--train-file", train, "--max-steps", "1", "--use-cpu"]
    again = script.main(
        [
            *("--model", str(tmp_path / "out"), *options),
            "--output-dir",
            str(tmp_path / "again"),
            "--disable-tqdm",
            "true",
        ]
    )
    assert again["num_parameters"] == results["num_parameters"]
    kept = AutoImageProcessor.from_pretrained(tmp_path / "again")
    assert (list(kept.image_mean), kept.num_channels) == ([0.4808], 1)


@pytest.mark.parametrize("task", ["token-classification", "question-answering"])
def test_other_tasks_from_scratch(script, tmp_path, task):
    """A BPE is made of the words, or of the questions and contexts."""
    if task == "token-classification":
        rows = [
            {"tokens": text.split(), "tags": ["a" if len(word) > 3 else "b" for word in text.split()]}
            for text in TEXTS
        ]
    else:
        rows = [
            {"question": "what?", "context": f"it was {text}", "answers": {"text": [text], "answer_start": [7]}}
            for text in TEXTS
        ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    results = script.main(
        [
            *("--task", task, "--model-type", "tnn", "--tokenizer", "bpe:265", "--train-file", str(path)),
            *("--validation-file", str(path), "--max-length", "48", "--stride", "4", "--max-steps", "1", "--use-cpu"),
            *("--config-overrides", "hidden_size=8", "num_hidden_layers=1", "--cache-dir", str(tmp_path / "cache")),
            *("--output-dir", str(tmp_path / "out"), "--disable-tqdm", "true"),
        ]
    )
    assert results["validation"]["examples"] == len(TEXTS)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "it was so good"
    assert len(tokenizer) == 265 and len(tokenizer(text)["input_ids"]) < len(text)


def test_a_bpe_made_for_the_run_is_read_again_when_it_is_resumed(script, tmp_path):
    path = table(tmp_path / "reviews.tsv", [("text", "label"), *zip(TEXTS, LABELS, strict=True)])
    options = [
        *("--model-type", "tnn", "--tokenizer", "bpe:260", "--train-file", path, "--validation-file", path),
        *("--config-overrides", "hidden_size=8", "num_hidden_layers=1", "hidden_dropout=0"),
        *("--output-dir", str(tmp_path / "out"), "--disable-tqdm", "true", "--save-strategy", "steps", "--use-cpu"),
        *("--save-steps", "1", "--max-steps", "2", "--save-total-limit", "3", "--cache-dir", str(tmp_path / "cache")),
    ]
    whole = script.main(options)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").vocab_size == 260
    shutil.rmtree(tmp_path / "out" / "checkpoint-2")
    assert script.main([*options, "--resume"])["validation"] == whole["validation"]


def test_the_schedule_and_the_decay_of_all_parameters(script, tmp_path):
    path = table(tmp_path / "reviews.tsv", [("text", "label"), *zip(TEXTS, LABELS, strict=True)])
    options = [
        *("--model-type", "tnn", "--tokenizer", "byte", "--train-file", path, "--validation-file", path),
        *("--config-overrides", "hidden_size=8", "num_hidden_layers=1", "--use-cpu", "--weight-decay", "0.1"),
        *("--lr-scheduler-type", "cosine", "--warmup-steps", "10", "--cache-dir", str(tmp_path / "cache")),
        *("--per-device-train-batch-size", "4"),
    ]

    def trainer(name, *more):
        return script.prepare(script.parse_arguments([*options, *more, "--output-dir", str(tmp_path / name)])).trainer

    long = trainer("long", "--max-steps", "30", "--schedule-steps", "110", "--weight-decay-on-all-parameters")
    long.create_optimizer_and_scheduler(30)
    rate = long.lr_scheduler.lr_lambdas[0]
    assert [rate(step) for step in (5, 10, 60, 110)] == pytest.approx([0.5, 1, 0.5, 0], abs=1e-6)
    assert all(group["weight_decay"] == 0.1 for group in long.optimizer.param_groups if group["params"])
    with pytest.raises(ValueError, match=r"--schedule-steps is 5, but the run makes 6 updates"):
        trainer("short", "--num-train-epochs", "3", "--schedule-steps", "5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --model"),
        (["--model", "a", "--model-type", "tnn"], "give either --model"),
        (["--model", "a", "--config-overrides", "hidden_size=8"], "belong to --model-type"),
        (["--model-type", "tnn", "--tokenizer", "byte", "--random-init"], "takes the configuration of a --model"),
        (["--model-type", "tnn"], "give --tokenizer"),
        (["--model-type", "tnn", "--task", "image-classification", "--tokenizer", "byte"], "are for text"),
        (["--model", "a", "--image-mean", "0.5"], "belong to --task image-classification"),
        (["--model", "a", "--schedule-steps", "0"], "must be positive"),
        (["--model", "a", "--family", "tnn"], "--family chooses from a recipe"),
        (["--recipe", str(RECIPES / "text.yaml")], "choose one of tnn, ski_tnn, fd_tnn"),
        (["--recipe", str(RECIPES / "text.yaml"), "--family", "lstm"], "no family 'lstm'"),
        (["--model-type", "nothing", "--tokenizer", "byte"], "no model type 'nothing'"),
        (["--model-type", "tnn", "--tokenizer", "byte", "--config-overrides", "width=1"], "no field 'width'"),
        (["--model-type", "tnn", "--tokenizer", "byte", "--config-overrides", "decay=2"], "decay is 2"),
        (["--model-type", "tnn", "--task", "image-classification"], "no column 'image'"),
    ],
)
def test_bad_arguments_from_scratch(script, tmp_path, options, message):
    path = table(tmp_path / "reviews.tsv", [("text", "label"), *zip(TEXTS, LABELS, strict=True)])
    cache = ["--cache-dir", str(tmp_path / "cache"), "--output-dir", str(tmp_path / "out"), "--use-cpu"]
    with pytest.raises(SystemExit, match=message):
        script.main([*options, "--train-file", path, *cache])


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
