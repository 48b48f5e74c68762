"""The experiments of approximation theory: resumed, tabled, with floors beside."""

import importlib.util
import sys
from pathlib import Path

import pytest

import hf_seqmix
from hf_seqmix.training.result_files import read_results

PATH = Path(hf_seqmix.__file__).parent.parent / "scripts" / "studies" / "approximation.py"
FEW = ["--rows", "16", "--test-rows", "32", "--max-steps", "10", "--seeds", "0", "1"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("approximation", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["approximation"] = module
    spec.loader.exec_module(module)
    return module


def test_alterations_have_floors_and_runs_are_kept(script, tmp_path, capsys, monkeypatch):
    models = ["--models", "rnn", "rnn, solved", "tnn", "ski_tnn"]
    command = ["order", *models, "--kernels", "exponential", "--length", "20", *FEW, "--output-dir", str(tmp_path)]
    rows = script.main(command)
    assert [row["alteration"] for row in rows] == [
        "original",
        "permuted inputs",
        "permuted kernel",
        "mixed",
        "mixed with look-ahead",
    ]
    by_name = {row["alteration"]: row for row in rows}
    # A causal target is within reach of a causal predictor, and the readout of a network of 128 states reaches it.
    assert by_name["original"]["causal_linear"] < 1e-12
    assert by_name["original"]["rnn, solved"] < 1e-6 < by_name["permuted inputs"]["causal_linear"]
    assert by_name["permuted inputs"]["rnn, solved"] > 0.9 * by_name["permuted inputs"]["causal_filter"]
    assert "ski_tnn" not in by_name["original"] and by_name["permuted inputs"]["ski_tnn"] > 0
    assert "| mixed with look-ahead" in capsys.readouterr().out
    results = read_results(tmp_path / "order.jsonl")
    assert {result.seed for result in results if result.metric == "test_error" and result.model == "tnn"} == {0, 1}
    monkeypatch.setattr(script, "train_on_target", None)  # a second call reads the file
    assert script.main(command) == rows


def test_errors_of_head_sizes_are_fitted(script, tmp_path):
    command = ["rate", "--exponents", "1", "--ranks", "2", "9", "--head-sizes", "1", "2", "4", *FEW]
    rows = script.main([*command, "--output-dir", str(tmp_path)])
    assert [(row["rank"], row["head_size"]) for row in rows] == [(r, m) for r in (2, 9) for m in (1, 2, 4)]
    text = (tmp_path / "rate.md").read_text(encoding="utf-8")
    assert "1 to 4" in text  # sizes below the rank 9; too few lie below 2
    assert (tmp_path / "rate.png").stat().st_size > 5000


def test_what_makes_no_sense_is_refused(script, tmp_path):
    with pytest.raises(SystemExit, match=r"approximation.py: max_steps"):
        script.main(["rate", "--max-steps", "0", "--output-dir", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"approximation.py: length 9 has no two ends of 10 tokens"):
        script.main(["order", "--length", "9", "--output-dir", str(tmp_path)])
