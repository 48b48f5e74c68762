"""Trained models whose tokens come in another order: images and translation, before and after training on."""

import importlib.util
import json
import sys
from pathlib import Path

import datasets
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForImageClassification, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration
from vision.training import Classifiers, Images

import hf_seqmix
from hf_seqmix.training.result_files import read_results

PATH = Path(hf_seqmix.__file__).parent.parent / "scripts" / "studies" / "permutation.py"
WORDS = ["<pad>", "</s>", "<unk>", *"abcdefghijklmnop"]
METRIC = '''
import datasets
import evaluate

class Share(evaluate.Metric):
    """Share of translations that are the reference."""

    def _info(self):
        texts = {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
        empty = {"description": "", "citation": "", "inputs_description": ""}
        return evaluate.MetricInfo(**empty, features=datasets.Features(texts))

    def _compute(self, predictions, references):
        assert len(predictions) == 6
        return {"score": 100 * sum(a in b for a, b in zip(predictions, references)) / len(references)}
'''


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("permutation", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["permutation"] = module
    spec.loader.exec_module(module)
    return module


def tables(folder, columns_of):
    arguments = []
    for split, rows in (("train", 10), ("test", 6)):
        columns_of(rows).to_parquet(folder / f"{split}.parquet")
        arguments += [f"--{split}-file", str(folder / f"{split}.parquet")]
    return arguments


def pictures(rows):
    pixels = torch.randint(256, (rows, 8, 8, 3), dtype=torch.uint8).numpy()
    columns = {"image": [Image.fromarray(each) for each in pixels], "label": [row % 2 for row in range(rows)]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    return datasets.Dataset.from_dict(columns, features=features)


def pairs(rows):
    texts = [" ".join("abcdefghijklmnop"[(row + step) % 16] for step in range(12 + row % 3)) for row in range(rows)]
    return datasets.Dataset.from_dict({"en": texts, "de": [text[::-1] for text in texts]})


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    images = Images(torch.zeros(1, 3, 8, 8), torch.zeros(1), ("a", "b"), "noise")
    model = Classifiers(2, 8, 1, 2).build("attention", 4, images, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "t5"
    plain = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    plain.pre_tokenizer = Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=plain, **special).save_pretrained(folder)
    sizes = {"vocab_size": len(WORDS), "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).save_pretrained(folder)
    return str(folder)


def test_a_classifier_has_four_accuracies(script, classifier, tmp_path, monkeypatch):
    command = ["images", "--model", classifier, *tables(tmp_path, pictures), "--moved", "5", "--seeds", "0", "1"]
    command += ["--steps", "3", "--batch-size", "4", "--learning-rate", "0.01", "--output-dir", str(tmp_path / "out")]
    accuracy, loss = script.main(command)
    assert (accuracy["metric"], loss["metric"], accuracy["paper"]) == ("accuracy", "loss", "0.98 and 0.96")
    assert len({loss[name] for name in script.CONDITIONS}) == 4  # each condition is another one
    assert all(0 <= accuracy[name] <= 1 for name in script.CONDITIONS)
    results = read_results(tmp_path / "out" / "results.jsonl")
    seeds = {name: {each.seed for each in results if each.get("condition") == name} for name in script.CONDITIONS}
    assert seeds == {"as it is": {None}, "permuted": {None}, "trained on": {0, 1}, "trained on, permuted": {0, 1}}
    monkeypatch.setattr(script, "figures_of", None)  # a second call reads the file
    assert script.main(command) == [accuracy, loss]


def test_classes_stand_in_the_order_of_the_model(script, classifier, tmp_path):
    """The same model with the rows of its head and their names swapped."""
    model = AutoModelForImageClassification.from_pretrained(classifier)
    with torch.no_grad():
        for parameter in model.classifier.parameters():
            parameter.copy_(parameter.flip(0))
    for name, labels in (("swapped", "ba"), ("other", "ac")):
        model.config.id2label = dict(enumerate(labels))
        model.save_pretrained(tmp_path / name)

    def named(rows):
        table = pictures(rows)
        return table.cast_column("label", datasets.Value("string")).map(lambda row: {"label": "ab"[int(row["label"])]})

    command = ["images", *tables(tmp_path, named), "--moved", "5", "--steps", "1", "--batch-size", "4", "--model"]
    rows = script.main([*command, classifier, str(tmp_path / "swapped"), "--output-dir", str(tmp_path / "out")])
    for metric in ("accuracy", "loss"):
        one, other = ([row[name] for name in ("as it is", "permuted")] for row in rows if row["metric"] == metric)
        assert one == pytest.approx(other, rel=1e-5)
    with pytest.raises(SystemExit, match=r"other tells a, c apart, but the data has a, b: give a model"):
        script.main([*command, str(tmp_path / "other"), "--output-dir", str(tmp_path / "none")])


def test_no_token_that_moves_changes_nothing(script, classifier, tmp_path):
    command = ["images", "--model", classifier, *tables(tmp_path, pictures), "--moved", "0", "--steps", "2"]
    for row in script.main([*command, "--batch-size", "4", "--output-dir", str(tmp_path / "out")]):
        assert row["as it is"] == row["permuted"] and row["trained on"] == row["trained on, permuted"]


def test_a_translation_is_scored_by_a_metric_and_the_loss(script, translator, tmp_path):
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "share.py").write_text(METRIC, encoding="utf-8")
    command = ["translation", "--model", translator, *tables(tmp_path, pairs), "--metric", str(tmp_path / "share")]
    command += ["--steps", "2", "--batch-size", "4", "--max-tokens", "16", "--num-beams", "2"]
    loss, bleu = script.main([*command, "--prefix", "p ", "--output-dir", str(tmp_path / "out")])
    assert (loss["metric"], bleu["metric"]) == ("loss", "bleu")
    assert loss["as it is"] != loss["permuted"] and loss["trained on"] < loss["as it is"]
    assert bleu["as it is"] == 0 and bleu["paper"] == "26.85 and 25.91"


def test_what_is_not_there_is_said_in_one_line(script, classifier, translator, tmp_path):
    out = ["--output-dir", str(tmp_path / "out")]
    images, text = tables(tmp_path, pictures), ["translation", "--model", translator]
    with pytest.raises(
        SystemExit, match=r"the model 'nobody/nothing' could not be loaded: .*no network, give a folder"
    ):
        script.main(["images", "--model", "nobody/nothing", *images, *out])
    with pytest.raises(SystemExit, match="Where there is no network, give --train-file and --test-file"):
        script.main([*text, "--metric", "none", *out])
    (tmp_path / "text").mkdir()
    files = tables(tmp_path / "text", pairs)
    with pytest.raises(SystemExit, match=r"the metric 'sacrebleu' could not be loaded: .*--metric none"):
        script.main([*text, *files, *out])
    with pytest.raises(SystemExit, match="the train data has the columns en, de, but --languages are en and fr"):
        script.main([*text, *files, "--languages", "en", "fr", "--metric", "none", *out])
    with pytest.raises(SystemExit, match="tiny tells 2 classes apart, but the data has 3"):
        table = pictures(6).remove_columns("label").add_column("label", [0, 1, 2, 0, 1, 2])
        table.to_parquet(tmp_path / "three.parquet")
        three = ["--train-file", str(tmp_path / "three.parquet"), "--test-file", str(tmp_path / "three.parquet")]
        script.main(["images", "--model", classifier, *three, *out])
    with pytest.raises(SystemExit, match="--model names best twice: best best"):
        script.main(["images", "--model", "a/best", "b/best", *images, *out])
    with pytest.raises(SystemExit, match="count is -1"):
        script.main(["images", "--model", classifier, "--moved", "-1", *images, *out])
    with pytest.raises(SystemExit, match=r"--moved is 16, but .*tiny reads 16 patches.*give at most 15"):
        script.main(["images", "--model", classifier, "--moved", "16", *images, *out])
    assert not (tmp_path / "out" / "results.jsonl").exists()  # before anything is scored
    with pytest.raises(SystemExit, match="--steps, --batch-size, --train-rows and --test-rows must be at least 1"):
        script.main(["images", "--model", classifier, "--steps", "0", *images, *out])


def test_results_are_json(script, classifier, tmp_path):
    command = ["images", "--model", classifier, *tables(tmp_path, pictures), "--steps", "1", "--batch-size", "2"]
    script.main([*command, "--output-dir", str(tmp_path / "out")])
    lines = (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4 and all(json.loads(line)["key"] for line in lines)  # a line a run
    assert str(tmp_path) not in "".join(lines)
