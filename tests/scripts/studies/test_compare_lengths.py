"""The comparison at several lengths, as its users run it."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import datasets
import pytest

from hf_seqmix.training.result_files import read_results


@pytest.fixture(scope="module")
def script(study: Callable[[str], ModuleType]) -> ModuleType:
    return study("compare_lengths")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    files = []
    for index, split in enumerate(("train", "validation", "test")):
        path = tmp_path / f"{split}.txt"
        path.write_text(f"Where is number {index}? Here is number {index}!\n" * 20, encoding="utf-8")
        files += [f"--{split}-file", str(path)]
    sizes = ["--steps", "2", "--batch-size", "2", "--eval-blocks", "4", "--hidden-size", "16", "--num-layers", "1"]
    sweep = ["--learning-rates", "1e-3", "--extend-sweep", "0", "--seeds", "3", "4", "--tokenizer", "bpe:270"]
    return [*files, *sizes, *sweep, "--timing-rounds", "1", "--output-dir", str(tmp_path / "out")]


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_each_length_is_compared_and_timed(script: ModuleType, command: list[str], tmp_path: Path) -> None:
    rows = script.main(["--models", "tnn", "attention", "--lengths", "24", "12", *command])
    assert [(row["length"], row["model"]) for row in rows] == [
        (length, model) for length in (12, 24) for model in ("tnn", "attention")
    ]
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert first["percent"] == 0 and first["time_ratio"] == 1
        assert len(second["by_seed_percent"]) == second["num_seeds"] == 2
        assert second["step_ms"] > 0
        assert len(second["by_seed_recall_gap"]) == len(second["by_seed_other_gap"]) == 2
        assert first["recall_gap"] == 0 and second["recall_gap"] != 0 and 0 < second["recalled_tokens"] < 1
        # The mean of the differences seed by seed is about the difference of the means.
        assert second["percent"] == pytest.approx(
            100 * (second["bits_per_byte"] / first["bits_per_byte"] - 1), abs=0.5
        )
    saved = read_results(tmp_path / "out" / "lengths.jsonl")
    kept = {(r.setting["length"], r.model): r.value for r in saved if r.metric == "bits_per_byte"}
    assert kept == {(row["length"], row["model"]): row["bits_per_byte"] for row in rows}
    assert str(tmp_path) not in (tmp_path / "out" / "lengths.jsonl").read_text(encoding="utf-8")
    assert (tmp_path / "out" / "lengths.png").stat().st_size > 10_000
    assert (tmp_path / "out" / "length-12" / "results.jsonl").is_file()


@pytest.mark.slow
def test_every_length_may_have_equal_tokens(script: ModuleType, command: list[str], tmp_path: Path) -> None:
    equal = ["--batch-tokens", "48", "--eval-tokens", "24"]
    script.main(["--models", "attention", "opt", "--lengths", "12", "24", *command, *equal])
    for length, batch, blocks in ((12, 4, 2), (24, 2, 1)):
        runs = read_results(tmp_path / "out" / f"length-{length}" / "results.jsonl")
        assert {run.run.training["per_device_train_batch_size"] for run in runs if run.run} == {batch}
        whole = [run for run in runs if run.metric == "num_tokens" and "distance" not in run.setting]
        predicted = {run.value for run in whole if run.setting["split"] == "test"}
        assert predicted == {blocks * (length - 1)}
    table = (tmp_path / "out" / "lengths.md").read_text(encoding="utf-8")
    assert table.startswith("2 updates of 48 tokens")


def test_a_length_given_twice_is_refused(script: ModuleType, command: list[str]) -> None:
    with pytest.raises(SystemExit, match="--lengths names 12 twice"):
        script.main(["--models", "tnn", "--lengths", "12", "12", *command])


def test_an_error_names_the_command_that_was_given(script: ModuleType, command: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"^compare_lengths\.py: ski_tnn is bidirectional"):
        script.main(["--models", "ski_tnn", "--lengths", "12", *command])


def test_bad_lengths_are_refused(script: ModuleType, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["--lengths", "1", *command])
    assert "lengths must be at least 2" in capsys.readouterr().err
