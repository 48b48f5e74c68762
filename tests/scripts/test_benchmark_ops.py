"""The benchmark of the Toeplitz product runs, checks before it times, and writes what it says."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

import hf_seqmix

PATH = Path(hf_seqmix.__file__).parent.parent / "scripts" / "benchmark_ops.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("benchmark_ops", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_ops"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runs_and_writes(script, tmp_path, dtype, capsys):
    arguments = ["--lengths", "16", "33", "--channels", "3", "--rounds", "2", "--dtype", dtype, "--output-dir"]
    rows = script.main([*arguments, str(tmp_path), "--together"])
    assert [row["length"] for row in rows] == [16, 33]
    written = json.loads((tmp_path / "benchmark_ops.json").read_text())
    assert written["rows"][1]["vs_strided"] == rows[1]["vs_strided"] > 0
    assert (tmp_path / "benchmark_ops.png").stat().st_size > 5_000
    assert "vs strided" in capsys.readouterr().out


def test_a_wrong_result_is_not_timed(script, tmp_path, monkeypatch):
    wrong = dict(script.CANDIDATES, ours=(lambda x, k: script.rfft_product(x, k) * 1.001, True))
    monkeypatch.setattr(script, "CANDIDATES", wrong)
    with pytest.raises(RuntimeError, match="ours is wrong at length 8"):
        script.main(["--lengths", "8", "--channels", "2", "--together", "--output-dir", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_candidates_agree(script):
    x, kernel = torch.randn(2, 3, 10, dtype=torch.float64), torch.randn(3, 10, dtype=torch.float64)
    expected = hf_seqmix.toeplitz_matmul_dense(x, kernel)
    torch.testing.assert_close(script.rfft_product(x, kernel), expected)
    torch.testing.assert_close(script.strided_product(x.mT, kernel.mT).mT, expected)
