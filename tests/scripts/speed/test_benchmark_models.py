"""The benchmark of layers runs, times nothing that is wrong, and its rival is the same layer computed another way."""

import importlib
import platform
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from hf_seqmix import FDTNNConfig
from hf_seqmix.models.block import SeqMixBlock
from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.timing import peak_bytes

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "speed"


@pytest.fixture(scope="module")
def scripts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        names = ("benchmark_models", "layers.candidates", "timing.parameters", "timing.protocol", "layers.goals")
        yield {name: importlib.import_module(name) for name in names}


@pytest.fixture
def script(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["benchmark_models"]


FAST = ["--fast", "--together", "--lengths", "9"]
LENGTHS = {"layers": 8, "paper": 14, "transformers": 10, "others": 3}


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_runs_and_goes_on(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [*FAST, "--output-dir", str(tmp_path)]
    tables = script.main(command)
    assert {name: len(rows) for name, rows in tables.items()} == LENGTHS
    for row in [row for rows in tables.values() for row in rows]:
        assert row["ratio"] == row["rival_ms"] / row["layer_ms"] > 0
        assert row["layer_peak_mib"] > 0
        assert row["error"] < 1e-3
    for row in [*tables["transformers"], *tables["others"]]:
        assert abs(row["rival_parameters"] / row["layer_parameters"] - 1) < 0.02
    written = read_results(tmp_path / "benchmark_models.jsonl")
    assert sum(result.metric == "ratio" for result in written) == sum(LENGTHS.values())
    assert "unmeasured" in (tmp_path / "benchmark_models.md").read_text()  # goals of other lengths, and of a GPU
    assert str(tmp_path) not in (tmp_path / "benchmark_models.jsonl").read_text()
    for table in LENGTHS:
        assert (tmp_path / f"benchmark_models_{table}.png").stat().st_size > 10_000
    monkeypatch.setattr(script, "measure", lambda *_: pytest.fail("measured again"))
    assert script.main([*command, "--families", "tnn", "--tables", "others"])["others"] == tables["others"][:1]


def test_goals_are_of_the_causal_rivals(scripts: dict[str, ModuleType]) -> None:
    def row(layer: str, direction: str, rival: str, ratio: float) -> dict[str, Any]:
        return {"length": 512, "layer": layer, "direction": direction, "rival": rival, "ratio": ratio}

    layers = [
        row("fd_tnn K=1", "causal", "original K=1", 9.0),
        row("tnn K=1", "causal", "original K=1", 1.7),
        row("ski_tnn r=64 m=33", "bidirectional", "original K=1, causal", 1.5),
    ]
    transformers = [
        row("tnn K=1", "bidirectional", "llama", 9.0),
        row("tnn K=1", "causal", "llama", 1.0),
        row("ski_tnn r=64 m=33", "bidirectional", "llama, causal", 1.2),
        row("ski_tnn r=64 m=33", "bidirectional", "llama", 9.0),
    ]
    tables = {"layers": layers, "transformers": transformers}

    def measured(*arguments: Any) -> list[tuple[str, float, bool]]:
        goals = scripts["layers.goals"].layer_goals(tables, *arguments)
        return [(g["device"], g["measured"], g["met"]) for g in goals if g["measured"] is not None]

    on_cpu = [("CPU", 1.7, True), ("CPU", 1.5, False), ("CPU", 1.0, True), ("CPU", 1.2, True)]
    on_gpu = [("GPU", 1.7, True), ("GPU", 1.5, False), ("GPU", 1.0, True), ("GPU", 1.2, True)]
    assert measured("cpu", "float32", 256) == on_cpu
    assert measured("cuda", "bfloat16", 1024) == on_gpu
    assert measured("cuda", "bfloat16", 512) == measured("cpu", "bfloat16", 1024) == []


@pytest.mark.parametrize("causal", [True, False])
def test_rivals_see_what_they_should(scripts: dict[str, ModuleType], causal: bool) -> None:
    candidates = scripts["layers.candidates"]
    families = ("llama", "mamba") if causal else ("llama",)
    for family in families:
        layer = candidates.build(candidates.Layer(family, causal), 9, 16, 4000)
        x = torch.randn(2, 9, 16)
        moved = x.clone()
        moved[:, -1] += 1
        before = (layer(x) - layer(moved))[:, :-1].abs().max().item()
        assert (before == 0) == causal


def test_a_rival_that_cannot_be_as_large_is_refused(scripts: dict[str, ModuleType]) -> None:
    candidates = scripts["layers.candidates"]
    with pytest.raises(RuntimeError, match="where 500 are wanted"):
        candidates.build(candidates.Layer("llama", True), 9, 16, 500)


def test_a_rival_is_as_wide_as_a_gpu_likes(scripts: dict[str, ModuleType]) -> None:
    """And as large, within 1 %."""
    candidates, parameters = scripts["layers.candidates"], scripts["timing.parameters"]
    for pair in candidates.transformer_pairs():
        wanted = parameters.count(candidates.build(pair.layer, 64, 256))
        llama = candidates.build(pair.rival, 64, 256, wanted)
        assert llama.layer.mlp.up_proj.out_features % 16 == 0
        assert parameters.count(llama) == pytest.approx(wanted, rel=0.01)
    assert [parameters.in_tiles(width, 1024) for width in (1, 24.1, 2767)] == [16, 32, 2768]
    assert parameters.in_tiles(37, 16) == 37


@pytest.mark.parametrize("place", [0, 1])
def test_gradients_that_are_no_numbers_are_wrong(scripts: dict[str, ModuleType], place: int) -> None:
    found = [torch.ones(3), torch.ones(3)]
    found[place] = torch.full((3,), float("nan"))
    oracle = SimpleNamespace(name="it", actual=lambda: found, expected=lambda: [torch.ones(3)] * 2, bound=0.1)
    candidate = SimpleNamespace(name="this", oracles=lambda: [oracle], active=nullcontext)
    with pytest.raises(scripts["timing.protocol"].WrongResultError, match="this differs from it: relative error inf"):
        scripts["timing.protocol"].check(candidate)


def test_half_precision_is_checked(scripts: dict[str, ModuleType]) -> None:
    candidates, protocol = scripts["layers.candidates"], scripts["timing.protocol"]
    pair = candidates.transformer_pairs()[0]
    single, half = (
        protocol.check(candidates.candidates_of(candidates.Trial(pair, 9, 2, 16, dtype, "cpu"))["layer"])
        for dtype in ("float32", "bfloat16")
    )
    assert single < 1e-5 < half < 5e-2


def test_what_is_typed_beside_fast_counts(script: ModuleType) -> None:
    small = script.parse_arguments(["--fast", "--hidden-size", "32"])
    assert (small.lengths, small.hidden_size, small.rounds) == ([48], 32, 1)


def test_no_pair_is_left(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is no pair"):
        script.main([*FAST, "--tables", "others", "--slow-limit", "8", "--output-dir", str(tmp_path)])


def test_published_figures_stand_beside_their_pair(scripts: dict[str, ModuleType]) -> None:
    made = scripts["layers.candidates"].paper_pairs()
    pairs = {(p.layer.name, p.layer.causal, p.rival.name): p for p in made}
    assert pairs["fd_tnn K=6", True, "tnn K=6"].published_faster == {512: 0.15}
    assert pairs["fd_tnn K=6", True, "original K=6"].published_faster == {512: 0.15}
    assert pairs["fd_tnn K=3", True, "original K=6"].published_faster == {}
    assert pairs["fd_tnn K=3", True, "tnn K=3"].published_faster == {512: 0.10}
    assert pairs["fd_tnn K=6", False, "original K=6"].published_faster == {None: 0.80}
    published = [("K=6", True, {512: 0.15}), ("K=3", True, {512: 0.10}), ("K=6", False, {None: 0.80})]
    for depth, causal, known in published:
        assert pairs[f"original_fd {depth}", causal, f"original {depth}"].published_faster == known
    ski = pairs["ski_tnn r=32 m=17", False, "original K=6"]
    assert (ski.published_faster, ski.published_memory) == ({512: 0.25, 2048: 0.30}, {512: 0.17, 2048: 0.42})


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [2, 13])
def test_the_original_is_the_same_layer(scripts: dict[str, ModuleType], causal: bool, length: int) -> None:
    candidates = scripts["layers.candidates"]
    original = candidates.Layer("original", causal, 8, 2)
    rival, ours = (candidates.build(layer, length, 6) for layer in (original, original._replace(family="tnn")))
    x = torch.randn(2, length, 6)
    assert not torch.allclose(ours(x), rival(x), rtol=1e-3)
    candidates.copy_weights(rival, ours)
    torch.testing.assert_close(ours(x), rival(x), rtol=1e-3, atol=1e-4)  # their norms differ by an epsilon


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [2, 16])
def test_the_original_in_frequencies_is_the_same_layer(
    scripts: dict[str, ModuleType], causal: bool, length: int
) -> None:
    """Ours by the paper's encoder; a bidirectional original samples frequencies for a power of two."""
    candidates = scripts["layers.candidates"]
    fields = {"rpe_hidden_size": 8, "rpe_num_layers": 2, "frequency_input": "omega", "rpe_activation": "relu"}
    sizes = {"hidden_size": 6, "num_hidden_layers": 1, "max_position_embeddings": length, "hidden_dropout": 0.0}
    rival = candidates.build(candidates.Layer("original_fd", causal, 8, 2), length, 6)
    ours = SeqMixBlock(FDTNNConfig(**sizes, **fields, is_causal=causal), 0)
    candidates.copy_weights(rival, ours)
    x = torch.randn(2, length, 6)
    torch.testing.assert_close(ours(x), rival(x), rtol=1e-3, atol=1e-4)
    if causal:
        later = torch.cat([x[:, :1], torch.randn(2, length - 1, 6)], dim=1)
        torch.testing.assert_close(rival(later)[:, 0], rival(x)[:, 0])


def test_a_wrong_layer_is_not_timed(
    scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = scripts["layers.candidates"].OriginalTNNLayer
    forward = original.forward
    monkeypatch.setattr(original, "forward", lambda self, x: forward(self, x) * 1.01)
    with pytest.raises(RuntimeError, match="length 9: causal tnn K=1 differs from the original"):
        scripts["benchmark_models"].main([*FAST, "--output-dir", str(tmp_path)])


def test_peak_memory_is_of_the_call() -> None:
    kept: list[torch.Tensor] = []

    def call() -> None:
        temporary = torch.zeros(2**18)
        kept.append(temporary + 1)
        del temporary
        kept.append(torch.zeros(2**16))

    assert 2**21 <= peak_bytes(call, torch.device("cpu")) < 2**21 + 2**19


def test_no_time_is_no_missing_pair(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"nothing was measured: .* or no --minutes"):
        script.main([*FAST, "--tables", "layers", "--minutes", "0", "--output-dir", str(tmp_path)])


def test_figures_name_the_processor(scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = importlib.import_module("timing.protocol")
    name = protocol.machine("cpu")["machine"]
    if Path("/proc/cpuinfo").is_file() and "model name" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        assert name in Path("/proc/cpuinfo").read_text(encoding="utf-8") and name != platform.machine()
    monkeypatch.setattr(protocol.Path, "is_file", lambda _: False)
    monkeypatch.setattr(protocol.platform, "processor", lambda: "")
    assert protocol.machine("cpu")["machine"] == platform.machine()


@pytest.mark.parametrize("more", [["--lengths", "1"], ["--rounds", "0"]])
def test_wrong_arguments_are_refused(script: ModuleType, tmp_path: Path, more: list[str]) -> None:
    with pytest.raises(SystemExit):
        script.main([*more, "--output-dir", str(tmp_path)])
