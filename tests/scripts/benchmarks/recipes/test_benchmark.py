"""The benchmark of recipes: what it trains, which rate it takes up with further seeds, and what it reports."""

import importlib
import json
import math
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.analysis import evaluate_language_model
from hf_seqmix.data import build_tokenizer, load_corpus
from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run

SCRIPTS = Path(__file__).resolve().parents[4] / "scripts"
RECIPE = """
model: {objective: causal, model_type: tnn, config_overrides: {hidden_size: 8, rpe_hidden_size: 4}}
data: {dataset: "embedded:python-stdlib", tokenizer: byte}
training: {max_tokens: 400, learning_rate: 4e-3, warmup_steps: 2}
"""

WRONG_NAMES = ("../../esc", "/esc", "a\\b", ".", "..", "", " ")


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("run_benchmarks")


@pytest.fixture
def trained(script: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs without training: as many bits per byte as the recipe's rate is off 8e-3, and fewer by Muon."""
    shared: ModuleType = importlib.import_module("benchmarks.training")
    runs = []

    def train(job: Any, folder: Path) -> dict[str, Any]:
        runs.append(job)
        training = job.run.training
        bits = 2 + abs(math.log2(training["learning_rate"] / 8e-3)) - (training.get("optim") == "muon")
        bits += job.run.seed / 100
        return {
            "evaluation": {"bits_per_byte": bits, "token_loss": 2 * bits},
            "eval_loss_curve": [[5, 4 * bits], [10, 2 * bits]],
            "num_updates": 10,
            "seconds_per_update": 0.5,
            "train_seconds": 50.0,
            "num_parameters": 1000,
            "num_train_tokens": 160,
            "steps_per_second": 1.5,
        }

    monkeypatch.setattr(shared, "train", train)
    return runs


def command(recipe: Path, output: Path, *more: str) -> list[str]:
    return ["recipes", "--recipe", str(recipe), "--output-dir", str(output), *more]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE)
    return path


def test_the_rate_of_muon_is_swept_however_muon_is_given(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path
) -> None:
    script.main(command(recipe, tmp_path / "out", "--training", "optim=muon", "--max-seconds", "9"))
    rates = [(job.run.training["learning_rate"], job.run.training["muon_learning_rate"]) for job in trained[:3]]
    assert [muon / rates[1][1] for _, muon in rates] == [own / rates[1][0] for own, _ in rates] == [0.5, 1.0, 2.0]


def test_a_refused_command_leaves_nothing_in_the_folder(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    with pytest.raises(SystemExit):
        script.main(command(recipe, output, "--training", "bogus=1", "--test-bytes", "100", "--max-seconds", "9"))
    assert not (output / "scored.json").exists()
    script.main(command(recipe, output, "--test-bytes", "200", "--max-seconds", "9"))
    with pytest.raises(SystemExit):
        script.main(command(recipe, output, "--test-bytes", "100", "--max-seconds", "9"))
    script.main(command(recipe, output, "--test-bytes", "100", "--max-seconds", "9", "--overwrite"))


def test_models_that_were_timed_apart_are_refused(tmp_path: Path) -> None:
    module = importlib.import_module("benchmarks.equal_seconds")
    (tmp_path / module.TIMINGS).write_text('{"a/b-12345678": [0.5]}', encoding="utf-8")
    job = importlib.import_module("benchmarks.jobs").Job(
        "c/d", "pretrain.py", Run("t", model={}, data={}, training={}), {}, None
    )
    with pytest.raises(ValueError, match=r"updates of other models alone.*name one of these, too \(a/b\)"):
        module.updates_in(1.0, [job], 1, tmp_path)


def test_the_best_rate_is_trained_with_further_seeds(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path
) -> None:
    variant = ["--variant", "muon", "optim=muon", "tie_word_embeddings=false"]
    options = [*variant, "--seeds", "0", "1", "2", "--max-seconds", "9"]
    report = script.main(command(recipe, tmp_path / "out", *options))
    assert [(job.run.seed, job.labels["setting"]["rate_factor"]) for job in trained] == [
        *[(0, factor) for factor in (0.5, 1.0, 2.0)] * 2,
        *[(seed, 2.0) for seed in (1, 2)] * 2,
    ]
    by_muon = next(job.run for job in trained if job.run.training.get("optim") == "muon")
    assert by_muon.training["max_seconds"] == 9 and "max_tokens" not in by_muon.training
    assert (by_muon.training["learning_rate"], by_muon.training["muon_learning_rate"]) == (2e-3, 1e-2)
    overrides = {"hidden_size": 8, "rpe_hidden_size": 4, "tie_word_embeddings": False}
    assert by_muon.model["config_overrides"] == overrides

    lines = (tmp_path / "out" / "results.md").read_text().splitlines()
    best = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "2.0" in line or "muon" in line]
    assert best[0][:5] == ["tiny", "as the recipe", "2.0", "2.010", "0.010"]
    assert best[1][:5] == ["tiny", "muon", "2.0", "1.010", "0.010"]
    assert [row for row in lines if "3.000" in row and "4.000" in row]  # every rate of the plain recipe
    assert (tmp_path / "out" / "bits_per_byte.png").is_file()
    curve = [r for r in report.results if r.get("seconds") is not None and r.get("variant") == "muon"]
    assert {r.setting["seconds"]: r.value for r in curve if r.seed == 0 and r.get("rate_factor") == 2.0} == {
        2.5: 2.0,
        5.0: 1.0,
    }
    before = len(trained)
    script.main(command(recipe, tmp_path / "out", *options))
    assert len(trained) == before


