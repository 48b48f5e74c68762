"""What benchmarks that train share: the precision of an output folder."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hf_seqmix.training import precision
from hf_seqmix.training.results import group_results
from hf_seqmix.training.run import Run


@pytest.fixture
def training(
    script_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> tuple[ModuleType, list[dict[str, Any]]]:
    """The module, and the timings of bfloat16."""
    module = script_module("benchmarks.training")
    timed: list[dict[str, Any]] = []

    def speedup(*_: Any, **told: Any) -> float:
        timed.append(told)
        return 1.3 if len(timed) == 1 else 0.9

    monkeypatch.setattr(module, "default_device", lambda: "cpu")
    monkeypatch.setattr(precision, "bfloat16_speedup", speedup)
    return module, timed


def told(folder: Path, *words: str) -> argparse.Namespace:
    scripts = {"pretrain.py": SimpleNamespace(parse_arguments=lambda words: None)}
    common = {"size": "reduced", "costs": False, "overwrite": False, "benchmark": "corpora", "scripts": scripts}
    return argparse.Namespace(output_dir=folder, training=list(words), **common)


def test_the_precision_is_chosen_once(training: tuple[ModuleType, list[Any]], tmp_path: Path) -> None:
    module, timed = training
    for _ in range(2):
        assert module.precision_of(told(tmp_path), width=160)["dtype"] == "bfloat16"
    assert [each["width"] for each in timed] == [160]
    path = tmp_path / precision.PRECISION_FILE
    assert json.loads(path.read_text(encoding="utf-8"))["speedup"] == 1.3
    path.write_text('{"dtype": "float32", "speedup": 0.5}')  # as earlier versions wrote
    assert module.precision_of(told(tmp_path))["dtype"] == "float32"


def test_the_choice_of_an_earlier_run_holds(training: tuple[ModuleType, list[Any]], tmp_path: Path) -> None:
    module, timed = training
    run = tmp_path / "runs" / "tnn" / "seed-0-12345678"
    run.mkdir(parents=True)
    (run / precision.PRECISION_FILE).write_text('{"dtype": "float32", "reason": "timed"}')
    assert module.precision_of(told(tmp_path))["dtype"] == "float32" and not timed


def test_all_runs_of_a_folder_have_one_precision_by_which_results_are_not_known(
    script_module: Callable[[str], ModuleType],
    training: tuple[ModuleType, list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, timed = training
    jobs = script_module("benchmarks.jobs")
    began = []

    def script(words: list[str], **_: Any) -> Any:
        folder = Path(words[words.index("--output-dir") + 1])
        record = folder / precision.PRECISION_FILE
        began.append((folder.parts[-2:], json.loads(record.read_text())["dtype"] if record.is_file() else None))
        (folder / "results.json").write_text("{}")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(jobs.subprocess, "run", script)

    def job(name: str, bf16: Any, **more: Any) -> Any:
        model = {"model_type": "tnn", "config_overrides": {"hidden_size": 96}}
        return jobs.Job(name, "pretrain.py", Run("t", model, {}, {"bf16": bf16}), **more)

    tried = [job("a", "auto"), job("b", "auto", before=job("pretraining", "auto")), job("c", False)]
    keys = [each.key("corpora", tmp_path) for each in tried]
    report = module.train_all(
        told(tmp_path), tried, lambda found, shared: group_results({"n": 1}, task="t", model="m")
    )
    assert not report.failures and [dtype for _, dtype in began] == ["bfloat16"] * 3 + [None]
    assert [each["width"] for each in timed] == [96]
    assert all(module.ResultFile(tmp_path / "runs.jsonl").get(key) for key in keys)  # as those of earlier versions
    [of_second] = (tmp_path / "runs").glob("b-*")
    interrupted = of_second / precision.PRECISION_FILE
    interrupted.write_text('{"dtype": "float32"}')
    jobs.train(module.with_precision(told(tmp_path), tried)[1], of_second)
    assert began[-1] == (of_second.parts[-2:], "float32")  # its own
