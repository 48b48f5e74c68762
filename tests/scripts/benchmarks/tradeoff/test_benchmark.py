"""The benchmark `trade-off`: models of finished runs, built again and measured side by side."""

import argparse
import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hf_seqmix.training import precision, read_recipe
from hf_seqmix.training.result_files import write_results
from hf_seqmix.training.results import group_results, summarize

SCRIPTS = Path(__file__).resolve().parents[4] / "scripts"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("benchmarks.tradeoff.benchmark")


@pytest.fixture(scope="module")
def models(script):
    return importlib.import_module("benchmarks.tradeoff.models")


@pytest.fixture
def run(script, monkeypatch):
    """The command line, measured in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        main = importlib.import_module("run_benchmarks").main
    monkeypatch.setattr(script, "in_fresh_process", lambda function, *arguments: function(*arguments))
    return lambda *words: main(["trade-off", *map(str, words)])


TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


def make_run(family, seed=0, task="listops", batch=4, **data):
    """A run as the benchmark `lra` makes it, at a tiny size."""
    jobs = importlib.import_module("benchmarks.jobs")
    recipe = read_recipe(SCRIPTS / "recipes" / "lra" / f"{task}.yaml", family=family)
    changes = {
        "model": {"config_overrides": TINY},
        "data": {"train_file": f"OUTPUT/{task}-{seed}/train.parquet", **data},
        "training": {"per_device_train_batch_size": batch, "max_steps": 4},
    }
    return jobs.make_run(
        task, recipe, changes, arguments=argparse.Namespace(training=[], config_overrides=[]), seed=seed
    )


def results_of(models, runs):
    """As the benchmark `lra` writes them: (family, seed, accuracy), and a batch size if it is not 4."""
    found = []
    for family, seed, accuracy, *batch in runs:
        run = make_run(family, seed, batch=batch[0] if batch else 4, max_length=24)
        shared = {"task": "listops", "seed": seed, "size": "fast", "setting": {"data": "generated"}, "run": run}
        values = {"accuracy": accuracy, "num_parameters": models.build_model(run).num_parameters()}
        found += group_results(values, model=family, **shared)
        found += group_results({"accuracy": 0.2}, model="majority class", kind="baseline", **shared)
    rule = {"task": "listops", "size": "fast", "setting": {"data": "generated"}, "kind": "baseline"}
    return found + group_results({"accuracy": 0.3}, model="outermost operator", **rule)


def write(path, models, runs):
    write_results(path, results_of(models, runs))
    return path


def values(report, metric):
    return {
        (s.result.model, s.result.get("length")): s
        for s in summarize(report.results)
        if s.result.metric == metric and s.result.kind == "measured"
    }


def test_accuracy_speed_and_memory_side_by_side(run, models, tmp_path, capsys, monkeypatch):
    one = write(tmp_path / "a.jsonl", models, [("tnn", 0, 0.4), ("tnn", 1, 0.5), ("attention", 0, 0.3, 8)])
    two = write(tmp_path / "b.jsonl", models, [("tnn", 2, 0.6)])
    words = ("--results", one, two, "--rounds", 1, "--output-dir", tmp_path / "out", "--lengths", 24, 48)
    report = run(*words)
    ms, accuracy, memory = (values(report, metric) for metric in ("ms", "accuracy", "peak_memory_mib"))
    assert list(ms) == [("tnn", 24), ("attention", 24), ("tnn", 48), ("attention", 48)]
    tnn = accuracy["tnn", 24]
    assert (tnn.mean, tnn.spread, tnn.seeds) == (pytest.approx(0.5), pytest.approx(0.1), (0, 1, 2))
    assert (accuracy["attention", 24].seeds, accuracy["attention", 24].spread) == ((0,), None)
    ratio = values(report, "times_as_fast")
    assert ratio["tnn", 24].mean == 1
    assert ratio["attention", 24].mean == pytest.approx(ms["tnn", 24].mean / ms["attention", 24].mean)
    assert {s.result.get("batch_size") for s in ms.values()} == {4}
    assert {s.result.get("run_length") for s in ms.values()} == {24}
    assert memory["tnn", 48].mean > 1.5 * memory["tnn", 24].mean > 0
    levels = {r.model: r.value for r in report.results if r.kind == "baseline"}
    assert levels == {"outermost operator": 0.3, "majority class": 0.2, "chance": 0.1}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"listops-fast.png", "listops-fast-lengths.png", "results.md"} <= names
    assert "(outermost operator)" in capsys.readouterr().out

    # The same command measures nothing again.
    monkeypatch.setattr("benchmarks.tradeoff.benchmark.measure", None)
    assert run(*words).results == report.results


@pytest.mark.usefixtures("pictures")
def test_data_sets_of_one_task_have_plots_of_their_own(run, models, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.tradeoff.benchmark.in_fresh_process", lambda measure, contest: measure(contest))
    files = []
    for data, accuracy in (("generated", 0.4), ("of the archive", 0.5)):
        results = results_of(models, [("tnn", 0, accuracy)])
        results = [replace(result, setting={"data": data}) for result in results]
        files.append(tmp_path / f"{len(files)}.jsonl")
        write_results(files[-1], results)
    run("--results", *files, "--fast", "--output-dir", tmp_path / "out")
    plots = [tmp_path / "out" / name for name in ("listops-fast.png", "listops-fast-2.png")]
    assert all(plot.stat().st_size > 5_000 for plot in plots)
    text = (tmp_path / "out" / "results.md").read_text()
    assert "listops, fast: generated" in text and "listops, fast: of the archive" in text


def test_a_profiler_that_loses_its_record_is_a_failure_in_a_line(run, models, tmp_path, monkeypatch):
    def lost(contest):
        raise RuntimeError("the profiler lost the record of allocations 5 times")

    monkeypatch.setattr("benchmarks.tradeoff.benchmark.measure", lost)
    good = write(tmp_path / "a.jsonl", models, [("tnn", 0, 0.4)])
    with pytest.raises(SystemExit, match="not evaluated completely: listops, fast"):
        run("--results", good, "--output-dir", tmp_path / "out")
    assert "the profiler lost" in (tmp_path / "out" / "results.md").read_text()


@pytest.mark.parametrize(
    ("task", "family", "more", "length", "shape"),
    [
        ("retrieval", "fd_tnn", {"max_length": 16}, None, (3, 2, 16)),
        ("text", "ski_tnn", {"max_length": 96}, 128, (3, 128)),
        ("image", "tnn", {}, 256, (3, 1, 16, 16)),
    ],
)
def test_inputs_are_those_of_the_task(models, task, family, more, length, shape):
    model = models.build_model(make_run(family, task=task, **more), length)
    assert type(model.config).model_type == family and model.config.hidden_size == 16
    batch = models.random_batch(model, task, 3)
    assert batch["pixel_values" if task == "image" else "input_ids"].shape == shape
    assert model(**batch).logits.shape == (3, models.NUM_LABELS[task])


def test_a_pretrained_model_is_laid_out_for_the_inputs_of_its_task(models):
    run = make_run("tnn", max_length=24)
    before = {"objective": "masked", "config_overrides": {"max_position_embeddings": 96, "hidden_size": 32}}
    pretrained = replace(run, training={**run.training, "pretraining": {"model": before}})
    config, alone = (models.build_model(each).config for each in (pretrained, run))
    assert (config.max_position_embeddings, config.hidden_size) == (24, 32)
    assert config.vocab_size == alone.vocab_size + 1  # the mask


def test_an_update_is_a_whole_one_and_changes_no_weight(models, tmp_path):
    run = make_run("tnn", max_length=24)
    model = models.build_model(run)
    before = [parameter.clone() for parameter in model.parameters()]
    update = models.Update(model, run, models.random_batch(model, "listops", 2), torch.device("cpu"), tmp_path)
    [seconds] = update(models.Clock(torch.device("cpu")))
    assert seconds > 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    weights = sum(p.numel() for p in model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    averages = update.state_bytes() - buffers - 12 * weights  # weights and AdamW's two averages, four bytes each
    assert 0 <= averages <= 8 * len(before)  # its counts of steps


def test_what_stays_between_updates_is_a_part_of_the_peak(models, monkeypatch):
    monkeypatch.setattr(models, "peak_bytes", lambda call, device: 2**20)
    contest = models.Contest("listops", {"tnn": make_run("tnn", max_length=24)}, None, 2, "cpu", 1, 1, 1.0, "here")
    [row] = models.measure(contest)
    weights = 12 * row["num_parameters"] / 2**20  # with AdamW's two averages, four bytes each
    assert 1 + weights <= row["peak_memory_mib"] < 1.1 + weights


def test_an_update_of_a_recipe_of_minutes_is_by_muon(models, tmp_path):
    """Its precision is settled here, once for all models and lengths."""
    run = make_run("tnn", max_length=24)
    learning = importlib.import_module("benchmarks.lra.sizes").LEARNING["training"]
    run = replace(run, training={**run.training, **learning})
    model = models.build_model(run)
    before = [parameter.clone() for parameter in model.parameters()]
    update = models.Update(model, run, models.random_batch(model, "listops", 2), torch.device("cpu"), tmp_path)
    [seconds] = update(models.Clock(torch.device("cpu")))
    assert seconds > 0 and type(update.optimizer).__name__ == "MuonWithAdamW"
    assert update.dtype in (torch.float32, torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    # Muon keeps one average of a matrix, AdamW two of all else.
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert update.state_bytes() < 3 * weights


def test_the_precision_is_chosen_once_for_all_models_and_lengths(run, models, tmp_path, monkeypatch):
    choices = iter(["bfloat16", "float32", "float32"])
    monkeypatch.setattr(precision, "choose_precision", lambda *_: {"dtype": next(choices), "reason": "timed"})
    found = results_of(models, [("tnn", 0, 0.4), ("attention", 0, 0.3)])
    automatic = [replace(r, run=replace(r.run, training={**r.run.training, "bf16": "auto"})) for r in found if r.run]
    write_results(tmp_path / "a.jsonl", automatic)
    words = ("--results", tmp_path / "a.jsonl", "--fast", "--output-dir", tmp_path / "out", "--lengths")
    run(*words, 24, 48)
    report = run(*words, 24, 48, 32)  # as the folder has it
    measured = [r for r in report.results if r.metric == "ms"]
    assert len(measured) == 6 and {r.get("dtype") for r in measured} == {"bfloat16"}
    assert "| bfloat16 |" in (tmp_path / "out" / "results.md").read_text()


def test_another_run_is_measured_anew(script, models):
    keys = []
    for seed, length in ((0, 24), (1, 24), (0, 32)):
        runs = {"tnn": models.same_setting(make_run("tnn", seed, max_length=length))}
        contest = models.Contest("listops", runs, None, 2, "cpu", 1, 1, 1.0, "here")
        found = script.FinishedTask("listops", "fast", "generated", [], {}, [])
        keys.append(script.key_of(found, contest))
    assert keys[0] == keys[1] != keys[2]
    assert script.key_of(replace(found, data="other files"), contest) != keys[2]
    json.dumps(keys)


def test_what_makes_no_sense_is_refused(run, models, tmp_path):
    good = write(tmp_path / "a.jsonl", models, [("tnn", 0, 0.4)])
    out = ("--output-dir", tmp_path / "out")
    other = write(tmp_path / "b.jsonl", models, [("tnn", 0, 0.5)])
    with pytest.raises(SystemExit, match="repeats accuracy of tnn on listops, seed 0"):
        run("--results", good, other, *out)
    with pytest.raises(SystemExit, match="--reference ipa has no result for listops; it has tnn"):
        run("--results", good, "--reference", "ipa", *out)
    write(other, models, [("tnn", 1, 0.4, 8)])
    with pytest.raises(SystemExit, match="differ in more than their seed"):
        run("--results", good, other, *out)
    found = results_of(models, [("tnn", 0, 0.4)])
    more = [replace(r, value=r.value + 1) if r.metric == "num_parameters" else r for r in found]
    write_results(other, more)
    with pytest.raises(SystemExit, match="train it again with this version"):
        run("--results", other, "--fast", *out)
    write_results(other, [replace(result, task="sst2") for result in found])
    with pytest.raises(SystemExit, match=r"no accuracy of a run of lra .* give results\.jsonl of the benchmark lra"):
        run("--results", other, *out)
    other.write_text("[]\n")
    with pytest.raises(SystemExit, match=r"b\.jsonl, line 1"):
        run("--results", other, *out)
    with pytest.raises(ValueError, match="square number of pixels; given 200"):
        models.build_model(make_run("tnn", task="image"), 200)
