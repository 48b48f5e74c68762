"""The leaderboard: equal models, equal conditions, what is trained once and again, and what the report shows."""

import importlib
import json
import math
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from hf_seqmix.models.heads import SeqMixForCausalLM
from hf_seqmix.training.results import Result

SCRIPTS = Path(__file__).resolve().parents[4] / "scripts"


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("run_benchmarks")


@pytest.fixture(scope="module")
def parts(script: Any) -> Any:
    """The modules of the benchmark, by their names."""
    names = ("models", "runs", "tasks", "scoring", "costs", "report", "plots")
    return {name: importlib.import_module(f"benchmarks.leaderboard.{name}") for name in names}


@pytest.mark.parametrize(
    ("objective", "share"),
    [("causal", slice(0, None, 4))]
    + [pytest.param(objective, slice(None), marks=pytest.mark.slow) for objective in ("causal", "masked")],
)
def test_models_are_equal_in_parameters(parts: Any, objective: str, share: slice) -> None:
    models = parts["models"]
    counts: dict[str, list[int]] = {"language": [], "small": [], "wide": []}
    for name in models.names_of(objective)[share]:
        language = models.language_recipe(objective, name, 2048)["model"]
        small = models.small_recipe(objective, name, 66, 48)["model"]
        counts["language"].append(models.num_parameters(objective, language, 2048))
        counts["small"].append(models.num_parameters(objective, small, 66))
        wide = models.language_recipe(objective, name, 2048, 7)["model"]
        counts["wide"].append(models.num_parameters(objective, wide, 2048))
        sizes = [model["config_overrides"]["hidden_size"] for model in (small, language, wide)]
        assert sizes[0] < sizes[1] and sizes[2] == 7 * sizes[1]
        heads = _heads(wide["config_overrides"])
        assert len(heads) == len(_heads(language["config_overrides"]))
        assert all(48 <= sizes[2] / number <= 80 and sizes[2] / number % 8 == 0 for number in heads)
        for fields in (language["config_overrides"], small["config_overrides"], wide["config_overrides"]):
            if "attention_multiplier" in fields:
                width = fields["hidden_size"] / fields["num_attention_heads"]
                assert fields["attention_multiplier"] == pytest.approx(width**-0.5)
        mixers = language["config_overrides"].get("mixer_configs", {})
        assert set(mixers) <= set(language["config_overrides"].get("mixer_types", []))
    assert 40e6 < counts["wide"][0] < 60e6
    for numbers in counts.values():
        assert max(numbers) - min(numbers) <= 0.02 * numbers[0]
        assert all(abs(number - numbers[0]) <= 0.01 * numbers[0] for number in numbers)


@pytest.mark.parametrize(("name", "times"), [("llama_scaled", 8.0), ("gpt", None)])
def test_small_controls_of_the_library_are_drawn_for_their_width(parts: Any, name: str, times: float | None) -> None:
    model = parts["models"].small_recipe("causal", name, 66, 48)["model"]
    fields: dict[str, Any] = {**model["config_overrides"], "vocab_size": 66, "bos_token_id": None}
    config = AutoConfig.for_model(model["model_type"], **fields, pad_token_id=None, eos_token_id=None)
    drawn = AutoModelForCausalLM.from_config(config)
    matrices = [parameter for parameter in drawn.parameters() if parameter.ndim == 2]
    assert all(matrix.std().item() == pytest.approx(64**-0.5, rel=0.1) for matrix in matrices)
    assert fields.get("embedding_multiplier") == times


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_small_masked_controls_are_drawn_for_their_width(parts: Any, name: str) -> None:
    model = parts["models"].small_recipe("masked", name, 66, 48)["model"]
    fields: dict[str, Any] = {**model["config_overrides"], "vocab_size": 66, "bos_token_id": None}
    drawn = AutoModelForMaskedLM.from_config(AutoConfig.for_model(model["model_type"], **fields, pad_token_id=None))
    projections = [matrix for path, matrix in drawn.named_parameters() if "query.weight" in path or "Wqkv" in path]
    # ModernBERT draws again what is beyond two deviations.
    assert all(matrix.std().item() == pytest.approx(64**-0.5, rel=0.15) for matrix in projections) and projections


