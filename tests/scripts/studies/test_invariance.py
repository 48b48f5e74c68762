"""The study of invariance: differences beyond rounding nowhere, and none in a fixed order."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import hf_seqmix
from hf_seqmix.training.result_files import read_results

PATH = Path(hf_seqmix.__file__).parent.parent / "scripts" / "studies" / "invariance.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("invariance", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["invariance"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_differences_are_rounding_and_none_in_a_fixed_order(script, tmp_path, capsys):
    sizes = {"--hidden-size": "16", "--length": "64", "--rounds": "1", "--threads": str(torch.get_num_threads())}
    settings = [word for pair in sizes.items() for word in pair]
    rows = script.main(["--families", "tnn", "--dtypes", "float32", *settings, "--output-dir", str(tmp_path)])
    compared = [name for name in script.COLUMNS if name not in ("case", "direction", "dtype", "fixed")]
    assert {row["fixed"] for row in rows} == {True, False}
    for row in rows:
        differences = [row[name] for name in compared if name in row]
        assert len(differences) == (9 if row["direction"] == "causal" else 4)
        assert max(differences) == 0 if row["fixed"] else 0 < max(differences) < 100
    assert "| tnn" in capsys.readouterr().out
    results = read_results(tmp_path / "invariance.jsonl")
    assert {result.metric for result in results} >= {"batch", "left", "call_ratio", "step_ratio"}


def test_too_few_tokens_are_refused(script, tmp_path):
    with pytest.raises(SystemExit, match="--length is 9; it must be at least 64"):
        script.main(["--length", "9", "--output-dir", str(tmp_path)])


def test_ulps_count_units_of_the_last_place_of_the_largest(script):
    expected = torch.tensor([1.0, 0.25])
    actual = torch.stack([torch.nextafter(expected[0], torch.tensor(2.0)), expected[1]])
    assert script.ulps([actual], [expected]) == 1
    assert script.ulps([expected], [expected]) == 0
