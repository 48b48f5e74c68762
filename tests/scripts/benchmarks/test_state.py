"""Damaged files of an output folder are named."""

import argparse
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.parametrize("content", ['{"dtype": "bfl', "", "[]"])
@pytest.mark.parametrize("name", ["precision.json", "scored.json", "timings.json"])
def test_a_damaged_file_is_named(
    script_module: Callable[[str], ModuleType], tmp_path: Path, name: str, content: str
) -> None:
    arguments = argparse.Namespace(output_dir=tmp_path, size="fast", overwrite=False, training=[])
    readers: dict[str, Callable[[], object]] = {
        "precision.json": lambda: script_module("benchmarks.training").precision_of(arguments),
        "scored.json": lambda: script_module("benchmarks.results").keep_test_bytes(arguments, 1),
        "timings.json": lambda: script_module("benchmarks.equal_seconds").timings_table(tmp_path),
    }
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name} (is not JSON|holds a list).*: delete it; .*\.$"):
        readers[name]()


def test_the_precision_of_a_damaged_run_is_named(script_module: Callable[[str], ModuleType], tmp_path: Path) -> None:
    run = tmp_path / "runs" / "tnn"
    run.mkdir(parents=True)
    (run / "precision.json").write_text("")
    arguments = argparse.Namespace(output_dir=tmp_path, training=[])
    with pytest.raises(ValueError, match=r"tnn.precision\.json is not JSON"):
        script_module("benchmarks.training").precision_of(arguments)
