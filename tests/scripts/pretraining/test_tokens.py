"""pretrain.py on rows that hold tokens already."""

import importlib
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from hf_seqmix.data import associative_recall

MODEL = ["--model-type", "tnn", "--config-overrides", "hidden_size=16", "num_hidden_layers=1", "rpe_hidden_size=8"]
SHORT = ["--max-steps", "3", "--per-device-train-batch-size", "4", "--use-cpu", "--disable-tqdm", "true"]


def rows(causal: bool = True, **changes: Any) -> datasets.DatasetDict:
    counts = {"train": 40, "validation": 12}
    return associative_recall(counts, **{"num_pairs": 2, "vocab_size": 20, "length": 12, "causal": causal, **changes})


def command(output: Path, *more: str) -> list[str]:
    return [*MODEL, "vocab_size=20", *SHORT, "--tokenized", "--block-size", "12", "--output-dir", str(output), *more]


@pytest.mark.parametrize(
    ("kind", "causal"),
    [
        ("parquet", False),
        ("jsonl", True),
        ("folder", False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("parquet", True), ("jsonl", False), ("folder", True))
        ),
    ],
)
def test_rows_are_trained_and_scored_by_their_own_labels(
    pretrain: Any, tmp_path: Path, causal: bool, kind: str
) -> None:
    splits = rows(causal)
    if kind == "folder":
        splits.save_to_disk(tmp_path / "rows")
        data = ["--dataset", str(tmp_path / "rows")]
    else:
        for name, split in splits.items():
            write = split.to_parquet if kind == "parquet" else split.to_json
            write(tmp_path / f"{name}.{kind}")
        data = [
            "--train-file",
            str(tmp_path / f"train.{kind}"),
            "--validation-file",
            str(tmp_path / f"validation.{kind}"),
        ]
    objective = [] if causal else ["--objective", "masked"]
    found = pretrain.main(command(tmp_path / "run", *data, *objective))
    auto = AutoModelForCausalLM if causal else AutoModelForMaskedLM
    model = auto.from_pretrained(tmp_path / "run").eval()
    assert model.config.vocab_size == 20 and model.config.max_position_embeddings == 12
    held_out = splits["validation"].with_format("torch")
    loss = model(input_ids=held_out["input_ids"][:], labels=held_out["labels"][:]).loss
    assert found["evaluation"]["token_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert found["evaluation"]["num_tokens"] == 12 * 2
    assert not (tmp_path / "run" / "tokenizer_config.json").exists()


def test_every_token_is_predicted_where_rows_have_no_labels(pretrain: Any, tmp_path: Path) -> None:
    """And the last rows are held out where there is no validation file."""
    rows()["train"].remove_columns("labels").to_parquet(tmp_path / "train.parquet")
    options = ["--train-file", str(tmp_path / "train.parquet"), "--validation-fraction", "0.25"]
    found = pretrain.main(command(tmp_path / "run", *options, "--max-eval-blocks", "7"))
    assert found["evaluation"]["num_tokens"] == 7 * 11
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run").eval()
    last = torch.tensor(rows()["train"]["input_ids"][30:37])
    assert found["evaluation"]["token_loss"] == pytest.approx(model(last, labels=last).loss.item(), rel=1e-5)


def test_a_folder_is_one_name(pretrain: Any, tmp_path: Path) -> None:
    """And no pattern, which the folder of other rows fits."""
    for name, split in (("rows1", rows(causal=False)), ("rows[1]", rows())):
        (tmp_path / name).mkdir()
        for part, table in split.items():
            table.to_parquet(tmp_path / name / f"{part}.parquet")
    arguments = pretrain.parse_arguments(command(tmp_path / "run", "--dataset", str(tmp_path / "rows[1]")))
    train, validation = importlib.import_module("pretraining.tokens").load_blocks(arguments)
    assert train["input_ids"][:] == rows()["train"]["input_ids"][:] and len(validation) == 12


def test_a_killed_run_goes_on(pretrain: Any, tmp_path: Path) -> None:
    rows().save_to_disk(tmp_path / "rows")
    data = ["--dataset", str(tmp_path / "rows"), "--logging-steps", "1", "--save-steps", "2"]
    whole = pretrain.main(command(tmp_path / "run", *data))
    for path in (tmp_path / "run").glob("checkpoint-3"):
        path.rename(tmp_path / "gone")
    resumed = pretrain.main(command(tmp_path / "run", *data, "--resume"))
    assert resumed["train_loss_curve"] == whole["train_loss_curve"]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, ["--block-size", "11"], "row 0 of the train split has 12 input_ids.*which is 11"),
        ({"vocab_size": 30}, [], "tokens from 0 to 29, but vocab_size is 20"),
        ({"input_ids": [-100] + [3] * 11}, [], "tokens from -100 to"),
        ({"drop": "labels"}, ["--objective", "masked"], "masked model need the columns input_ids and labels"),
        ({"drop": "input_ids"}, [], "need the column input_ids; those of the train split have labels"),
        ({"labels": [-100] * 12}, [], "no token of the training data is predicted"),
        ({"labels": [5] + [-100] * 11}, [], "no token of the training data is predicted"),
        ({}, ["--streaming", "--max-steps", "1"], "leave out --streaming"),
        ({}, ["--respect-documents"], "leave out --respect-documents"),
        ({}, ["--validation-fraction", "0"], r"--validation-fraction must lie between 0 and 1; given 0\.0"),
        ({}, ["--validation-file", "no.parquet"], "there is no file no.parquet"),
        ({}, ["--validation-file", "some.txt"], "Parquet or JSON"),
    ],
)
def test_wrong_rows_end_with_a_message(
    pretrain: Any, tmp_path: Path, change: dict[str, Any], options: list[str], message: str
) -> None:
    split = rows(vocab_size=change.get("vocab_size", 20))["train"]
    split = split.remove_columns([name for name in [change.get("drop")] if name])
    given = {name: change[name] for name in ("input_ids", "labels") if name in change}
    split = split.map(lambda _: given) if given else split
    split.to_parquet(tmp_path / "train.parquet")
    with pytest.raises(SystemExit, match=f"(?s){message}"):
        pretrain.main(command(tmp_path / "run", "--train-file", str(tmp_path / "train.parquet"), *options))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.jsonl", '{"input_ids": [1, 2]}\n{"input_ids": [1,', r"cut\.jsonl could not be read as json"),
        ("blank.jsonl", "\n", r"blank\.jsonl could not be read as json"),
        ("empty.jsonl", "", r"empty\.jsonl is empty"),
        ("text.parquet", "no table", r"text\.parquet could not be read as parquet"),
    ],
)
def test_a_damaged_file_is_named(pretrain: Any, tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit, match=message):
        pretrain.main(command(tmp_path / "run", "--train-file", str(tmp_path / name)))


