"""Gaps of two models at classes of tokens, read from results alone."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from hf_seqmix.training.result_files import read_results, write_results
from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run

CLASSES = {("0-1", "0-1"): 10, ("10-100", "0-1"): 20, ("10-100", "1-16"): 5, ("1000-", "1-16"): 15}


@pytest.fixture(scope="module")
def script(study: Callable[[str], ModuleType]) -> ModuleType:
    return study("pair_gaps")


def results_of(model: str, seed: int, rate: float, validation: float, losses: dict[tuple[str, str], float]):
    config = {"name": model, "config_overrides": {"hidden_size": 8}}
    run = Run("lm-causal", config, {"block_size": 16}, {"learning_rate": rate}, seed=seed)
    shared = {"seed": seed, "run": run, "command": "x"}
    setting = {"learning_rate": rate}
    yield Result("lm-causal", model, "token_loss", validation, setting=setting | {"split": "validation"}, **shared)
    for (count, distance), loss in losses.items():
        where = setting | {"split": "test", "train_count": count, "distance": distance}
        yield Result("lm-causal", model, "token_loss", loss, setting=where, **shared)
        yield Result("lm-causal", model, "num_tokens", CLASSES[count, distance], setting=where, **shared)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    flat = dict.fromkeys(CLASSES, 3.0)
    lines = []
    for seed in (0, 1):
        lines += results_of("ours", seed, 0.01, 2.0, flat | {("10-100", "1-16"): 4.0 + seed, ("1000-", "1-16"): 2.0})
        lines += results_of("theirs", seed, 0.01, 2.0, flat)
    lines += results_of("ours", 0, 0.02, 2.5, dict.fromkeys(CLASSES, 9.0))  # a worse rate, which is not taken
    write_results(tmp_path / "results.jsonl", lines)
    return tmp_path / "results.jsonl"


def test_classes_are_weighed_by_tokens_and_taken_at_the_best_rate(script: ModuleType, file: Path) -> None:
    command = ["--results", str(file), "--model", "ours", "--against", "theirs"]
    (row,) = script.main([*command, "--output-dir", str(file.parent / "out")])
    assert (row["length"], row["channels"], row["num_seeds"]) == (16, 8, 2)
    gaps = {name: list(by_seed.values()) for name, by_seed in row["by_seed_gap"].items()}
    assert gaps["recall"] == pytest.approx([1.0, 2.0])  # repeated, and rarer than 100 times
    assert gaps["others"] == pytest.approx([-15 / 45] * 2)
    assert gaps["10-100"] == pytest.approx([5 / 25, 10 / 25])
    assert gaps["0-1"] == [0.0, 0.0] and gaps["1000-"] == pytest.approx([-1.0, -1.0])
    assert row["recall"] == "+1.500 ± 0.707"
    assert gaps["back 1-16"] == pytest.approx([1.0, 2.0])  # the only recalled ones
    table = (file.parent / "out" / "pair-gaps.md").read_text(encoding="utf-8")
    assert "1-16 tokens back" in table and "| +1.500 ± 0.707 " in table.partition("how far back")[2]
    kept = read_results(file.parent / "out" / "pair-gaps.jsonl")
    wanted = {"tokens": "recall", "length": 16, "channels": 8, "against": "theirs"}
    found = {each.seed: each.value for each in kept if wanted.items() <= dict(each.setting).items()}
    assert found == pytest.approx({0: 1.0, 1: 2.0})


def test_runs_of_other_trainings_are_refused(script: ModuleType, file: Path) -> None:
    kept = read_results(file)
    longer = [dataclasses.replace(each, run=dataclasses.replace(each.run, training={"max_steps": 4})) for each in kept]
    write_results(file.with_name("other.jsonl"), [*kept, *longer[:1]])
    command = ["--results", str(file.with_name("other.jsonl")), "--model", "ours", "--against", "theirs"]
    with pytest.raises(SystemExit, match=r"differ in more than model, rate and seed: .*max_steps is 4 and null"):
        script.main([*command, "--output-dir", str(file.parent)])


def test_a_model_that_is_not_there_is_named(script: ModuleType, file: Path) -> None:
    for names in (["--model", "ours", "--against", "nobody"], ["--model", "nobody", "--against", "ours"]):
        with pytest.raises(SystemExit, match=r"no model 'nobody' with a validation loss; .*there: ours, theirs"):
            script.main(["--results", str(file), *names, "--output-dir", str(file.parent)])
