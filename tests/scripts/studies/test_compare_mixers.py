"""The comparison as its users run it: sweep, seeds, equal sizes and batches, a kill in between, wrong arguments."""

import importlib
import json
import math
import re
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
import torch
from transformers import AutoConfig

from hf_seqmix.data import associative_recall
from hf_seqmix.training.environment import file_digest
from hf_seqmix.training.result_files import ResultFile, read_results

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "studies"

SMALL = ["--steps", "2", "--batch-size", "2", "--eval-blocks", "6", "--hidden-size", "16", "--num-layers", "1"]
SHORT_SWEEP = ["--learning-rates", "1e-3", "1e-2", "--extend-sweep", "0", "--seeds", "3", "4"]


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("compare_mixers")


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


@pytest.fixture
def faked(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Runs that take no time: the loss is the distance of ln rate to ln 0.01, seeds add a little."""
    runs: list[tuple[float, int]] = []

    def train(comparison: Any, config: Any, rate: float, seed: int) -> dict[str, Any]:
        runs.append((rate, seed))
        loss = None if rate > 1 else abs(math.log(rate / 0.01)) + 0.1 * seed
        scores = {"token_loss": loss, "token_accuracy": 0.5, "perplexity": 1.0, "num_tokens": 7}
        return {
            "num_parameters": 10,
            "intermediate_size": config.intermediate_size,
            "validation": scores,
            "test": scores,
            "train_loss_curve": [],
            "train_seconds": 1.0,
            "threads": 1,
        }

    monkeypatch.setattr(comparison_runs().Comparison, "_train", train)
    return runs


def models() -> ModuleType:
    return importlib.import_module("comparison.models")


def comparison_runs() -> ModuleType:
    return importlib.import_module("comparison.runs")


def recall(folder: Path, *more: str) -> list[str]:
    return ["--task", "recall", "--output-dir", str(folder), *SMALL, *more]


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The key of each run, and the run."""
    texts = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    keys = [json.loads(text)["key"] for text in texts]
    kept = ResultFile(folder / "results.jsonl")
    run_of = importlib.import_module("comparison.results").run_of
    return [{"key": key, "result": run_of(kept.get(key) or [])} for key in keys]


@pytest.mark.usefixtures("pictures")
def test_models_are_compared_from_end_to_end(script: ModuleType, tmp_path: Path) -> None:
    report = script.main(recall(tmp_path, "--models", "tnn", "attention", *SHORT_SWEEP))
    lines = lines_of(tmp_path)
    assert len(lines) == 2 * (2 + 1)
    tnn, attention = report["results"]
    assert (tnn["model"], attention["model"]) == ("tnn", "attention")
    assert attention["num_parameters"] == pytest.approx(tnn["num_parameters"], rel=0.02)
    assert attention["intermediate_size"] > tnn["intermediate_size"]

    runs = {
        (line["key"]["model"], line["key"]["learning_rate"], line["key"]["seed"]): line["result"] for line in lines
    }
    for row in (tnn, attention):
        name, best = row["model"], row["learning_rate"]
        losses = {rate: runs[name, rate, 3]["validation"]["token_loss"] for rate in (1e-3, 1e-2)}
        assert best == min(losses, key=losses.__getitem__)
        assert row["best_at_edge"]
        values = [runs[name, best, seed]["test"]["token_loss"] for seed in (3, 4)]
        score = row["test_token_loss"]
        assert score["mean"] == pytest.approx(statistics.mean(values))
        assert score["sd"] == pytest.approx(statistics.stdev(values))
        assert score["n"] == 2
        assert 0 <= row["test_token_accuracy"]["mean"] <= 1
        assert runs[name, best, 3]["test"]["num_tokens"] == 6 * 4
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert re.search(r"\| attention \|.*\(edge\).*±", table)
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    assert str(tmp_path) not in table + (tmp_path / "results.jsonl").read_text(encoding="utf-8")


@pytest.mark.slow
def test_muon_and_nets_that_are_polynomials(script: ModuleType, tmp_path: Path) -> None:
    rates = ["--learning-rates", "1e-3", "--seeds", "0", "--models"]
    plain = script.main(recall(tmp_path, *rates, "poly-3-polynomial", "llama"))["results"]
    muon = script.main(recall(tmp_path, *rates, "poly-3-polynomial", "llama", "--optim", "muon"))["results"]
    lines = lines_of(tmp_path)
    assert len(lines) == 4
    assert [line["key"]["settings"].get("optim") for line in lines] == [None, None, "muon", "muon"]
    for before, after in zip(plain, muon, strict=True):
        assert before["num_parameters"] == after["num_parameters"]
        assert before["test_token_loss"]["mean"] != after["test_token_loss"]["mean"]
    trainings = [r.run.training for r in read_results(tmp_path / "results.jsonl") if r.metric == "train_seconds"]
    assert [training.get("muon_learning_rate") for training in trainings] == [None, None, 5e-3, 5e-3]


def test_static_norms_are_calibrated(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated = []
    runs = importlib.import_module("comparison.runs")
    own = runs.calibrate_static_norms
    monkeypatch.setattr(runs, "calibrate_static_norms", lambda *given: calibrated.append(own(*given)))
    one = ["--learning-rates", "1e-3", "--seeds", "0", "--models", "poly-3-static", "poly-3-bilinear"]
    script.main(recall(tmp_path, *one))
    assert len(calibrated) == 1


@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize("suffix", ["", "-polynomial"])
def test_degrees_by_depth_have_twelve_projections_and_equal_parameters(
    script: ModuleType, tmp_path: Path, degree: int, suffix: str
) -> None:
    options = script.parse_arguments(["--task", "recall", "--num-layers", "4", "--output-dir", str(tmp_path)])
    comparison = comparison_runs().Comparison(options)
    name = f"poly-{degree}-by-depth{suffix}"
    with torch.device("meta"):
        configs = {name: models().build_config(name, comparison.task, comparison.sizes) for name in ("tnn", name)}
        sizes = [models().build_model(config, True, 0).num_parameters() for config in configs.values()]
    assert configs[name].degree * configs[name].num_hidden_layers == 12
    assert configs[name].hidden_act == ("linear" if suffix else "silu")
    assert sizes[1] == pytest.approx(sizes[0], rel=4e-3)


@pytest.mark.parametrize(
    "share", [slice(0, None, 4), pytest.param(slice(None), marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_every_model_has_as_many_parameters(script: ModuleType, tmp_path: Path, share: slice) -> None:
    options = script.parse_arguments(["--task", "recall", "--hidden-size", "96", "--output-dir", str(tmp_path)])
    comparison = comparison_runs().Comparison(options)
    # Other scripts add hybrids of their own mixers.
    own = [name for name, (_, fields) in models().MODELS.items() if "mixer_types" not in fields]
    causal = [name for name in own if name not in models().BIDIRECTIONAL_ONLY]
    sizes = {}
    with torch.device("meta"):
        for name in ["tnn", *causal[share]]:
            config = models().build_config(name, comparison.task, comparison.sizes)
            sizes[name] = models().build_model(config, True, 0).num_parameters()
    # The feed-forward of IPA is divided among its centers: four units are the least step.
    assert sizes == {name: pytest.approx(sizes["tnn"], rel=4e-3) for name in sizes}


@pytest.mark.slow
def test_feed_forwards_of_one_width_leave_what_else_differs(script: ModuleType, tmp_path: Path) -> None:
    names = ("ipa-p-half-rank", "ipa-p", "ipa-p-double-rank")
    given = ["--task", "recall", "--hidden-size", "96", "--feed-forward", "64", "--models", *names]
    comparison = comparison_runs().Comparison(script.parse_arguments([*given, "--output-dir", str(tmp_path)]))
    assert {config.intermediate_size for config in comparison.configs.values()} == {64}
    half, whole, double = (models().build_model(comparison.configs[n], True, 0).num_parameters() for n in names)
    assert double - whole == 2 * (whole - half) > 0


def test_a_ski_tnn_has_at_most_as_many_points_as_half_of_the_positions(script: ModuleType, tmp_path: Path) -> None:
    for more, points in (([], 12), (["--block-size", "256"], 32)):
        options = script.parse_arguments(["--task", "recall-masked", "--output-dir", str(tmp_path), *SMALL[:6], *more])
        comparison = comparison_runs().Comparison(options)
        config = models().build_config("ski_tnn", comparison.task, comparison.sizes)
        assert config.num_inducing_points == points


@pytest.mark.slow  # as a run of pretrain.py and the leaderboard do by default
def test_bf16_auto_is_settled_once_a_comparison(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = importlib.import_module("hf_seqmix.training.precision")
    timed = []
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda *_, **__: timed.append(1) or 2.0)
    one = ["--models", "tnn", "--learning-rates", "1e-3", "--seeds", "3", "4", "--bf16", "auto"]
    script.main(recall(tmp_path, *one))
    record = json.loads((tmp_path / "precision.json").read_text(encoding="utf-8"))
    assert len(timed) == 1 and record["dtype"] == "bfloat16"


def test_a_llama_has_no_masked_form(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="llama is causal"):
        script.main(["--task", "recall-masked", "--models", "llama", "--output-dir", str(tmp_path), *SMALL])


@pytest.mark.parametrize(
    ("task", "metric"),
    [("lm-causal", "bits_per_byte"), pytest.param("lm-masked", "token_accuracy", marks=pytest.mark.slow)],
)
def test_text_is_scored_per_byte_or_per_masked_token(
    script: ModuleType, tmp_path: Path, task: str, metric: str
) -> None:
    files = []
    for index, split in enumerate(("train", "validation", "test")):
        path = tmp_path / f"{split}.txt"
        path.write_text(f"Where is number {index}? Caf\u00e9 {index}!\n" * 12, encoding="utf-8")
        files += [f"--{split}-file", str(path)]
    command = ["--task", task, "--models", "tnn", *files, "--tokenizer", "bpe:270", "--block-size", "16", *SMALL]
    report = script.main([*command, *SHORT_SWEEP, "--output-dir", str(tmp_path / "out")])
    written = (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8")
    assert str(tmp_path) not in json.dumps(report) + written
    for result in read_results(tmp_path / "out" / "results.jsonl"):
        assert result.run is not None and result.command
        assert result.run.seed == result.seed
        assert result.run.data["train_file"]["path"] == "DATA/train.txt"
        assert result.run.data["train_file"]["digest"] == file_digest(tmp_path / "train.txt")
        config = AutoConfig.for_model(result.run.model["model_type"], **result.run.model["config_overrides"])
        if result.metric == "num_parameters":
            assert models().build_model(config, task == "lm-causal", 0).num_parameters() == result.value
    [row] = report["results"]
    scores = [line["result"]["test"] for line in lines_of(tmp_path / "out")]
    assert row[f"test_{metric}"]["n"] == 2
    assert len({score["num_tokens"] for score in scores}) == 1  # the evaluation's masks are fixed
    if task == "lm-causal":
        for score in scores:
            nats = score["token_loss"] * score["num_tokens"]
            assert score["bits_per_byte"] == pytest.approx(nats / math.log(2) / score["num_bytes"])
            assert sum(entry["num_tokens"] for entry in score["bins"]) == score["num_tokens"]
            classes = sum(entry["token_loss"] * entry["num_tokens"] for entry in score["bins"])
            assert classes == pytest.approx(nats, rel=1e-4)
        assert row["gap"]["recall"]["mean"] == 0 and row["gap"]["tokens"]["mean"] > 0.05
    # Given again, the command trains nothing, and reads its tokenizer.
    before = (tmp_path / "out" / "results.jsonl").read_bytes()
    script.main([*command, *SHORT_SWEEP, "--output-dir", str(tmp_path / "out")])
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == before


def test_models_see_the_same_batches_and_seeds_others(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[tuple[str, int], list[torch.Tensor]] = {}
    trainer = importlib.import_module("comparison.runs").Trainer
    forward = trainer.compute_loss

    def spy(trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if model.training:
            seen.setdefault((model.config.model_type, trainer.args.seed), []).append(inputs["input_ids"].clone())
        return forward(trainer, model, inputs, *args, **kwargs)

    monkeypatch.setattr(trainer, "compute_loss", spy)
    script.main(recall(tmp_path, "--models", "tnn", "attention", "--learning-rates", "1e-3", "--seeds", "0", "1"))
    batches = {key: torch.stack(value) for key, value in seen.items()}
    assert batches["tnn", 0].shape == (2, 2, 24)
    torch.testing.assert_close(batches["tnn", 0], batches["seqmix_hybrid", 0], rtol=0, atol=0)
    torch.testing.assert_close(batches["tnn", 1], batches["seqmix_hybrid", 1], rtol=0, atol=0)
    assert not torch.equal(batches["tnn", 0], batches["tnn", 1])


def test_a_killed_comparison_goes_on_where_it_stopped(
    script: ModuleType, tmp_path: Path, faked: list[tuple[float, int]]
) -> None:
    whole = script.main(recall(tmp_path, "--models", "tnn", *SHORT_SWEEP))
    assert faked == [(1e-3, 3), (1e-2, 3), (1e-2, 4)]
    path = tmp_path / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:40], encoding="utf-8")
    again = script.main(recall(tmp_path, "--models", "tnn", *SHORT_SWEEP))
    assert faked[3:] == [(1e-2, 4)]
    assert again["results"] == whole["results"]
    # Another model, more seeds: only what is missing. Other settings: everything.
    script.main(recall(tmp_path, "--models", "tnn", "attention", *SHORT_SWEEP))
    assert len(faked) == 4 + 3
    script.main(recall(tmp_path, "--models", "tnn", *SHORT_SWEEP[:-2], "3", "4", "5"))
    assert faked[7:] == [(1e-2, 5)]
    script.main(recall(tmp_path, "--models", "tnn", *SHORT_SWEEP, "--batch-size", "3"))
    assert len(faked) == 8 + 3


@pytest.mark.parametrize(
    ("rates", "extend", "expected", "best", "at_edge"),
    [
        (["5e-3", "1e-2", "2e-2"], 2, [5e-3, 1e-2, 2e-2], 1e-2, False),
        (["2e-2", "1e-2"], 2, [1e-2, 2e-2, 5e-3], 1e-2, False),
        (["1e-4", "1e-3"], 2, [1e-4, 1e-3, 1e-2, 1e-1], 1e-2, False),
        (["1e-4", "1e-3"], 1, [1e-4, 1e-3, 1e-2], 1e-2, True),
        (["1e-4", "1e-3"], 0, [1e-4, 1e-3], 1e-3, True),
        (["1e-2"], 2, [1e-2], 1e-2, True),
        (["1e-1", "10"], 2, [1e-1, 10, 1e-3, 1e-5], 1e-3, False),
    ],
)
@pytest.mark.one_in(3)
def test_the_sweep_goes_on_beyond_its_edge(
    script: ModuleType,
    tmp_path: Path,
    faked: list[tuple[float, int]],
    rates: list[str],
    extend: int,
    expected: list[float],
    best: float,
    at_edge: bool,
) -> None:
    command = recall(tmp_path, "--models", "tnn", "--seeds", "0", "1", "--extend-sweep", str(extend))
    report = script.main([*command, "--learning-rates", *rates])
    assert faked == [*((pytest.approx(rate), 0) for rate in expected), (pytest.approx(best), 1)]
    [row] = report["results"]
    assert row["learning_rate"] == pytest.approx(best)
    assert row["best_at_edge"] is at_edge
    assert [rate for rate, _ in row["sweep"]] == pytest.approx(sorted(expected))


def test_the_gap_of_a_text_is_that_of_recalled_tokens_seed_by_seed(script: ModuleType) -> None:
    report = importlib.import_module("comparison.report")

    def entries(new: float, recalled: float) -> list[dict[str, Any]]:
        places = (([0, 1], [0, 1], new, 3), ([10, 100], [1, 16], recalled, 1))
        names = ("train_count", "distance", "token_loss", "num_tokens")
        return [dict(zip(names, place, strict=True)) for place in places]

    rows: list[dict[str, Any]] = [
        {"pairs": {0: entries(2.0, 1.0), 1: entries(2.0, 3.0)}},
        {"pairs": {0: entries(2.5, 2.0), 1: entries(2.0, 6.0)}},
        {},
    ]

    rows[0]["difference"] = rows[1]["difference"] = rows[2]["difference"] = {"n": 2}
    rows.append({"pairs": {0: entries(2.5, 2.0)}, "difference": {"n": 2}})  # a run of an earlier version is missing
    report.add_gaps(rows)
    assert "gap" not in rows[3]
    assert rows[0]["gap"]["recall"]["by_seed"] == {"0": 0.0, "1": 0.0}
    assert rows[1]["gap"]["recall"]["by_seed"] == {"0": 1.0, "1": 3.0}
    assert rows[1]["gap"]["others"]["by_seed"] == {"0": 0.5, "1": 0.0}
    assert rows[1]["gap"]["share"]["by_seed"] == {"0": pytest.approx(0.4), "1": 1.0}
    assert rows[1]["gap"]["tokens"]["mean"] == 0.25
    assert "gap" not in rows[2]
    bins = importlib.import_module("comparison.bins")
    assert bins.gap_of_bins(entries(2.0, 1.0)[:1], entries(1.0, 1.0)[:1]) == {}
    assert "common" not in bins.gap_of_bins(entries(2.0, 1.0), entries(1.0, 1.0))

    def with_common(loss: float) -> list[dict[str, Any]]:
        common = {"train_count": [1000, None], "distance": [0, 1], "token_loss": loss, "num_tokens": 2}
        return [*entries(2.0, 1.0), common]

    assert bins.gap_of_bins(with_common(1.5), with_common(1.0))["common"] == pytest.approx(0.5)


def test_differences_are_of_the_same_seed(script: ModuleType) -> None:
    rows = [
        {"test_loss": {"by_seed": {"0": 1.0, "1": 3.0, "2": 2.0}}},
        {"test_loss": {"by_seed": {"0": 1.5, "1": 3.5, "2": None}}},
    ]
    importlib.import_module("comparison.report").add_differences(rows, "loss")
    assert rows[0]["difference"]["mean"] == 0
    difference = rows[1]["difference"]
    assert (difference["mean"], difference["sd"], difference["n"]) == (0.5, 0.0, 2)


def test_a_model_that_always_diverges_is_left_out(
    script: ModuleType, tmp_path: Path, faked: list[tuple[float, int]]
) -> None:
    command = recall(tmp_path, "--models", "tnn", "--seeds", "0", "1", "--learning-rates", "2", "4")
    assert script.main(command) is None
    assert faked == [(2, 0), (4, 0)]


def test_no_run_begins_after_the_time_budget(
    script: ModuleType, tmp_path: Path, faked: list[tuple[float, int]], caplog: pytest.LogCaptureFixture
) -> None:
    assert script.main(recall(tmp_path, "--models", "tnn", *SHORT_SWEEP, "--time-budget", "0")) is None
    assert faked == []
    assert "goes on from here" in caplog.text
    script.main(recall(tmp_path, "--models", "tnn", *SHORT_SWEEP, "--time-budget", "60"))
    assert len(faked) == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--steps", "0"], "--steps is 0"),
        (["--learning-rates", "1e-3", "-1"], "must be positive"),
        (["--learning-rates", "1e-3", "nan"], "must be positive"),
        (["--seeds", "1", "1"], "--seeds names 1 twice: 1 1"),
        (["--extend-sweep", "-1"], "--extend-sweep is -1"),
        (["--feed-forward", "0"], "--feed-forward is 0"),
        (["--train-file", "a.txt"], "the task recall draws its own data: leave out --train-file"),
        (["--task", "lm-causal"], "needs text; give --train-file, --validation-file, --test-file"),
        (["--models", "ski_tnn"], "ski_tnn is bidirectional"),
        (["--block-size", "9"], "too short"),
    ],
)
def test_wrong_arguments_end_with_a_message(script: ModuleType, tmp_path: Path, more: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(message)):
        script.main(recall(tmp_path / "out", *more))


def test_generated_data_is_what_the_task_says(script: ModuleType, tmp_path: Path) -> None:
    comparison = comparison_runs().Comparison(script.parse_arguments(recall(tmp_path, "--models", "tnn")))
    expected = associative_recall(
        {"train": 4, "validation": 6, "test": 6}, num_pairs=4, vocab_size=34, length=24, causal=True
    )
    assert comparison.task.train.to_dict() == expected["train"].to_dict()
    assert comparison.task.evaluation["test"].to_dict() == expected["test"].to_dict()


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_repetition_is_scored_by_frequency_and_distance(script: ModuleType, tmp_path: Path) -> None:
    command = ["--task", "repetition", "--block-size", "48", "--models", "tnn", "attention", *SMALL, *SHORT_SWEEP]
    report = script.main([*command, "--eval-blocks", "60", "--output-dir", str(tmp_path)])
    for row in report["results"]:
        runs = [
            line["result"]["test"]
            for line in lines_of(tmp_path)
            if (line["key"]["model"], line["key"]["learning_rate"]) == (row["model"], row["learning_rate"])
        ]
        for run in runs:
            assert sum(entry["num_tokens"] for entry in run["bins"]) == run["num_tokens"] == 60
            nats = sum(entry["token_loss"] * entry["num_tokens"] for entry in run["bins"])
            assert nats / 60 == pytest.approx(run["token_loss"])
        for place, entry in enumerate(row["test_bins"]):
            assert entry["token_loss"] == pytest.approx(
                statistics.mean(run["bins"][place]["token_loss"] for run in runs)
            )
    assert (tmp_path / "bins.png").stat().st_size > 10_000


def test_bins_hold_the_rows_within_their_bounds(script: ModuleType) -> None:
    bins = importlib.import_module("comparison.bins")
    blocks = datasets.Dataset.from_dict({"train_count": [0, 0, 500, 99], "distance": [4, 7, 33, 8]})
    scores = torch.tensor([[1.0, 1, 1], [3.0, 0, 1], [math.inf, 0, 1], [0.5, 1, 1]]).numpy()
    found = {(*entry["train_count"], *entry["distance"]): entry for entry in bins.score_bins(blocks, scores)}
    assert {
        key: (entry["token_loss"], entry["token_accuracy"], entry["num_tokens"]) for key, entry in found.items()
    } == {
        (0, 1, 4, 8): (2.0, 0.5, 2),
        (1, 100, 8, 16): (0.5, 1.0, 1),
        (400, None, 32, 64): (None, 0.0, 1),
    }
    assert bins.score_bins(blocks.remove_columns("distance"), scores) == []
