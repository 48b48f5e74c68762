"""What finetune.py refuses, and the line that it says."""

import shutil

import pytest
from datasets import ClassLabel, Dataset, DatasetDict
from PIL import Image

from hf_seqmix.data.labeled import SequenceClassification
from tests.scripts.finetuning.inputs import LABELS, RECIPES, TABLE, TEXTS, table


@pytest.mark.parametrize(
    "options, message",
    [
        (["--text-columns", "words"], r"data has no column 'words'; it has 'text', 'label'\. Give --text-columns\.$"),
        (["--label-column", "y"], r"no column 'y'.* Give --label-column\.$"),
        (["--metrics", "bleu"], "no metric 'bleu'"),
        *(
            (
                ["--metrics", "accuracy", name],
                rf"--metrics {name} does not fit the task sequence-class.*: .*{why}.*\. Its own are accuracy, f1\.$",
            )
            for name, why in {"bits_per_byte": "nll", "accuracy_by_length": "lengths", "squad": "expected"}.items()
        ),
        (["--task", "token-classification"], r"no column 'tokens', 'tags'.* Give --text-columns and --label-column\."),
        (["--task", "question-answering"], "no column 'question', 'context', 'answers'"),
        (["--task", "token-classification", "--baseline", "bag-of-words"], "is for sequence classification"),
        (["--glue-task", "sst2"], "one of --glue-task, --dataset and --train-file"),
        (["--data-dir", "x"], "--data-dir belongs to --glue-task"),
        (["--validation-fraction", "1"], "between 0 and 1"),
        (["--max-train-samples", "0"], "--max-train-samples must be positive"),
        (["--early-stopping-patience", "0"], "must be positive"),
        (["--early-stopping-patience", "1", "--save-strategy", "no"], "must agree"),
        (
            [
                *("--early-stopping-patience", "1", "--eval-strategy", "steps", "--eval-steps", "2"),
                *("--save-strategy", "steps", "--save-steps", "4"),
            ],
            "--save-steps is 4.* and --eval-steps 2.*; give the same",
        ),
        (["--metric-for-best-model", "acuracy"], "is acuracy, which no evaluation gives; did you mean accuracy"),
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


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_row_alone_has_no_correlation(finetune, split):
    """Which is said before training, of test data, too, and not laid to metrics that nobody named."""
    rows = {"text": TEXTS, "label": [0.5 * index for index in range(len(TEXTS))]}
    alone = {"text": TEXTS[:1], "label": [1.5]}
    with pytest.raises(SystemExit, match=rf"the {split} data cannot be scored by pearson: .*It has 1 row; give more"):
        finetune(rows, "--new-head", **{"validation": rows, split: alone})


def test_another_separator_is_said(script, checkpoints, tmp_path):
    typed = ["--model", str(checkpoints / "causal"), "--output-dir", str(tmp_path / "out"), "--use-cpu"]
    typed += ["--cache-dir", str(tmp_path / "cache"), "--train-file", str(tmp_path / "rows.csv")]
    for mark in (";", "\t"):
        for text in ("good", "good, not bad"):
            (tmp_path / "rows.csv").write_text(f"text{mark}label\n{text}{mark}1\nbad{mark}0\n", encoding="utf-8")
            with pytest.raises(SystemExit, match="The separator seems to be another: CSV needs commas"):
                script.main(typed)


def test_a_folder_is_no_file(script, tmp_path):
    typed = ["--model-type", "tnn", "--task", "image-classification", "--output-dir", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match=r"--train-file .* is a folder; give a folder of all splits as --dataset"):
        script.main([*typed, "--train-file", str(tmp_path)])


ALONE = r"the test data has the label 'ant', which the training data has not\. Give images of it .* out of the test"
UNLABELED = r"images of .*pictures have no labels\. Labels are the names of folders, at least two, .* every split"


@pytest.mark.parametrize(
    ("test", "train", "message"),
    [
        (("ant", "cat"), ("cat", "dog"), ALONE),
        ((".",), ("cat", "dog"), UNLABELED),
        (("cat",), ("cat",), UNLABELED),
    ],
)
def test_folders_of_images_that_say_no_labels_to_train_on(script, tmp_path, test, train, message):
    for split, classes in (("train", train), ("test", test)):
        for name in classes:
            (tmp_path / "pictures" / split / name).mkdir(parents=True)
            for level in range(3):
                Image.new("L", (4, 4), 50 * level).save(tmp_path / "pictures" / split / name / f"{level}.png")
    typed = ["--model-type", "tnn", "--task", "image-classification", "--output-dir", str(tmp_path / "out")]
    typed += ["--dataset", str(tmp_path / "pictures"), "--cache-dir", str(tmp_path / "cache"), "--use-cpu"]
    with pytest.raises(SystemExit, match=message):
        script.main([*typed, "--config-overrides", "image_size=4", "num_channels=1", "patch_size=2"])


def test_declared_classes_that_no_row_trains_are_warned_of(script, caplog):
    """Not refused: training data may be a part of a data set, whose classes it declares."""
    named = ClassLabel(names=["bad", "good", "so-so"])
    parts = {
        split: Dataset.from_dict({"text": TEXTS[:2], "label": n}) for split, n in (("train", [0, 1]), ("test", [1, 2]))
    }
    examples = DatasetDict(parts).cast_column("label", named)
    task = SequenceClassification.from_data(examples["train"], ["text"], ["label"])
    for warn in (False, True):
        script.check_classes(task, examples, ("validation", "test"), warn=warn)
        assert [record.message for record in caplog.records] == [
            "the test data has classes without a row to train on: so-so."
        ] * warn


def test_a_damaged_model_is_found_before_the_data_is_read(finetune, script, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "load_examples", None)
    with pytest.raises(SystemExit, match="there is no such folder"):
        finetune(TABLE, model="missing", validation=TABLE)
    shutil.copytree(checkpoints / "causal", tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(SystemExit, match=r"--model .*cut: model\.safetensors is cut short"):
        finetune(TABLE, model=tmp_path / "cut", validation=TABLE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("labels", [[0.5 * index for index in range(len(TEXTS))], [["a"], ["b"]] * (len(TEXTS) // 2)])
def test_labels_that_cannot_be_smoothed(finetune, labels):
    rows = {"text": TEXTS[: len(labels)], "label": labels}
    with pytest.raises(SystemExit, match=r"--label-smoothing-factor is 0\.1, and the labels are no single classes"):
        finetune(rows, "--label-smoothing-factor", "0.1", "--new-head", validation=rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --model"),
        (["--model", "a", "--model-type", "tnn"], "give either --model"),
        (["--model", "a", "--config-overrides", "hidden_size=8"], "belong to --model-type"),
        (["--model-type", "tnn", "--tokenizer", "byte", "--random-init"], "takes the configuration of a --model"),
        (["--model-type", "tnn"], "give --tokenizer"),
        (["--model-type", "tnn", "--task", "image-classification", "--tokenizer", "byte"], "are for text"),
        (["--model-type", "tnn", "--tokenizer", "byte", "--new-head"], "--new-head goes with the weights"),
        (["--model-type", "tnn", "--tokenizer", "byte", "--max-length", "-1"], "--max-length is -1; give at least 1"),
        (["--model", "a", "--image-mean", "0.5"], "belong to --task image-classification"),
        *(
            (["--model", "a", "--task", task, *options], message)
            for task, options, message in (
                ("token-classification", ["--label-column", "a", "b"], "--label-column .* is one column; given a, b"),
                ("token-classification", ["--text-columns", "a", "b"], "--text-columns .* is one column; given a, b"),
                ("token-classification", ["--problem-type", "regression"], "--problem-type regression is for labels"),
                ("question-answering", ["--problem-type", "regression"], "not for question-answering: leave it out"),
                ("question-answering", ["--text-columns", "a"], "question, context .*: leave out --text-columns, and"),
                ("question-answering", ["--label-column", "a"], "question, context .*: leave out --label-column, and"),
            )
        ),
        (["--model", "a", "--schedule-steps", "0"], "must be positive"),
        (["--model", "a", "--family", "tnn"], "--family chooses from a recipe"),
        (["--recipe", str(RECIPES / "text.yaml")], "choose one of tnn, ski_tnn, fd_tnn"),
        (["--recipe", str(RECIPES / "text.yaml"), "--family", "lstm"], "no family 'lstm'"),
        (["--model-type", "nothing", "--tokenizer", "byte"], "no model type 'nothing'"),
        (["--model-type", "tnn", "--tokenizer", "byte", "--config-overrides", "width=1"], "no field 'width'"),
        (["--model-type", "tnn", "--tokenizer", "byte", "--config-overrides", "decay=2"], "decay is 2"),
        *(
            (
                ["--model-type", "tnn", "--tokenizer", "byte", "--config-overrides", f"{name}={value}"],
                f"--config-overrides names {name}, which follow from the labels of the data",
            )
            for name, value in {"num_labels": 3, "id2label": '{"0":"b","1":"a"}', "problem_type": "regression"}.items()
        ),
        (
            [
                *("--model-type", "tnn", "--tokenizer", "byte", "--max-length", "8", "--config-overrides"),
                *("hidden_size=8", "position_embedding_type=learned", "max_position_embeddings=4"),
            ],
            r"--max-length is 8, but the model has positions for 4 tokens \(max_position_embeddings\): give at most",
        ),
        (["--model-type", "tnn", "--task", "image-classification"], r"no column 'image'.* Give --image-column\."),
    ],
)
def test_bad_arguments_from_scratch(script, tmp_path, options, message):
    path = table(tmp_path / "reviews.tsv", [("text", "label"), *zip(TEXTS, LABELS, strict=True)])
    cache = ["--cache-dir", str(tmp_path / "cache"), "--output-dir", str(tmp_path / "out"), "--use-cpu"]
    with pytest.raises(SystemExit, match=message):
        script.main([*options, "--train-file", path, *cache])
