"""Tuning: what is timed is right and uses what it names; the table can be put in force."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hf_seqmix.ops.common import crossovers
from hf_seqmix.ops.common import fft as fft_conv
from hf_seqmix.ops.common.dispatch import dispatch
from hf_seqmix.training.result_files import read_results

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "speed"
SMALL = ["--batch", "1", "--channels", "4", "--head-width", "2", "--points", "4", "--taps", "3", "--rounds", "1"]


@pytest.fixture(scope="module")
def scripts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        names = ("tune", "operations.variants", "operations.forms")
        yield {name: importlib.import_module(name) for name in names}


@pytest.fixture
def default_table() -> Iterator[None]:
    yield
    crossovers.use_crossovers(None)


@pytest.fixture
def here(scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, without processes of its own."""
    monkeypatch.setattr(scripts["tune"], "in_fresh_process", lambda function, *arguments: function(*arguments))
    return scripts["tune"]


@pytest.mark.usefixtures("pictures")
def test_runs_goes_on_and_is_put_in_force(
    here: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, default_table: None
) -> None:
    command = [*SMALL, "--lengths", "40", "9", "--output-dir", str(tmp_path)]
    table = here.main(command)
    printed = capsys.readouterr().out
    assert "The table of crossovers, as measured" in printed and '"response"' in printed
    written = read_results(tmp_path / "tune.jsonl")
    assert {(result.task, result.setting["length"]) for result in written} == {
        (op, length) for op in crossovers.IMPLEMENTATIONS for length in (9, 40)
    }
    assert not any(result.get("left_out") for result in written)
    assert all(result.value < 1e-5 for result in written if result.metric == "error")
    assert str(tmp_path) not in (tmp_path / "tune.jsonl").read_text()
    assert (tmp_path / "tune.png").stat().st_size > 10_000
    crossovers.use_crossovers(tmp_path / "tune.json")
    assert crossovers.crossovers_in_force()["response"]["cpu"] == table["response"]["cpu"]
    crossovers.use_crossovers(None)
    monkeypatch.setattr(here, "measure", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(here, "plot_points", lambda *_: None)
    assert here.main(command) == table


def test_what_is_typed_beside_fast_counts(here: ModuleType) -> None:
    small = here.parse_arguments(["--fast", "--channels", "256", "--rounds", "3", "--lengths", "65"])
    assert (small.channels, small.rounds, small.lengths) == (256, 3, [65])
    assert (small.batch, small.head_width, small.points) == (2, 8, 16)


def test_a_single_implementation_is_no_choice(here: ModuleType, tmp_path: Path) -> None:
    command = [*SMALL, "--ops", "toeplitz_bidirectional", "--lengths", "8", "--output-dir", str(tmp_path)]
    assert here.main(command) == {}


def test_variants_use_what_they_name(scripts: dict[str, ModuleType]) -> None:
    candidates = scripts["operations.variants"]
    sizes = scripts["operations.forms"].Sizes(1, 4, 8, 2)
    variants = candidates.variants_of("toeplitz_causal", sizes)
    assert variants["fft"].form.names == (("toeplitz_causal", "fft"),)
    in_force = fft_conv._CPU_BYTES_PER_THREAD
    assert f"fft, {in_force >> 20} MiB" not in variants
    with candidates.active(variants["fft, 256 KiB"]):
        assert fft_conv._CPU_BYTES_PER_THREAD == 2**18
    assert in_force == fft_conv._CPU_BYTES_PER_THREAD
    with candidates.active(variants["conv1d"]):
        assert dispatch(torch.ones(1))[0] == "real"
    assert dispatch(torch.ones(1))[0] == "eager"
    longer = candidates.variants_of("toeplitz_causal", sizes._replace(length=2048))
    assert {"conv1d", "dense"} & set(longer) == set()
    assert {"parallel", "vectorized, 64", "torch, 16"} <= set(candidates.variants_of("causal_sum", sizes))


def test_what_is_wrong_is_left_out(
    scripts: dict[str, ModuleType], here: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    sizes = scripts["operations.forms"].Sizes(1, 4, 8, 2)
    arguments = here.parse_arguments(SMALL)
    made = here.variants_of("toeplitz_causal", sizes)
    wrong = made["dense"].form._replace(product=lambda x, kernel: x + kernel.sum())
    variants = {"fft": made["fft"], "dense": made["dense"]._replace(form=wrong)}
    monkeypatch.setattr(here, "variants_of", lambda *_: variants)
    point = here.point_of(here.measure(arguments, "toeplitz_causal", sizes))
    assert set(point["ms"]) == {"fft"} and "relative error" in point["left_out"]["dense"]
    assert "dense is left out" in capsys.readouterr().err
    del variants["fft"]
    with pytest.raises(RuntimeError, match="nothing is right at length 8"):
        here.measure(arguments, "toeplitz_causal", sizes)


def test_costs_of_what_is_in_force(scripts: dict[str, ModuleType]) -> None:
    tune = scripts["tune"]
    point = {"op": "ski", "dtype": "float32", "length": 8, "batch": 1, "ms": {"torch": 3.0, "native": 2.0, "odd": 1.0}}
    row = tune.judged(point | {"implementations": ["torch", "native"]}, "torch")
    assert (row["best"], row["fastest"], row["cost_percent"]) == ("native", "odd", pytest.approx(50))
    assert "torch takes 50 % more than native" in tune.differences([row], 0.03)
    assert "within 60 %" in tune.differences([row], 0.6)
    [constant] = tune.constant_rows([point | {"bases": {"odd": "torch"}}])
    assert constant["mean"] == pytest.approx(1 / 3) and constant["lengths"] == 1


@pytest.mark.parametrize("device, dtype, kind", [("cpu", "bfloat16", "cpu"), ("cuda:0", "float16", "cuda half")])
def test_kinds_are_those_of_the_table(scripts: dict[str, ModuleType], device: str, dtype: str, kind: str) -> None:
    assert scripts["tune"].kind_of(device, dtype) == kind
    assert kind in crossovers.crossovers_in_force()["ski"]


@pytest.mark.parametrize("more", [["--lengths", "1"], ["--taps", "4"], ["--rounds", "0"], ["--head-width", "3"]])
def test_wrong_arguments_are_refused(scripts: dict[str, ModuleType], tmp_path: Path, more: list[str]) -> None:
    with pytest.raises(SystemExit):
        scripts["tune"].main([*SMALL, *more, "--output-dir", str(tmp_path)])


def test_an_output_folder_that_is_a_file_is_refused(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(SystemExit, match=r"^tune\.py: the output folder .*file is a file"):
        scripts["tune"].main([*SMALL, "--output-dir", str(tmp_path / "file")])
    assert (tmp_path / "file").read_text() == "precious"