def test_a_rate_that_the_recipe_does_not_say_is_multiplied_too(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path
) -> None:
    recipe.write_text(RECIPE.replace("learning_rate: 4e-3, ", ""))
    script.main(command(recipe, tmp_path / "out", "--max-seconds", "9"))
    assert [job.run.training["learning_rate"] for job in trained] == [2.5e-5, 5e-5, 1e-4]


def test_models_timed_in_turns_have_the_updates_of_equal_seconds(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing = importlib.import_module("benchmarks.equal_seconds")
    slow = {"tiny/as-the-recipe": [0.4, 0.1, 0.2], "tiny/wide": [0.3, 0.8, 0.5]}
    trials = []

    def train(job: Any, folder: Path) -> dict[str, Any]:
        trials.append((job.name, job.run.training["max_steps"]))
        assert "max_seconds" not in job.run.training and "warmup_steps" not in job.run.training
        return {"seconds_per_update": slow[job.name].pop()}

    monkeypatch.setattr(timing, "train", train)
    options = [
        "--variant",
        "wide",
        "hidden_size=16",
        "--time-in-turns",
        "3",
        "--max-seconds",
        "10",
        "--seeds",
        "0",
        "1",
    ]
    script.main(command(recipe, tmp_path / "out", *options))
    assert trials == [("tiny/as-the-recipe", timing.UPDATES), ("tiny/wide", timing.UPDATES)] * 3
    lengths = {job.labels["setting"]["variant"]: job.run.training["max_steps"] for job in trained}
    assert lengths == {"as the recipe": 50, "wide": 20}  # 10 s at medians of 0.2 and 0.5 s
    assert all(job.run.training["warmup_steps"] == 2 for job in trained)
    assert not any({"max_seconds", "max_tokens"} & set(job.run.training) for job in trained)
    assert "| tiny/wide          |   0.5000 | 0.3000 | 0.8000 |" in (tmp_path / "out" / "results.md").read_text()

    # The same again: nothing is timed. A new variant is timed beside the others, on a machine half as fast by now.
    slow |= {"tiny/as-the-recipe": [0.4], "tiny/wide": [1.0], "tiny/deep": [2.0]}
    script.main(command(recipe, tmp_path / "out", *options))
    assert len(trials) == 6
    deep = ["--variant", "deep", "num_hidden_layers=4", "--time-in-turns", "1"]
    script.main(command(recipe, tmp_path / "out", *options, *deep))
    lengths = {job.labels["setting"]["variant"]: job.run.training["max_steps"] for job in trained}
    assert lengths == {"as the recipe": 50, "wide": 20, "deep": 10}


def test_a_trial_that_fails_is_said(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("benchmarks.equal_seconds"), "train", lambda *_: "no memory")
    with pytest.raises(SystemExit, match="tiny/as-the-recipe could not be timed: no memory"):
        script.main(command(recipe, tmp_path / "out", "--time-in-turns", "1"))
    assert not trained


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder: a small model that has not learned anything."""
    folder = tmp_path_factory.mktemp("finished")
    tokenizer = build_tokenizer("byte")
    config = TNNConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, rpe_hidden_size=4)
    TNNForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def arguments_of(folder: Path, dataset: str | None, objective: str = "causal", **more: Any) -> None:
    data = {"dataset": dataset, "text_column": "text", "sample_by": "document", "file_format": None}
    data |= {"tokenized": False, "block_size": 16, **more}
    (folder / "results.json").write_text(json.dumps({"arguments": {"model": {"objective": objective}, "data": data}}))


def test_a_finished_run_is_scored_on_the_test_split(script: Any, finished: Path) -> None:
    score_test = importlib.import_module("benchmarks.recipes.benchmark").score_test
    arguments_of(finished, "embedded:python-stdlib")
    beginning = load_corpus("embedded:python-stdlib")["test"][0]["text"][:500]
    assert beginning.isascii()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(finished), AutoTokenizer.from_pretrained(finished)
    wanted = evaluate_language_model(model, tokenizer, [beginning], context_lengths=(16, 64))
    found = score_test(finished, max_bytes=500)
    assert list(found.values()) == [score.bits_per_byte for score in wanted]
    assert score_test(finished, max_bytes=0) == {}
    arguments_of(finished, None)
    assert score_test(finished) == {}
    arguments_of(finished, "embedded:python-stdlib", "masked")
    assert score_test(finished) == {}


def test_a_test_split_is_read_in_the_format_of_its_files_and_not_where_it_is_of_tokens(
    script: Any, finished: Path, tmp_path: Path
) -> None:
    score_test = importlib.import_module("benchmarks.recipes.benchmark").score_test
    for split in ("train", "test"):
        (tmp_path / f"{split}.log").write_text("some text\n" * 9)
    arguments_of(finished, str(tmp_path), file_format="text")
    assert len(score_test(finished)) == 2
    arguments_of(finished, str(tmp_path), tokenized=True)
    assert score_test(finished) == {}


def test_a_run_that_cannot_be_scored_is_a_failure_of_its_own(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = importlib.import_module("benchmarks.jobs")
    (tmp_path / "results.json").write_text("{}")
    done = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    def probe(folder: Path) -> dict[str, Any]:
        raise ValueError("the test split is gone")

    job = jobs.Job("a", "pretrain.py", Run("t", model={}, data={}, training={}), probe=probe)
    assert "could not be scored: the test split is gone; its folder" in jobs.train(job, tmp_path)


def test_scores_of_the_test_split_stand_beside_the_others(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: ModuleType = importlib.import_module("benchmarks.training")
    without = shared.train
    test = {"test_bits_per_byte": 1.25, "test_bits_per_byte_longer": 1.125}
    monkeypatch.setattr(shared, "train", lambda job, folder: {**without(job, folder), **test})
    script.main(command(recipe, tmp_path / "out", "--max-seconds", "9", "--rate-factors", "1"))
    row = next(line for line in (tmp_path / "out" / "results.md").read_text().splitlines() if "| tiny" in line)
    assert [cell.strip() for cell in row.split("|")][4:7] == ["3.000", "1.250", "1.125"]
    assert all(job.probe is not None for job in trained)


def test_results_of_a_folder_are_of_as_much_text(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path
) -> None:
    options = ["--max-seconds", "9", "--rate-factors", "1"]
    (tmp_path / "out").mkdir()
    scored = tmp_path / "out" / "scored.json"
    scored.write_text('{"reduced": 100}', encoding="utf-8")  # of a command that was stopped before it scored any
    script.main(command(recipe, tmp_path / "out", *options, "--test-bytes", "0"))
    assert json.loads(scored.read_text(encoding="utf-8")) == {"reduced": 0}
    script.main(command(recipe, tmp_path / "out", *options, "--test-bytes", "0", "--seeds", "0", "1"))
    with pytest.raises(SystemExit, match=r"0 bytes of the test text are scored in .*out, and all bytes would be now"):
        script.main(command(recipe, tmp_path / "out", *options))
    with pytest.raises(SystemExit, match=r"this command leaves out seed 1\."):
        script.main(command(recipe, tmp_path / "out", *options, "--overwrite"))
    script.main(command(recipe, tmp_path / "out", *options, "--costs"))
    script.main(command(recipe, tmp_path / "out", *options, "--fast"))  # whose results are of another size
    script.main(command(recipe, tmp_path / "other", *options))


def test_arguments_of_the_script_are_no_fields_of_the_configuration(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path
) -> None:
    fields = ["on_divergence=ignore", "state_segments=4"]  # of both scripts, and of pretrain.py alone
    typed = ["--no-plain", "--variant", "a", *fields, "--rate-factors", "1", "--max-seconds", "9"]
    script.main(command(recipe, tmp_path / "out", *typed))
    training = trained[0].run.training
    assert (training["on_divergence"], training["state_segments"]) == ("ignore", 4)
    assert not {"on_divergence", "state_segments"} & trained[0].run.model["config_overrides"].keys()


def test_points_of_seeds_are_drawn_at_their_mean_seconds(script: ModuleType) -> None:
    report = importlib.import_module("benchmarks.recipes.report")
    seconds = {("tnn", 0): (10.0, 20.0), ("tnn", 1): (12.0, 26.0, 30.0), ("ipa", 0): (5.0,)}
    curves = [
        Result(
            task="language modeling",
            model=model,
            metric="bits_per_byte",
            value=1 / at,
            seed=seed,
            setting={"seconds": at},
        )
        for (model, seed), of_seed in seconds.items()
        for at in of_seed
    ]
    aligned = {(r.model, r.seed, r.setting["seconds"]): r.value for r in report.at_mean_seconds(curves[::-1])}
    assert aligned == {
        ("tnn", 0, 11): 1 / 10,
        ("tnn", 1, 11): 1 / 12,
        ("tnn", 0, 23): 1 / 20,
        ("tnn", 1, 23): 1 / 26,
        ("tnn", 1, 30): 1 / 30,
        ("ipa", 0, 5): 1 / 5,
    }


def test_rates_of_masked_models_are_chosen_by_the_loss_of_masked_tokens(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: ModuleType = importlib.import_module("benchmarks.training")
    of_causal_models = shared.train

    def train(job: Any, folder: Path) -> dict[str, Any]:
        found = of_causal_models(job, folder)
        if job.run.model["objective"] == "masked":
            found["evaluation"] = {"token_loss": 3 * found["evaluation"]["bits_per_byte"]}
        return dict(found)

    monkeypatch.setattr(shared, "train", train)
    masked = recipe.with_name("gaps.yaml")
    masked.write_text(RECIPE.replace("objective: causal", "objective: masked"))
    options = ["--recipe", str(recipe), str(masked), "--max-seconds", "9", "--seeds", "0", "1"]
    report = script.main(["recipes", *options, "--output-dir", str(tmp_path / "out")])
    again = [job for job in trained if job.run.seed == 1]
    assert [(job.labels["model"], job.labels["setting"]["rate_factor"]) for job in again] == [
        ("tiny", 2.0),
        ("gaps", 2.0),
    ]
    losses = {
        (r.model, r.metric)
        for r in report.results
        if r.get("seconds") is None and r.metric in ("bits_per_byte", "token_loss")
    }
    assert losses == {("tiny", "bits_per_byte"), ("gaps", "token_loss")}
    text = (tmp_path / "out" / "results.md").read_text()
    assert "| gaps   | as the recipe |     2.0 |        6.015 |" in text
    assert (tmp_path / "out" / "token_loss.png").is_file() and (tmp_path / "out" / "bits_per_byte.png").is_file()


def test_what_a_variant_changes_is_told_seed_by_seed() -> None:
    report = importlib.import_module("benchmarks.recipes.report")
    losses = {"as the recipe": {0: 2.0, 1: 2.5, 2: 3.0}, "wide": {0: 1.9, 1: 2.6, 2: 2.7}, "deep": {0: 1.5, 3: 9.0}}
    results = [
        Result(task="t", model="tnn", metric="bits_per_byte", value=value, seed=seed, setting={"variant": variant})
        for variant, of_seed in losses.items()
        for seed, value in of_seed.items()
    ]
    wide, deep = report.differences(results)
    assert (wide["variant"], wide["seeds"], deep["variant"], deep["seeds"]) == ("wide", 3, "deep", 1)
    assert wide["mean"] == pytest.approx(-0.1) and wide["spread"] == pytest.approx(0.2)
    assert deep["mean"] == pytest.approx(-0.5) and deep["spread"] is None
    assert report.differences([result for result in results if result.setting["variant"] == "wide"]) == []


@pytest.mark.parametrize(("evaluations", "strategy"), [(4, "steps"), (1, "no")])
def test_evaluations_of_a_training_can_be_fewer(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path, evaluations: int, strategy: str
) -> None:
    script.main(command(recipe, tmp_path / "out", "--max-seconds", "9", "--evaluations", str(evaluations)))
    for job in trained:
        assert (job.run.training["eval_strategy"], job.run.training["eval_steps"]) == (strategy, 1 / evaluations)
        assert job.run.training["save_steps"] == min(1 / evaluations, 0.5)  # 1 would be every update


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--variant", "muon"], "the variant muon changes nothing"),
        (["--variant", "optim=muon"], "'optim=muon' cannot be the name of a variant"),
        (["--variant", "a", "x=1", "--variant", "a", "x=2"], "'a' cannot be the name"),
        *((["--variant", name, "decay=0.5"], "by which its folder of runs is called") for name in WRONG_NAMES),
        (["--variant", "a", "max_steps=5", "seed=1"], "the variant a says max_steps, seed, which the benchmark"),
        (["--no-plain"], "--no-plain leaves nothing"),
        (["--rate-factors", "1", "0"], "--rate-factors must be positive"),
        (["--rate-factors", "1", "1"], r"--rate-factors names 1\.0 twice"),
        (["--seeds", "0", "0"], "--seeds names 0 twice: 0 0"),
        (["--evaluations", "0"], "--evaluations must be positive"),
        (["--test-bytes", "-1"], "--test-bytes must be 0 or more"),
        (["--max-seconds", "-1"], "--max-seconds must be positive"),
        (["--training", "learning_rate=1e-3"], "--training says learning_rate, which would be the same"),
        (["--training", "use_cpu=true", "max_steps=5"], "--training says max_steps"),
        (["--training", "save_steps=5"], "--training says save_steps for every run, and the benchmark itself says it"),
        (
            ["--variant", "a", "weight_decay=0.3", "--training", "weight_decay=0.1"],
            "--training says weight_decay for every run, and the variant a says it: leave one out",
        ),
        (
            ["--variant", "a", "decay=0.5", "--config-overrides", "decay=0.9"],
            "--config-overrides says decay for every run, and the variant a says it",
        ),
        (["--training", "use_cpus=true"], r"unknown key 'use_cpus'; did you mean use_cpu\?"),
        (["--training", "weight_decay=much"], "invalid float value: 'much'"),
        (["--config-overrides", "hiden_size=3"], r"no field 'hiden_size'; did you mean hidden_size\?"),
        (["--variant", "a", "optm=muon"], r"the variant a says optm: no training .*; did you mean optim\?"),
        (["--variant", "a", "decays=0.5"], r"the variant a says decays: .*; did you mean decay\?"),
        (["--variant", "a", "optim=muonn"], "--optim muonn is unknown; did you mean muon"),
        (["--seeds", "-1"], "--seed is -1"),
        (["--time-in-turns", "2", "--training", "use_cpus=true"], "did you mean use_cpu"),
    ],
)
def test_what_makes_no_sense_is_refused(
    script: Any, trained: list[Any], recipe: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        script.main(command(recipe, tmp_path / "out", *more))
    assert not trained and not list((tmp_path / "out").rglob("run.json"))  # no process was started


def test_a_stream_without_validation_data_is_refused(script: Any, trained: list[Any], tmp_path: Path) -> None:
    recipe, text = tmp_path / "stream.yaml", tmp_path / "a.txt"
    text.write_text("some text\n" * 100)
    for data in (f'train_file: ["{text}"]', f'dataset: "{text}"'):
        recipe.write_text(RECIPE.replace('dataset: "embedded:python-stdlib"', f"{data}, streaming: true"))
        with pytest.raises(SystemExit, match=r"stream\.yaml streams data without a validation split.*validation_file"):
            script.main(command(recipe, tmp_path / "out"))
    assert not trained
    recipe.write_text(recipe.read_text().replace("streaming: true", f'streaming: true, validation_file: ["{text}"]'))
    script.main(command(recipe, tmp_path / "out", "--test-bytes", "0"))
    assert trained
