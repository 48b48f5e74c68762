"""The benchmark `glue`: what chooses, what is scored, what a second run trains again, and what is refused."""

import importlib
import json
import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import ByT5Tokenizer

from hf_seqmix import TNNConfig, TNNForMaskedLM, TNNForSequenceClassification
from hf_seqmix.training.results import Result, summarize

SCRIPTS = Path(__file__).resolve().parents[4] / "scripts"
WORDS = ("plain", "odd", "short", "long", "new", "old")
NUMBER = 24


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("run_benchmarks")


@pytest.fixture
def trained(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs, which train in this process: starting another for each takes longer than its training."""
    names_of_modules = ("benchmarks.training", "benchmarks.run_costs", "finetune")
    training, costs, finetune = map(importlib.import_module, names_of_modules)
    names: list[str] = []

    def train(job, folder):
        names.append(job.name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(job.run.to_json()))
        try:
            finetune.main(["--recipe", str(folder / "run.json"), "--output-dir", str(folder), "--resume"])
        except SystemExit as error:
            return str(error)
        return json.loads((folder / "results.json").read_text(encoding="utf-8"))

    for module in (training, costs):
        monkeypatch.setattr(module, "train", train)
    return names


def found(report, metric, **wanted):
    """Results of a metric that are no part of a curve."""
    chosen = [r for r in report.results if r.metric == metric and r.get("step") is None]
    return [r for r in chosen if all(r.get(name) == value for name, value in {"kind": "measured", **wanted}.items())]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "masked"
    torch.manual_seed(0)
    config = TNNConfig(vocab_size=384, hidden_size=8, num_hidden_layers=1, max_position_embeddings=32, is_causal=False)
    TNNForMaskedLM(config).save_pretrained(folder)
    ByT5Tokenizer().save_pretrained(folder)
    return folder


def write_tasks(folder: Path, flip_dev: bool = False) -> Path:
    """SST-2, STS-B and MNLI as the benchmark distributes them, a few rows each."""
    for name in ("SST-2", "STS-B", "MNLI"):
        (folder / name).mkdir(parents=True)
    texts = [f"a {'good' if i % 2 else 'dull'} {WORDS[i % 5]} film {i}" for i in range(NUMBER)]
    for split, flip in (("train", 0), ("dev", int(flip_dev))):
        lines = [f"{text}\t{(i + flip) % 2}\n" for i, text in enumerate(texts)]
        (folder / "SST-2" / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(lines))
        lines = [f"{i}\t{text}\t{text} again\t{i % 6 * (1 - 2 * flip)}.5\n" for i, text in enumerate(texts)]
        (folder / "STS-B" / f"{split}.tsv").write_text("index\tsentence1\tsentence2\tscore\n" + "".join(lines))
    labels = ("entailment", "neutral", "contradiction")
    lines = [f"{text}\tso\t{labels[i % 3]}\n" for i, text in enumerate(texts)]
    for name, wanted in (("train", lines), ("dev_matched", lines[:9]), ("dev_mismatched", lines[9:16])):
        (folder / "MNLI" / f"{name}.tsv").write_text("sentence1\tsentence2\tgold_label\n" + "".join(wanted))
    return folder


def command(model: Path, data: Path, output: Path, *more: str) -> list[str]:
    return [
        *("glue", "--model", str(model), "--data-dir", str(data), "--output-dir", str(output), "--fast"),
        *("--cache-dir", str(output.parent / "cache"), "--training", "use_cpu=true", "disable_tqdm=true"),
        *more,
    ]


@pytest.mark.slow  # as finetune.py gives it by default
def test_a_classifier_of_other_labels_gets_a_new_head(script, trained, model, tmp_path):
    torch.manual_seed(0)
    regression = TNNForSequenceClassification.from_pretrained(model, num_labels=1)
    regression.save_pretrained(tmp_path / "regression")
    ByT5Tokenizer().save_pretrained(tmp_path / "regression")
    data = write_tasks(tmp_path / "glue")
    options = ["--tasks", "sst2", "--learning-rates", "1e-3", "--seeds", "0"]
    report = script.main(command(tmp_path / "regression", data, tmp_path / "out", *options))
    assert not report.failures and len(found(report, "accuracy")) == 1


def test_baselines_of_what_models_read_are_told_apart(script) -> None:
    report = importlib.import_module("benchmarks.glue.report")

    def baseline(name: str, read_by: str, value: float) -> Result:
        setting = {"data": "d", "read_by": read_by}
        return Result("sst2", name, "accuracy", value, seed=0, kind="baseline", setting=setting)

    rules = [baseline("majority class or mean", name, 0.5) for name in ("bytes", "words")]
    bags = [baseline("bag of words", "bytes", 0.6), baseline("bag of words", "words", 0.7)]
    model = Result("sst2", "bytes", "accuracy", 0.8, seed=0)
    found = report.name_baselines([model, *rules, *bags])
    assert [(r.model, r.value) for r in found] == [
        ("bytes", 0.8),
        ("majority class or mean", 0.5),
        ("bag of words of what bytes reads", 0.6),
        ("bag of words of what words reads", 0.7),
    ]
    alike = report.name_baselines([bags[0], replace(bags[0], setting={"data": "d", "read_by": "words"})])
    assert [r.model for r in alike] == ["bag of words"]


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_runs_table_and_resumption(script, trained, model, tmp_path, capsys):
    data, output = write_tasks(tmp_path / "glue"), tmp_path / "out"
    options = ["--tasks", "sst2", "--learning-rates", "1e-2", "1e-4", "--seeds", "0", "1", "--random-init"]
    report = script.main(command(model, data, output, *options))
    # pretrained and random: two learning rates with the first seed, the better one with the second
    assert len(trained) == len(set(trained)) == 2 * (2 + 1)
    scores = found(report, "score")
    assert len(scores) == 2 * 2 and not report.failures
    for score in scores:
        rivals = {r.get("learning_rate"): r.value for r in found(report, "held_out_score", model=score.model, seed=0)}
        assert len(rivals) == 2 and rivals[score.get("learning_rate")] == max(rivals.values())
        assert score.get("data") == f"development set, {NUMBER} examples; fine-tuned on 21"
    assert {r.value for r in found(report, "held_out_examples")} == {3}
    table = capsys.readouterr().out
    assert "| masked, random weights" in table and "| (bag of words)" in table
    accuracies = [r.value for r in found(report, "accuracy", model="masked")]
    [masked] = summarize(found(report, "score", model="masked"))
    assert masked.mean == pytest.approx(sum(accuracies) / 2)
    assert masked.spread == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert (output / "scores.png").read_bytes().startswith(b"\x89PNG")
    lines = (output / "runs.jsonl").read_text(encoding="utf-8")
    assert str(tmp_path) not in lines and len(lines.splitlines()) == 6

    trained.clear()
    again = script.main(command(model, data, output, *options))
    assert trained == [] and again.results == report.results
    # other weights of the same name are another model
    os.utime(model / "model.safetensors", (1, 1))
    script.main(command(model, data, output, "--tasks", "sst2", "--learning-rates", "1e-2"))
    assert trained == ["sst2/masked/pretrained/lr-0.01/seed-0"]


def test_the_development_set_chooses_nothing(script, trained, model, tmp_path):
    reports = []
    for name, flip in (("right", False), ("flipped", True)):
        data = write_tasks(tmp_path / name / "glue", flip_dev=flip)
        options = ["--tasks", "sst2", "--learning-rates", "1e-2", "1e-3"]
        reports.append(script.main(command(model, data, tmp_path / name / "out", *options)))
    right, flipped = (
        [r.value for r in report.results if r.metric == "held_out_score" and r.get("step")] for report in reports
    )
    assert right == flipped and len(right) == 2
    chosen = [score for report in reports for score in found(report, "accuracy")]
    assert len(chosen) == 2 and chosen[0].get("learning_rate") == chosen[1].get("learning_rate")
    # the same predictions on the same sentences, of which every label is the other one
    assert chosen[0].value == pytest.approx(1 - chosen[1].value)


def test_two_metrics_and_two_development_sets(script, trained, model, tmp_path, capsys):
    data = write_tasks(tmp_path / "glue")
    report = script.main(command(model, data, tmp_path / "out", "--tasks", "stsb", "mnli"))
    assert found(report, "Pearson", task="stsb") and found(report, "Spearman", task="stsb")
    [held_out] = found(report, "held_out_score", task="stsb")
    assert held_out.run.training["metric_for_best_model"] == "pearsonr"
    right = [found(report, "matched")[0].value * 9, found(report, "mismatched")[0].value * 7]
    assert right == pytest.approx([round(number) for number in right])
    of_mean = {"kind": "baseline", "model": "majority class or mean", "task": "stsb"}
    assert [found(report, metric, **of_mean)[0].value for metric in ("Pearson", "score")] == [None, 0]
    table = capsys.readouterr().out
    header = next(line for line in table.splitlines() if line.startswith("| model"))
    assert all(f" {name} |" in header for name in ("STS-B Pearson", "STS-B Spearman", "MNLI matched", "average"))


def test_costs_are_of_all_rounds_in_the_precision_of_the_folder(script, trained, model, tmp_path, capsys, monkeypatch):
    data, costs = write_tasks(tmp_path / "glue"), importlib.import_module("benchmarks.run_costs")
    train, precisions = costs.train, []
    monkeypatch.setattr(costs, "train", lambda job, *to: precisions.append(job.precision) or train(job, *to))
    options = ["--tasks", "sst2", "--learning-rates", "1e-2", "1e-3", "--seeds", "0", "1", "2", "--costs"]
    script.main(command(model, data, tmp_path / "out", *options))
    # one run is timed: learning rate and seed make no other cost
    assert trained == ["sst2/masked/pretrained/lr-0.001/seed-0"]
    assert precisions == [json.loads((tmp_path / "out" / "precision.json").read_text(encoding="utf-8"))]
    table = capsys.readouterr().out
    assert table.count("sst2/masked/pretrained") == 2 + 2 and "hours in all" in table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", "rte"], r"data of rte could not be read in .*there is neither .*RTE/train\.tsv nor"),
        (["--tasks", "sst2", "sst2"], "--tasks names sst2 twice"),
        (["--seeds", "0", "1", "0"], "--seeds names 0 twice: 0 1 0"),
        (["--learning-rates", "0"], "--learning-rates must be positive"),
        (["--epochs", "-1"], "--epochs must be positive"),
        (["--training", "learning_rate=1e-3"], "--training says learning_rate, .* give --learning-rates"),
        (["--training", "metric_for_best_model=loss"], "--training says metric_for_best_model, .* leave it out"),
        (["--training", "greater_is_better=false"], "--training says greater_is_better, .* leave it out"),
        (["--epochs", "7", "--training", "max_steps=5"], "--training says max_steps, .* give --epochs"),
        (["--model", "nowhere/at-all"], "--model: nowhere/at-all is no folder here"),
    ],
)
def test_refusals(script, trained, model, tmp_path, options, message):
    data = write_tasks(tmp_path / "glue")
    more = options if "--tasks" in options else ["--tasks", "sst2", *options]
    with pytest.raises(SystemExit, match=message):
        script.main(command(model, data, tmp_path / "out", *more))
    assert trained == []


def test_an_unknown_task_is_refused(script, model, tmp_path, capsys):
    with pytest.raises(SystemExit):
        script.main(command(model, tmp_path, tmp_path / "out", "--tasks", "sst"))
    assert "invalid choice: 'sst'" in capsys.readouterr().err


def test_a_test_file_contradicts_validation_from_train(script, model):
    finetune = importlib.import_module("finetune")
    with pytest.raises(SystemExit, match="leave out --test-file"):
        options = ["--validation-from-train", "--train-file", "a.csv", "--test-file", "b.csv", "--output-dir", "out"]
        finetune.main(["--model", str(model), *options])