def test_inducing_points_are_at_most_one_in_four_tokens(parts: Any) -> None:
    models = parts["models"]
    for name, points in (("ski_tnn", lambda fields: fields), ("ski_tnn_attention", _ski_of)):
        small = models.small_recipe("masked", name, 34, 32)["model"]["config_overrides"]
        assert points(small)["num_inducing_points"] == 8
        language = models.language_recipe("masked", name, 2048)["model"]["config_overrides"]
        assert points(language)["num_inducing_points"] == 32


def _ski_of(fields: dict[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = fields["mixer_configs"]["ski_tnn"]
    return own


def _heads(fields: dict[str, Any]) -> list[int]:
    """All numbers of heads among the fields of a configuration and those of its mixers."""
    inner = [_heads(value) for value in fields.values() if isinstance(value, dict)]
    return [value for name, value in fields.items() if name.endswith("heads")] + [
        each for some in inner for each in some
    ]


def test_a_model_that_cannot_be_made_equal_is_named(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    models = parts["models"]
    monkeypatch.setattr(models, "TOLERANCE", 1e-7)
    with pytest.raises(ValueError, match=r"ipa cannot have the .* Leave it out of --models"):
        models.language_recipe("causal", "ipa", 2048)


@pytest.fixture
def trained(script: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs without training: best with the recipe's rates by Llama, with twice the rates by all others."""
    shared = importlib.import_module("benchmarks.training")
    timing = importlib.import_module("benchmarks.equal_seconds")
    runs = []

    def train(job: Any, folder: Path) -> dict[str, Any]:
        training, model = job.run.training, job.labels["model"]
        if training.get("max_steps") != timing.UPDATES or "costs" not in folder.parts:
            runs.append(job)
        best = 4e-3 if model == "llama" else 8e-3
        loss = 2 + abs(math.log2(training["learning_rate"] / best)) + job.run.seed / 100
        found = {
            "evaluation": {"token_loss": 2 * loss},
            "eval_loss_curve": [[5, 4 * loss], [10, 2 * loss]],
            "num_updates": training["max_steps"],
            "seconds_per_update": 0.5 if model == "llama" else 0.25,
            "train_seconds": 50.0,
            "num_parameters": 1000,
            "num_train_tokens": 160,
            "steps_per_second": 2.0,
        }
        if "tokenized" in job.run.data:
            return {**found, "by_case": dict.fromkeys(job.probe.keywords["files"], 1 / loss)}
        found["evaluation"]["bits_per_byte"] = loss
        return {**found, "by_context": {256: loss, 1024: loss + 0.5, 4096: None}}

    monkeypatch.setattr(shared, "train", train)
    monkeypatch.setattr(timing, "train", train)
    monkeypatch.setattr(importlib.import_module("benchmarks.run_costs"), "train", train)
    return runs


def command(output: Path, *more: str) -> list[str]:
    return ["leaderboard", "--fast", "--output-dir", str(output), *more]


def test_language_models_may_be_wider_and_have_other_data(script: Any, tmp_path: Path, trained: list[Any]) -> None:
    options = ["--parts", "language", "--models", "short_conv", "--rate-factors", "1", "--budgets", "seconds"]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("some text")
    data = [f"dataset={tmp_path / 'text'}", "tokenizer=bpe:512", "block_size=64"]
    script.main(command(tmp_path / "wide", *options, "--times-as-wide", "3", "--data", *data))
    script.main(command(tmp_path / "usual", *options))
    wide, usual = (job.run for job in trained)
    fields = [run.model["config_overrides"] for run in (wide, usual)]
    assert [f["hidden_size"] for f in fields] == [480, 160]
    assert [f["max_position_embeddings"] for f in fields] == [64, 256]
    assert [run.data["block_size"] for run in (wide, usual)] == [64, 256]
    assert wide.data["tokenizer"] == "bpe:512" and wide.data["dataset"] == str(tmp_path / "text")
    assert set(trained[0].contents) == {"dataset train.txt"} and not trained[1].contents


@pytest.mark.usefixtures("pictures")
def test_language_models_have_equal_seconds_and_then_equal_tokens(
    script: Any, trained: list[Any], tmp_path: Path
) -> None:
    options = ["--parts", "language", "--models", "tnn", "llama", "--seeds", "0", "1", "--max-seconds", "100"]
    report = script.main(command(tmp_path, *options))
    made = [
        (j.labels["setting"]["budget"], j.labels["model"], j.labels["setting"]["rate_factor"], j.run.seed)
        for j in trained
    ]
    assert made == [
        *[("seconds", model, factor, 0) for model in ("tnn", "llama") for factor in (0.5, 1.0, 2.0)],
        *[("seconds", "tnn", 2.0, 1), ("seconds", "llama", 1.0, 1)],
        *[("tokens", "tnn", 2.0, seed) for seed in (0, 1)],
    ]
    updates = {(j.labels["setting"]["budget"], j.labels["model"]): j.run.training["max_steps"] for j in trained}
    assert updates == {("seconds", "tnn"): 400, ("seconds", "llama"): 200, ("tokens", "tnn"): 200}
    assert len({j.run.training["bf16"] for j in trained}) == 1
    # Those of the rival are the same in both.
    rival = [r for r in report.results if r.model == "llama" and r.metric == "test_bits_per_byte"]
    assert {r.setting["budget"] for r in rival if r.setting["rate_factor"] == 1.0} == {"seconds", "tokens"}
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "equal seconds" in text and "equal tokens" in text and "test, context x 4" in text
    for name in ("causal-quality.png", "causal-lengths.png", "leaderboard.html"):
        assert (tmp_path / name).stat().st_size > 1000

    before = len(trained)
    script.main(command(tmp_path, *options, "--time-in-turns", "1"))
    assert len(trained) == before  # all was there
    script.main(command(tmp_path, *options[:3], "short_conv", *options[3:]))
    assert {job.labels["model"] for job in trained[before:]} == {"short_conv"}


def test_equal_seconds_alone(script: Any, trained: list[Any], tmp_path: Path) -> None:
    options = ["--parts", "language", "--models", "tnn", "--rate-factors", "1", "--budgets", "seconds"]
    report = script.main(command(tmp_path, *options))
    assert len(trained) == 1 and {r.setting["budget"] for r in report.results} == {"seconds"}
    with pytest.raises(SystemExit, match=r"4,000 bytes of the test text are scored in .*, and 9 bytes would be now"):
        script.main(command(tmp_path, *options, "--test-bytes", "9"))


def test_another_number_of_test_bytes_is_for_all_results_of_a_folder_at_once(
    script: Any, trained: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--parts", "language", "--rate-factors", "1", "--budgets", "seconds"]
    both = ["--models", "tnn", "llama", "--test-bytes"]
    script.main(command(tmp_path, *options, *both, "4000"))
    with pytest.raises(SystemExit, match=r"--overwrite with all that is there; this command leaves out model tnn\."):
        script.main(command(tmp_path, *options, "--models", "llama", "--test-bytes", "1000", "--overwrite"))
    assert len(trained) == 2

    # A kill after the first of two runs: the other is of the former number, and is run again.
    shared = importlib.import_module("benchmarks.training")
    train = shared.train

    def killed(job: Any, folder: Path) -> Any:
        if job.labels["model"] == "llama":
            raise KeyboardInterrupt
        return train(job, folder)

    with monkeypatch.context() as patch:
        patch.setattr(shared, "train", killed)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            script.main(command(tmp_path, *options, *both, "1000", "--overwrite"))
    before = len(trained)
    report = script.main(command(tmp_path, *options, *both, "1000"))
    assert [job.labels["model"] for job in trained[before:]] == ["llama"]
    assert {r.model for r in report.results if r.metric == "test_bits_per_byte"} == {"tnn", "llama"}


def test_models_are_timed_once_for_all_seeds(script: Any, trained: list[Any], tmp_path: Path) -> None:
    options = ["--parts", "language", "--rate-factors", "1", "--budgets", "seconds", "--models"]
    script.main(command(tmp_path, *options, "tnn"))
    path = tmp_path / "timings.json"
    timings = json.loads(path.read_text(encoding="utf-8"))
    assert [kind.rpartition("-")[0] for kind in timings] == ["tnn", "llama"]
    # As earlier versions wrote: one a first seed.
    names = {kind: f"causal/seconds/{kind.replace('-', '/factor-1/seed-0-')}" for kind in timings}
    path.write_text(json.dumps({names[kind]: [4 * trial for trial in trials] for kind, trials in timings.items()}))
    script.main(command(tmp_path, *options, "tnn", "llama", "--seeds", "1"))
    assert {
        job.run.training["max_steps"] for job in trained if job.run.seed == 1 and job.labels["model"] == "tnn"
    } == {5}


def test_updates_of_other_settings_are_said_to_be_so(script: Any, trained: list[Any], tmp_path: Path) -> None:
    options = ["--parts", "language", "--rate-factors", "1", "--budgets", "seconds", "--models"]
    script.main(command(tmp_path, *options, "tnn"))
    larger = ["--training", "per_device_train_batch_size=4"]
    with pytest.raises(
        SystemExit, match=r"of tnn, llama with other settings: give those of then \(--training, --data"
    ):
        script.main(command(tmp_path, *options, "tnn", *larger))
    for model in ("tnn", "bert"):
        with pytest.raises(SystemExit, match=r"of llama, tnn, and none of bert, .* give the --objective of then, or"):
            script.main(command(tmp_path, *options, model, "--objective", "masked"))


def test_costs_are_the_seconds_of_all_seeds(
    script: Any, trained: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--parts", "language", "--models", "tnn", "llama", "--seeds", "0", "1", "2", "--max-seconds", "720"]
    script.main(command(tmp_path, *options, "--costs"))
    assert {job.run.training["max_steps"] for job in trained} == {5}
    assert "2.0 hours in all" in capsys.readouterr().out  # two models, three rates and two more seeds
    assert not (tmp_path / "results.md").exists()


def test_models_of_a_task_learn_from_the_same_rows(script: Any, trained: list[Any], tmp_path: Path) -> None:
    options = ["--parts", "tasks", "--tasks", "needle", "recall", "--models", "tnn", "attention", "--seeds", "0", "1"]
    report = script.main(command(tmp_path, *options))
    assert len(trained) == 2 * 2 * (3 + 1)
    for task in ("needle", "recall"):
        own = [job.run for job in trained if job.run.task == task]
        assert len({json.dumps(run.data) for run in own}) == 1
        rows = datasets.Dataset.from_parquet(own[0].data["train_file"])
        assert len(rows[0]["input_ids"]) == own[0].data["block_size"]
    shares = [r for r in report.results if r.metric == "accuracy" and r.task == "recall"]
    assert {r.setting["case"] for r in shares} == {"2 pairs", "4 pairs", "8 pairs"}
    assert (tmp_path / "tasks.png").is_file()
    # Embeddings of unit variance are scaled, those that a recipe scales are not.
    scales = {j.labels["model"]: j.run.model["config_overrides"]["embedding_scale"] for j in trained}
    assert scales == {"tnn": 8.0, "attention": 8.0}


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_rows_of_every_task_are_written_once(parts: Any, tmp_path: Path, objective: str) -> None:
    tasks = parts["tasks"]
    for name in tasks.tasks_of(objective):
        files = tasks.write_rows(name, objective, 300, 20, tmp_path)
        times = {path: path.stat().st_mtime_ns for path in files.values()}
        of = tasks.TASKS[name]
        assert list(files) == ["train", "validation", *of.cases]
        for split, path in files.items():
            rows = datasets.Dataset.from_parquet(str(path))
            ids = [token for row in rows["input_ids"] for token in row]
            labels = {label for row in rows["labels"] for label in row}
            assert min(ids) >= 0 and max(max(ids), max(labels)) < of.vocab_size and len(labels) > 2
            if split in ("train", "validation"):
                assert len(rows) >= (300 if split == "train" else 20) and {len(r) for r in rows["labels"]} == {
                    of.length
                }
        assert tasks.write_rows(name, objective, 300, 20, tmp_path) == files
        assert {path: path.stat().st_mtime_ns for path in files.values()} == times


def test_words_are_classed_by_the_training_rows(parts: Any, tmp_path: Path) -> None:
    files = parts["tasks"].write_rows("repetition", "causal", 500, 30, tmp_path)
    train = datasets.Dataset.from_parquet(str(files["train"]))
    counts: dict[int, int] = {}
    for row in train["input_ids"]:
        for token in row:
            counts[token] = counts.get(token, 0) + 1
    for case, (least, below) in {
        "frequent words": (100, math.inf),
        "rare words": (1, 100),
        "words never seen": (0, 1),
    }.items():
        for labels in datasets.Dataset.from_parquet(str(files[case]))["labels"]:
            (word,) = [label for label in labels if label != -100]
            assert least <= counts.get(word, 0) < below


def test_costs_are_measured_and_kept(script: Any, parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Starting a process for each length takes longer than what is measured there.
    monkeypatch.setattr(parts["costs"], "in_fresh_process", lambda function, contest: function(contest))
    monkeypatch.setattr(parts["costs"], "NEW_TOKENS", 8)
    options = ["--parts", "costs", "--models", "tnn", "gpt", "--lengths", "16", "--prompts", "8", "40"]
    options += ["--tokens", "32"]
    report = script.main(command(tmp_path, *options))
    figures = {(r.model, r.metric, r.setting["length"]): r.value for r in report.results}
    # As typed, and not a row as by default of the size.
    assert report.results[0].run.data["tokens"] == 32
    assert {metric for _, metric, _ in figures} == {
        *("tokens_per_second", "peak_memory_mib", "prompt_ms", "token_ms", "cache_mib"),
    }
    assert all(value is not None and value > 0 for value in figures.values())
    # Keys and values of four layers, for 32 tokens more.
    grown = figures["gpt", "cache_mib", 40] - figures["gpt", "cache_mib", 8]
    assert grown == pytest.approx(4 * 2 * 160 * 32 * 4 / 2**20, rel=0.01)
    log = (tmp_path / "runs.jsonl").read_bytes()
    script.main(command(tmp_path, *options))
    assert (tmp_path / "runs.jsonl").read_bytes() == log


def test_updates_that_are_timed_are_those_of_training(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_logits(*_: Any, **__: Any) -> None:
        raise AssertionError("pretrain.py computes no logits beside a copy head's loss")

    monkeypatch.setattr(SeqMixForCausalLM, "compute_logits", no_logits)
    model = parts["models"].language_recipe("causal", "tnn_copy", 2048)["model"]
    sizes = {"vocab_size": 2048, "length": 16, "tokens": 32, "rounds": 1, "seconds": 1.0}
    contest = parts["costs"].Contest(
        {"tnn_copy": model}, objective="causal", device="cpu", threads=1, bf16=False, **sizes
    )
    assert parts["costs"].training_costs(contest)["tnn_copy"]["tokens_per_second"] > 0


def test_updates_of_other_tokens_are_measured_anew(
    script: Any, parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def costs(function: Any, contest: Any) -> dict[str, dict[str, float]]:
        return {"tnn": {"tokens_per_second": float(contest.tokens)}}

    monkeypatch.setattr(parts["costs"], "in_fresh_process", costs)
    found = []
    for tokens in ("8192", "512", "512", "8192"):
        options = ["--objective", "masked", "--parts", "costs", "--models", "tnn", "--lengths", "64"]
        report = script.main(["leaderboard", "--output-dir", str(tmp_path), *options, "--tokens", tokens])
        found.append(report.results[0].value)
    assert found == [8192, 512, 512, 8192] and len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2
    assert report.results[0].run.data == {"vocab_size": 2048}  # of the tokens that are usual


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", "ski_tnn"], "no causal form of ski_tnn; --models may be tnn"),
        (["--objective", "masked", "--tasks", "parity"], "no masked form of parity"),
        (["--models", "tnn", "tnn"], "--models names tnn twice: tnn tnn"),
        (["--rate-factors", "0"], "--rate-factors must be positive"),
        (["--test-bytes", "-1"], "--test-bytes must be 0 or more"),
        (["--parts", "costs", "--times-as-wide", "0"], "--times-as-wide must be positive; given 0"),
        (["--parts", "costs", "--tokens", "0"], "--tokens must be positive; given 0"),
        (["--config-overrides", "hidden_size=64"], "would change models after they were made equal"),
        (["--training", "learning_rate=1e-3"], "--training says learning_rate, .* scripts/recipes/leaderboard"),
        (["--training", "max_steps=3"], "--training says max_steps, .* whatever its --rate-factors and --max-seconds"),
        (["--parts", "tasks", "--times-as-wide", "7"], "models of synthetic tasks have neither: give --parts"),
        (["--data", "block_size=64"], "models of synthetic tasks have neither: give --parts"),
        (["--parts", "costs", "--data", "text_column=x"], "says text_column; allowed are dataset, tokenizer, block"),
        (["--parts", "language", "--models", "tnn", "--training", "rate=1"], "causal/seconds/tnn/factor-1/.*rate"),
        (["--parts", "tasks", "--models", "tnn", "--tasks", "copy", "--training", "rate=1"], "causal/copy/tnn/.*rate"),
        (["--parts", "costs", "--data", "tokenizer=nowhere"], "nowhere"),
        (
            ["--parts", "tasks", "--test-bytes", "9", "--tokens", "8", "--rate-factors", "1"],
            r"--test-bytes \(of language\), --tokens \(of costs\) would have no effect with --parts tasks: leave",
        ),
        (["--parts", "tasks", "--evaluations", "6"], r"--evaluations \(of language\) would have no effect"),
        (["--parts", "tasks", "--time-in-turns", "2"], r"--time-in-turns \(of language\) would have no effect"),
        (["--parts", "tasks", "costs", "--budgets", "seconds"], r"--budgets \(of language\) .* --parts tasks costs"),
        (
            ["--parts", "costs", "--rate-factors", "1"],
            r"--rate-factors \(of language and tasks\) would have no effect",
        ),
        (["--parts", "language", "--rounds", "3"], r"--rounds \(of costs\) would have no effect"),
    ],
)
def test_wrong_input_ends_with_a_message(script: Any, tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        script.main(command(tmp_path, *options))
    with pytest.raises(SystemExit, match="no published size"):
        script.main(["leaderboard", "--full", "--output-dir", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_help_offers_no_option_that_is_refused(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    offered = {}
    for benchmark in ("leaderboard", "recipes"):
        with pytest.raises(SystemExit):
            script.main([benchmark, "--help"])
        offered[benchmark] = set(re.findall("--[a-z-]+", capsys.readouterr().out))
    refused = {"--full", "--config-overrides"}
    assert refused <= offered["recipes"] and not refused & offered["leaderboard"]


def test_recall_needs_all_of_its_cases(parts: Any) -> None:
    report = parts["report"]
    shared = {"metric": "accuracy", "model": "tnn"}
    results = [
        Result(task=task, value=value, seed=seed, setting={"case": case, "rate_factor": 1.0}, **shared)
        for seed in (0, 1)
        for value, (task, case) in zip((0.2, 0.4, 0.9), report.RECALL.items(), strict=True)
    ]
    losses = [
        Result(task=task, metric="token_loss", model="tnn", value=1.0, seed=0, setting={"rate_factor": 1.0})
        for task in report.RECALL
    ]
    found = report._recall(results + losses)
    assert found["tnn"].mean == pytest.approx(0.5) and found["tnn"].spread == pytest.approx(0.0)
    assert not report._recall(results[1:3] + losses)


def test_rates_are_those_of_the_seed_that_was_swept(parts: Any) -> None:
    def result(model: str, seed: int, factor: float, loss: float) -> Result:
        return Result("t", model, "loss", loss, seed=seed, setting={"rate_factor": factor})

    swept = [result(model, 3, factor, 1 / factor) for model in ("a", "b") for factor in (1.0, 2.0)]
    others = [result("a", 1, 2.0, 0.9)]  # that of b failed
    assert parts["report"].best_factors([*swept, *others], "loss") == {"a": 2.0, "b": 2.0}


def test_a_model_with_equal_tokens_alone_is_judged_by_these(parts: Any) -> None:
    def result(model: str, budget: str, factor: float, loss: float) -> Result:
        return Result("t", model, "loss", loss, seed=0, setting={"rate_factor": factor, "budget": budget})

    both = [result("a", "seconds", 1.0, 0.5), result("a", "seconds", 2.0, 0.6), result("a", "tokens", 2.0, 0.1)]
    alone = [result("b", "tokens", 1.0, 0.9), result("b", "tokens", 4.0, 0.8)]
    assert parts["report"].best_factors([*both, *alone], "loss") == {"a": 1.0, "b": 4.0}


def test_models_of_a_task_are_in_the_order_of_that_task(parts: Any, tmp_path: Path) -> None:
    results = []
    for task, shares in {"recall": {"tnn": 0.2, "ipa": 0.9}, "copy": {"tnn": 0.8, "ipa": 0.7}}.items():
        for model, share in shares.items():
            setting = {"rate_factor": 1.0}
            shared = {"task": task, "model": model, "seed": 0, "size": "reduced"}
            results.append(Result(**shared, metric="token_loss", value=1.0, setting=setting))
            results += [
                Result(**shared, metric="accuracy", value=share, setting={**setting, "case": case})
                for case in parts["tasks"].TASKS[task].cases
            ]
    tables = {part.title.split(":")[0]: part.table for part in parts["report"]._tasks(tmp_path, results)}
    assert tables["Recall"].index("ipa") < tables["Recall"].index("tnn")
    assert tables["Copy"].index("tnn") < tables["Copy"].index("ipa")


def test_a_model_without_scores_of_long_rows_stands_last(parts: Any, tmp_path: Path) -> None:
    cases = list(parts["tasks"].TASKS["parity"].cases)
    shared = {"task": "parity", "seed": 0, "size": "reduced"}
    results = []
    for model, share, readable in (("gpt", 0.9, cases[:1]), ("bert", 0.9, []), ("tnn", 0.5, cases)):
        setting = {"rate_factor": 1.0}
        results.append(Result(**shared, model=model, metric="token_loss", value=1.0, setting=setting))
        results += [
            Result(
                **shared,
                model=model,
                metric="accuracy",
                value=share if case in readable else None,
                setting={**setting, "case": case},
            )
            for case in cases
        ]
    table = next(part.table for part in parts["report"]._tasks(tmp_path, results) if part.title.startswith("Parity"))
    assert table.index("tnn") < table.index("gpt") < table.index("bert")
