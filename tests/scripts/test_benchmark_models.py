"""The benchmark of layers runs, times nothing that is wrong, and its rival is the same layer computed another way."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("benchmark_models")


def test_runs_and_goes_on(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["--fast", "--together", "--lengths", "9", "--output-dir", str(tmp_path)]
    tables = script.main(command)
    assert [len(tables[name]) for name in ("layers", "paper")] == [8, 12]
    for row in [*tables["layers"], *tables["paper"]]:
        assert row["ratio"] == row["rival_ms"] / row["layer_ms"] > 0
        assert row["layer_peak_mib"] > 0
        assert row["error"] < 1e-3
    written = json.loads((tmp_path / "benchmark_models.json").read_text())
    assert len(written["rows"]) == 20
    assert str(tmp_path) not in json.dumps(written)
    for table in ("layers", "paper"):
        assert (tmp_path / f"benchmark_models_{table}.png").stat().st_size > 10_000
    monkeypatch.setattr(script, "measure", lambda *_: pytest.fail("measured again"))
    assert script.main(command) == tables


def test_published_figures_stand_beside_their_pair(script: ModuleType) -> None:
    pairs = {(p.layer.name, p.layer.causal, p.rival.name): p for p in script.paper_pairs()}
    assert pairs["fd_tnn K=3", True, "original K=6"].published_faster == {512: 0.15}
    assert pairs["fd_tnn K=3", True, "tnn K=3"].published_faster == {512: 0.10}
    assert pairs["fd_tnn K=6", False, "original K=6"].published_faster == {None: 0.80}
    ski = pairs["ski_tnn r=32 m=17", False, "original K=6"]
    assert (ski.published_faster, ski.published_memory) == ({512: 0.25, 2048: 0.30}, {512: 0.17, 2048: 0.42})


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [2, 13])
def test_the_original_is_the_same_layer(script: ModuleType, causal: bool, length: int) -> None:
    original = script.Layer("original", causal, 8, 2)
    rival, ours = (script.build(layer, length, 6) for layer in (original, original._replace(family="tnn")))
    x = torch.randn(2, length, 6)
    assert not torch.allclose(ours(x), rival(x), rtol=1e-3)
    script.copy_weights(rival, ours)
    torch.testing.assert_close(ours(x), rival(x), rtol=1e-3, atol=1e-4)  # their norms differ by an epsilon


def test_a_wrong_layer_is_not_timed(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = script.OriginalTNNLayer.forward
    monkeypatch.setattr(script.OriginalTNNLayer, "forward", lambda self, x: forward(self, x) * 1.01)
    with pytest.raises(RuntimeError, match="causal tnn K=1 differs from the original at length 9"):
        script.main(["--fast", "--together", "--lengths", "9", "--output-dir", str(tmp_path)])


def test_peak_memory_is_of_the_call(script: ModuleType) -> None:
    kept: list[torch.Tensor] = []

    def call() -> None:
        temporary = torch.zeros(2**18)
        kept.append(temporary + 1)
        del temporary
        kept.append(torch.zeros(2**16))

    assert 2**21 <= script.peak_bytes(call, torch.device("cpu")) < 2**21 + 2**19


@pytest.mark.parametrize("more", [["--lengths", "1"], ["--rounds", "0"]])
def test_wrong_arguments_are_refused(script: ModuleType, tmp_path: Path, more: list[str]) -> None:
    with pytest.raises(SystemExit):
        script.main([*more, "--output-dir", str(tmp_path)])
