"""finetune.py with random weights: texts, pairs, pictures, tokenizers made for the run, schedules."""

import io
import json
import shutil

import datasets
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ByT5Tokenizer,
)

from tests.markers import needs_no_torchvision
from tests.scripts.finetuning.inputs import FAMILIES, LABELS, TEXTS, from_scratch, table


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
    for row, ((label, _, _, first, second), line) in enumerate(zip(rows, lines, strict=True)):
        pair = tokenizer([first, second], padding=True, return_tensors="pt")
        logits = model(**{name: values.unsqueeze(0) for name, values in pair.items()}).logits[0]
        assert json.loads(line) == {"row": row, "prediction": str(logits.argmax().item()), "label": str(label)}
    with pytest.raises(SystemExit, match="reads pairs, so give two text columns"):
        from_scratch(script, tmp_path / "one", "retrieval", "tnn", files, "--text-columns", "3")


@needs_no_torchvision
def test_images_for_a_model_of_the_library(script, tmp_path):
    train = images(tmp_path / "train.parquet", 12)
    options = ["--task", "image-classification", "--train-file", train, "--validation-file", train, "--use-cpu"]
    options += ["--disable-tqdm", "true", "--save-predictions", "--max-steps", "2", "--learning-rate", "1e-2"]
    few = ["hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=16"]
    sizes = ["image_size=[6, 4]", "patch_size=2", "num_channels=1", *few]
    out = tmp_path / "out"
    script.main([*options, "--model-type", "vit", "--config-overrides", *sizes, "--output-dir", str(out)])
    model = AutoModelForImageClassification.from_pretrained(out).eval()
    assert type(model).__name__ == "ViTForImageClassification"
    pictures = [row["image"] for row in datasets.Dataset.from_parquet(train).cast_column("image", datasets.Image())]
    pixels = AutoImageProcessor.from_pretrained(out)(pictures, return_tensors="pt")["pixel_values"]
    assert pixels.shape == (12, 1, 6, 4)
    labels = [str(label) for label in model(pixel_values=pixels).logits.argmax(dim=-1).tolist()]
    lines = (out / "predictions_validation.jsonl").read_text().splitlines()
    assert [json.loads(line)["prediction"] for line in lines] == labels
    with pytest.raises(SystemExit, match="image_size of the 'resnet' configuration is None"):
        script.main([*options, "--model-type", "resnet", "--output-dir", str(tmp_path / "other")])


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


@needs_no_torchvision
def test_paths_of_images_start_from_the_folder_of_their_table(script, tmp_path, monkeypatch):
    """In the working directory lie other files of the same names, which are no images."""
    for folder in ("data", "elsewhere"):
        (tmp_path / folder / "images").mkdir(parents=True)
    for level in range(4):
        Image.new("L", (6, 4), 60 * level).save(tmp_path / "data" / "images" / f"{level}.png")
        (tmp_path / "elsewhere" / "images" / f"{level}.png").write_bytes(b"none")
    rows = [("picture", "label"), *((f"images/{level}.png", level % 2) for level in range(4))]
    path = tmp_path / "data" / "train.csv"
    path.write_text("".join(f"{image},{label}\n" for image, label in rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path / "elsewhere")
    size = ["--config-overrides", "image_size=[4, 6]", "num_channels=1", "is_causal=false", "hidden_size=8"]
    options = ["--task", "image-classification", "--image-column", "picture", "--max-steps", "1", "--use-cpu"]
    given = ["--train-file", str(path), "--validation-file", str(path), "--output-dir", str(tmp_path / "out")]
    results = script.main(["--model-type", "tnn", *size, *options, *given, "--disable-tqdm", "true"])
    assert results["train"]["examples"] == 4


def test_channels_that_an_image_has_not_are_refused_before_training(script, tmp_path):
    files = ["--train-file", images(tmp_path / "train.parquet", 8), "--max-steps", "1"]
    with pytest.raises(SystemExit, match=r"finetune\.py: an image has 3 channels; this processor makes 2"):
        from_scratch(
            script,
            tmp_path,
            "image",
            "tnn",
            files,
            "--config-overrides",
            "image_size=[6, 4]",
            "num_channels=2",
            "--image-mean",
            "0.5",
            "--image-std",
            "1",
        )


@pytest.mark.parametrize("task", ["token-classification", pytest.param("question-answering", marks=pytest.mark.slow)])
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


@pytest.mark.slow  # as that of pretrain.py by default
def test_a_run_that_goes_on_elsewhere_keeps_its_tokenizer(script, tmp_path):
    files = {
        name: table(tmp_path / f"{name}.tsv", [("text", "label"), *zip(texts, LABELS, strict=True)])
        for name, texts in (("first", TEXTS), ("second", [f"zebras quack {text}" for text in TEXTS]))
    }
    options = [
        *("--model-type", "tnn", "--tokenizer", "bpe:262", "--validation-file", files["first"], "--use-cpu"),
        *("--config-overrides", "hidden_size=8", "num_hidden_layers=1", "--disable-tqdm", "true"),
        *("--save-strategy", "steps", "--save-steps", "1", "--max-steps", "2", "--save-total-limit", "3"),
        *("--cache-dir", str(tmp_path / "cache")),
    ]
    script.main([*options, "--train-file", files["first"], "--output-dir", str(tmp_path / "first")])
    other = [*options, "--train-file", files["second"], "--output-dir", str(tmp_path / "second")]
    script.main([*other, "--resume", str(tmp_path / "first" / "checkpoint-1")])
    first, second = ((tmp_path / name / "tokenizer.json").read_text(encoding="utf-8") for name in files)
    assert first == second


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


def test_random_weights_at_the_rate_of_fine_tuning_are_warned_of(script, tmp_path, caplog):
    path = table(tmp_path / "reviews.tsv", [("text", "label"), *zip(TEXTS, LABELS, strict=True)])
    sizes = ["--config-overrides", "hidden_size=8", "num_hidden_layers=1", "--tokenizer", "byte", "--use-cpu"]
    command = ["--model-type", "tnn", *sizes, "--train-file", path, "--validation-file", path, "--max-steps", "1"]
    script.main([*command, "--output-dir", str(tmp_path / "default")])
    assert "--learning-rate is 0.0002, the default" in caplog.text
    caplog.clear()
    script.main([*command, "--learning-rate", "4e-3", "--output-dir", str(tmp_path / "given")])
    again = ["--model", str(tmp_path / "given"), "--train-file", path, "--validation-file", path, "--max-steps", "1"]
    script.main([*again, "--use-cpu", "--output-dir", str(tmp_path / "again")])
    assert "fine-tuning" not in caplog.text
