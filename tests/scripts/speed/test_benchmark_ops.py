"""The benchmark of products runs, checks before it times, and writes "unmeasured" for what it does not say."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import hf_seqmix
from hf_seqmix.ops import toeplitz_matmul_dense
from hf_seqmix.ops.short_convolution.product import short_conv_dense
from hf_seqmix.ops.ski.interpolation import InducingGrid
from hf_seqmix.ops.ski.product import ski_matmul_dense
from hf_seqmix.training import timing
from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.timing import Clock

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "speed"
SMALL = ["--batch", "2", "--channels", "6", "--head-width", "2", "--points", "8", "--taps", "5", "--rounds", "1"]


@pytest.fixture(scope="module")
def scripts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        parts = [f"operations.{name}" for name in ("candidates", "forms", "goals", "products", "roofline")]
        names = ("benchmark_ops", "timing.protocol", *parts)
        yield {name: importlib.import_module(name) for name in names}


@pytest.fixture
def script(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["benchmark_ops"]


def test_every_operation_runs(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(script, "plot_op", lambda rows, path, *_: drawn.append(path.name))
    rows = script.main([*SMALL, "--lengths", "33", "16", "--output-dir", str(tmp_path), "--together"])
    ops = script.OPS
    assert [(row["op"], row["length"]) for row in rows] == [(op, length) for op in ops for length in (16, 33)]
    for row in rows:
        baselines = {name for name, form in ops[row["op"]].forms.items() if form.needs is None}
        assert baselines <= set(row["errors"]) and not row["left_out"]
        assert row["vs_attention"] == row["attention_ms"] / row["ours_ms"] > 0
        assert row["ours_saved_mib"] > 0 and row["ours_peak_mib"] > 0
        assert row["floor_ms"] > row["floor_forward_ms"] > 0
    assert drawn == [f"benchmark_ops_{op}.png" for op in ops]


@pytest.mark.usefixtures("pictures")
def test_goes_on_and_writes(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*SMALL, "--lengths", "33", "16", "--dtype", "bfloat16", "--ops", "toeplitz", "ski", "degree_4"]
    command += ["--output-dir", str(tmp_path), "--together"]
    rows = script.main(command)
    assert len(rows) == 6
    written = read_results(tmp_path / "benchmark_ops.jsonl")
    assert sum(result.model == "ours" and result.metric == "ms" for result in written) == 6
    assert str(tmp_path) not in (tmp_path / "benchmark_ops.jsonl").read_text()
    for op in ("toeplitz", "ski", "degree_4"):
        assert (tmp_path / f"benchmark_ops_{op}.png").stat().st_size > 5_000
    printed = capsys.readouterr().out
    assert (tmp_path / "benchmark_ops.md").read_text() == printed
    assert "vs strided" in printed
    monkeypatch.setattr(script, "benchmark", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(script, "plot_op", lambda *_: None)
    assert [row["ours_ms"] for row in script.main(command)] == [row["ours_ms"] for row in rows]


def test_what_a_cpu_does_not_say_is_unmeasured(
    script: ModuleType, scripts: dict[str, ModuleType], tmp_path: Path
) -> None:
    command = [*SMALL, "--ops", "toeplitz", "--lengths", "512", "600", "--together", "--output-dir", str(tmp_path)]
    rows = script.main(command)
    kept = script.kept_rows(script.parse_arguments(command))
    found = scripts["operations.goals"].op_goals(rows, kept, "cpu", "float32", 1)
    goals = {(goal["device"], goal["what"], goal["length"]): goal for goal in found}
    [ours] = [
        goal for key, goal in goals.items() if key == ("CPU", "causal Toeplitz, times as fast as torch.fft", 512)
    ]
    assert ours["measured"] == rows[0]["vs_rfft"] and ours["met"] == (rows[0]["vs_rfft"] >= 1.4)
    assert {goal["measured"] for key, goal in goals.items() if key[0] == "GPU" or "SKI" in key[1]} == {None}
    assert {goal["met"] for key, goal in goals.items() if key[0] == "GPU"} == {None}
    sizes = {512: scripts["operations.forms"].Sizes(2, 6, 512)}
    model = scripts["operations.roofline"].model_rows(rows, sizes, None)
    assert {row["measured_ms"] for row in model} == {row["off_percent"] for row in model} == {None}
    growth = next(goal for key, goal in goals.items() if key[1].startswith("exponent") and "causal" in key[1])
    assert growth["measured"] is not None
    by_dtype = {row["dtype"]: row for row in kept}
    assert by_dtype["float32"]["over_inputs"] <= 1.01 and by_dtype["bfloat16"]["batch"] == 16
    assert by_dtype["bfloat16"]["times_fewer"] > 7
    written = [r for r in read_results(tmp_path / "benchmark_ops.jsonl") if r.metric == "times_fewer"]
    assert {r.setting["dtype"]: r.value for r in written} == {
        dtype: row["times_fewer"] for dtype, row in by_dtype.items()
    }


@pytest.mark.slow
def test_rivals_get_a_process_of_their_own(script: ModuleType, tmp_path: Path) -> None:
    [row] = script.main([*SMALL, "--ops", "degree_2", "--lengths", "8", "--output-dir", str(tmp_path)])
    assert row["vs_attention"] == row["attention_ms"] / row["ours_ms"]


@pytest.mark.parametrize("op", ["toeplitz", "ski", "degree_3", "column"])
@pytest.mark.one_in(2)
def test_a_wrong_result_is_not_timed(
    scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    entry = scripts["operations.forms"].OPS[op]
    right = entry.forms["ours"]
    wrong = right._replace(product=lambda *tensors: right.product(*tensors) * 1.001)
    monkeypatch.setitem(entry.forms, "ours", wrong)
    arguments = [*SMALL, "--ops", op, "--lengths", "8", "--together", "--output-dir", str(tmp_path)]
    with pytest.raises(SystemExit, match=f"{op}, length 8: ours differs from its definition"):
        scripts["benchmark_ops"].main(arguments)
    assert not list(tmp_path.iterdir())


def test_a_wrong_implementation_is_left_out(
    scripts: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    candidates = scripts["operations.candidates"]
    sizes = scripts["operations.forms"].Sizes(1, 2, 9, 2)
    forms = candidates.forms_of("response", sizes)
    assert forms["taps"].names == (("response", "taps"),)
    forms["taps"] = forms["taps"]._replace(product=lambda x, response: x + response.sum())
    found = {name: candidates.candidate(name, form, sizes) for name, form in forms.items()}
    errors, left_out = scripts["timing.protocol"].check_all(found, "response, length 9")
    assert "taps" not in found and "relative error" in left_out["taps"]
    assert errors["ours"] < 1e-5
    assert "taps is left out" in capsys.readouterr().err


def test_forced_implementations_are_used(scripts: dict[str, ModuleType]) -> None:
    used = []

    def product(x: torch.Tensor) -> torch.Tensor:
        used.append(hf_seqmix.ops.common.crossovers.implementation("response", x, x.shape[-1]))
        return x

    forms = scripts["operations.forms"]
    form = forms.Form(product, product, names=(("response", "taps"),))
    candidate = scripts["operations.candidates"].candidate("named", form, forms.Sizes(1, 2, 9, 2))
    scripts["timing.protocol"].check(candidate)
    assert used == ["taps", "transforms"]  # the oracle is not forced
    clock = Clock(torch.device("cpu"))
    scripts["timing.protocol"].time_in_turn({"named": candidate}, 1, clock, memory=False)
    assert set(used[2:]) == {"taps"}


def test_plain_products_agree_with_their_definitions(scripts: dict[str, ModuleType]) -> None:
    products = scripts["operations.products"]
    x = torch.randn(2, 3, 10, dtype=torch.float64)
    kernel, two_sided = torch.randn(3, 10, dtype=torch.float64), torch.randn(3, 19, dtype=torch.float64)
    expected = toeplitz_matmul_dense(x, kernel)
    torch.testing.assert_close(products.rfft_product(x, kernel), expected)
    torch.testing.assert_close(products.strided_product(x.mT, kernel.mT).mT, expected)
    expected = toeplitz_matmul_dense(x, two_sided, causal=False)
    torch.testing.assert_close(products.two_sided_reference(x, two_sided), expected)


def test_the_reference_of_ski_is_its_definition(scripts: dict[str, ModuleType]) -> None:
    x, taps, kernel = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 3, 11), (3, 5), (3, 7)))
    expected = short_conv_dense(x, taps) + ski_matmul_dense(x, kernel, InducingGrid(11, 4))
    torch.testing.assert_close(scripts["operations.products"].ski_reference(x, taps, kernel), expected)


def test_references_by_blocks_are_the_formulas(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    products = scripts["operations.products"]
    monkeypatch.setattr(products, "BLOCK", 4)
    factors = torch.randn(4, 2, 9, 3, 2, dtype=torch.float64)
    parallel = hf_seqmix.ops.polynomial_product
    for degree in (2, 3, 4):
        expected = parallel(tuple(factors[:degree]), form="parallel").y
        torch.testing.assert_close(products.polynomial_reference(*factors[:degree]), expected)
    q, k, v = factors[:3].transpose(2, 3)
    for causal in (True, False):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.testing.assert_close(products.attention_reference(causal, q, k, v), expected)
    bias = torch.randn(3, 9, dtype=torch.float64)
    expected = hf_seqmix.ops.piecewise_column_dense(q, k, v, bias, scale=2**-0.5)
    torch.testing.assert_close(products.column_reference(q, k, v, bias), expected)


def test_floor_and_model(scripts: dict[str, ModuleType]) -> None:
    roofline, forms = scripts["operations.roofline"], scripts["operations.forms"]
    sizes = forms.Sizes(2, 3, 8, 3, dtype="bfloat16", device="cuda")
    elements, taps = 2 * 3 * 8, 4 * 3 * 8
    ours = forms.OPS["toeplitz"].forms["ours"]
    assert roofline.fewest_bytes(sizes, ours) == (4 * elements + taps, 10 * elements + 3 * taps)
    assert roofline.floor_ms(sizes, ours, 1e3) == (4 * elements + taps, 10 * elements + 3 * taps)
    assert roofline.kept_bytes(sizes, ours) == 2 * elements + taps
    row = {"op": "toeplitz", "length": 8, "rfft_forward_ms": 104 * elements * 1.1, "rfft_ms": 335 * elements * 0.8}
    forward, both = roofline.model_rows([row], {8: sizes}, 1e3)
    assert forward["off_percent"] == pytest.approx(10) and both["off_percent"] == pytest.approx(-20)
    assert roofline.rfft_model(sizes._replace(length=16384), 1e3)[0] == 136 * 6 * 16384
    assert roofline.copy_bandwidth(torch.device("cpu"), 2**16, 1) > 0


def test_goals_of_a_gpu_need_its_sizes(scripts: dict[str, ModuleType]) -> None:
    rows = [{"op": "toeplitz", "length": 512, "vs_rfft": 9.0, "rfft_peak_mib": 20.0, "ours_peak_mib": 2.0}]
    kept = [{"dtype": "bfloat16", "batch": 16, "length": 512, "over_inputs": 1.0, "times_fewer": 8.0}]

    def met(elements: int, dtype: str) -> list[Any]:
        goals = scripts["operations.goals"].op_goals(rows, kept, "cuda", dtype, elements)
        return [goal["met"] for goal in goals if goal["measured"] is not None]

    assert met(16_000_000, "bfloat16") == [True, True, True]  # times as fast at 512, bytes kept, peak
    assert met(15_000_000, "bfloat16") == met(16_000_000, "float32") == []


def test_ratios_of_an_implementation_go_through_ours(scripts: dict[str, ModuleType]) -> None:
    row = {"op": "ski", "length": 512, "chosen": "native", "vs_rfft": 6.0, "vs_torch": 4.0, "forward_vs_rfft": 8.0}
    goals = scripts["operations.goals"].op_goals([row], [], "cpu", "float32", 1)
    measured = [goal["measured"] for goal in goals if "SKI" in goal["what"] and goal["length"] == 512]
    assert measured == [1.5, 8.0]


def test_saved_bytes_and_slope() -> None:
    x = torch.ones(100, requires_grad=True)
    weight = torch.ones(100, requires_grad=True)
    assert timing.saved_bytes(lambda x: (x * weight * weight).sum(), [x]) == 3 * 400  # x, the weight, the product
    assert timing.saved_bytes(lambda x: (x * weight * weight).sum(), [x], [weight]) == 2 * 400
    assert timing.slope([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert timing.slope([8], [1]) is None


def test_rounds_stop_at_the_budget() -> None:
    calls = []
    measured = timing.interleave({"one": lambda clock: (float(len(calls)), calls.append(0))[:1]}, 100, None, budget=0)
    assert len(measured["one"]) == timing.FEWEST


@pytest.mark.parametrize(
    "more", [["--lengths", "1"], ["--taps", "4"], ["--points", "1"], ["--rounds", "0"], ["--head-width", "4"]]
)
def test_wrong_arguments_are_refused(script: ModuleType, tmp_path: Path, more: list[str]) -> None:
    with pytest.raises(SystemExit):
        script.main([*SMALL, *more, "--output-dir", str(tmp_path)])