def test_a_vocabulary_must_be_said(pretrain: Any, tmp_path: Path) -> None:
    rows().save_to_disk(tmp_path / "rows")
    data = ["--tokenized", "--dataset", str(tmp_path / "rows"), "--block-size", "12"]
    options = [*SHORT, *data, "--output-dir", str(tmp_path / "run")]
    with pytest.raises(SystemExit, match="vocab_size=NUMBER"):
        pretrain.main([*MODEL, *options])
    config = {"model_type": "tnn", "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "rpe_hidden_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = pretrain.main(["--config-file", str(tmp_path / "config.json"), *options])
    assert found["num_updates"] == 3


@pytest.mark.parametrize(
    ("column", "row", "message"),
    [
        ("labels", [-1] * 12, "tokens from -1 to"),
        ("input_ids", [2.5] * 12, "hold lists of whole numbers"),
        ("input_ids", [None, *range(11)], "1 input_ids of the train split are missing"),
        ("labels", None, "1 labels of the train split are missing"),
        ("labels", ["a"] * 12, "hold lists of whole numbers"),
    ],
)
def test_rows_that_are_no_tokens_are_refused(
    pretrain: Any, tmp_path: Path, column: str, row: list[Any] | None, message: str
) -> None:
    good = list(range(12))
    values = {"input_ids": [good, good], "labels": [good, good]}
    values[column] = [row, row if message.endswith("numbers") else good]
    datasets.Dataset.from_dict(values).to_parquet(tmp_path / "train.parquet")
    datasets.Dataset.from_dict({"input_ids": [good], "labels": [good]}).to_parquet(tmp_path / "validation.parquet")
    files = [f"--{name}-file={tmp_path / name}.parquet" for name in ("train", "validation")]
    with pytest.raises(SystemExit, match=message):
        pretrain.main(command(tmp_path / "run", *files))


def test_rows_of_validation_may_stand_in_a_file_beside_a_data_set(pretrain: Any, tmp_path: Path) -> None:
    splits = rows()
    datasets.DatasetDict({"train": splits["train"]}).save_to_disk(tmp_path / "rows")
    splits["validation"].to_parquet(tmp_path / "own.parquet")
    data = ["--dataset", str(tmp_path / "rows"), "--validation-file", str(tmp_path / "own.parquet")]
    found = pretrain.main(command(tmp_path / "run", *data))
    labels = splits["validation"].with_format("numpy")["labels"][:]
    assert found["evaluation"]["num_tokens"] == (labels[:, 1:] != -100).sum()


def test_rows_that_fill_no_batch_are_not_counted(pretrain: Any, tmp_path: Path) -> None:
    rows().save_to_disk(tmp_path / "rows")
    options = ["--dataset", str(tmp_path / "rows"), "--dataloader-drop-last", "true"]
    options += ["--per-device-train-batch-size", "16", "--max-steps", "5"]
    found = pretrain.main(command(tmp_path / "run", *options))
    assert found["num_train_tokens"] == 5 * 16 * 12  # two whole batches of 40 rows a pass


def test_a_data_set_that_is_not_there_is_said_in_a_line(pretrain: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--dataset no-such-rows is neither a folder here"):
        pretrain.main(command(tmp_path / "run", "--dataset", "no-such-rows"))


def test_pads_are_no_text(pretrain: Any, tmp_path: Path) -> None:
    split = rows()["train"]
    mask = [[1] * 9 + [0] * 3] * len(split)
    for name, columns in (("ids", ["input_ids"]), ("labels", ["input_ids", "labels"])):
        split.select_columns(columns).add_column("attention_mask", mask).to_parquet(tmp_path / f"{name}.parquet")
    for name, objective in (("ids", "causal"), ("labels", "masked")):
        given = ["--train-file", str(tmp_path / f"{name}.parquet"), "--objective", objective]
        with pytest.raises(SystemExit, match="rows of the train split have pads by their attention_mask"):
            pretrain.main(command(tmp_path / "run", *given))
    pretrain.main(command(tmp_path / "run", "--train-file", str(tmp_path / "labels.parquet")))
