"""The benchmark of products runs, checks before it times, and writes what it says."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import hf_seqmix
from hf_seqmix.ops.short_conv import short_conv_dense
from hf_seqmix.ops.ski import InducingGrid, ski_matmul_dense

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("benchmark_ops")


SMALL = ["--lengths", "16", "33", "--channels", "3", "--points", "20", "--taps", "5", "--rounds", "2"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runs_and_writes(script: ModuleType, tmp_path: Path, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = script.main([*SMALL, "--dtype", dtype, "--output-dir", str(tmp_path), "--together"])
    expected = [("toeplitz", 16), ("toeplitz", 33), ("ski", 16), ("ski", 33)]
    assert [(row["op"], row["length"]) for row in rows] == expected
    written = json.loads((tmp_path / "benchmark_ops.json").read_text())
    assert written["rows"][1]["vs_strided"] == rows[1]["vs_strided"] > 0
    assert written["rows"][3]["vs_toeplitz"] == rows[3]["vs_toeplitz"] > 0
    assert set(rows[3]["errors"]) == {"ours", "rfft", "toeplitz"}
    assert str(tmp_path) not in json.dumps(written)
    assert (tmp_path / "benchmark_ops.png").stat().st_size > 5_000
    printed = capsys.readouterr().out
    assert "vs strided" in printed and "vs toeplitz" in printed
    assert (tmp_path / "benchmark_ops.md").read_text() == printed


def test_rivals_get_a_process_of_their_own(script: ModuleType, tmp_path: Path) -> None:
    arguments = ["--ops", "ski", "--lengths", "8", "--channels", "2", "--points", "4", "--rounds", "1"]
    [row] = script.main([*arguments, "--output-dir", str(tmp_path)])
    assert row["vs_rfft"] == row["rfft_ms"] / row["ours_ms"]
    assert row["toeplitz_ms"] > 0


@pytest.mark.parametrize("op", ["toeplitz", "ski"])
def test_a_wrong_result_is_not_timed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    right = script.CANDIDATES[op]["ours"]
    wrong = right._replace(product=lambda *tensors: right.product(*tensors) * 1.001)
    monkeypatch.setitem(script.CANDIDATES, op, script.CANDIDATES[op] | {"ours": wrong})
    arguments = ["--ops", op, "--lengths", "8", "--channels", "2", "--together", "--output-dir", str(tmp_path)]
    with pytest.raises(RuntimeError, match=f"{op}: ours is wrong at length 8"):
        script.main(arguments)
    assert not list(tmp_path.iterdir())


def test_candidates_agree(script: ModuleType) -> None:
    x, kernel = torch.randn(2, 3, 10, dtype=torch.float64), torch.randn(3, 10, dtype=torch.float64)
    expected = hf_seqmix.toeplitz_matmul_dense(x, kernel)
    torch.testing.assert_close(script.rfft_product(x, kernel), expected)
    torch.testing.assert_close(script.strided_product(x.mT, kernel.mT).mT, expected)
    two_sided = torch.randn(3, 19, dtype=torch.float64)
    expected = hf_seqmix.toeplitz_matmul_dense(x, two_sided, causal=False)
    torch.testing.assert_close(script.two_sided_reference(x, two_sided), expected)


def test_the_reference_of_ski_is_its_definition(script: ModuleType) -> None:
    x, taps, kernel = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 3, 11), (3, 5), (3, 7)))
    expected = short_conv_dense(x, taps) + ski_matmul_dense(x, kernel, InducingGrid(11, 4))
    torch.testing.assert_close(script.ski_reference(x, taps, kernel), expected)


@pytest.mark.parametrize("more", [["--lengths", "1"], ["--taps", "4"], ["--points", "1"], ["--rounds", "0"]])
def test_wrong_arguments_are_refused(script: ModuleType, tmp_path: Path, more: list[str]) -> None:
    with pytest.raises(SystemExit):
        script.main([*SMALL, *more, "--output-dir", str(tmp_path)])
