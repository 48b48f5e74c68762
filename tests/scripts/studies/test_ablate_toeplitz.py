"""The ablations as their users run them, and the products and parts that they compare against their definitions."""

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from hf_seqmix.models.block import SeqMixBlock
from hf_seqmix.ops.ski.interpolation import InducingGrid, interpolation_matrix
from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.results import Result
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures("pictures")
SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "studies"

TRAIN = ["--steps", "2", "--batch-size", "2", "--block-size", "32", "--eval-blocks", "3", "--hidden-size", "48"]
TRAIN += ["--num-layers", "1", "--train-characters", "9000", "--tokenizer", "bpe:270", "--learning-rates", "1e-3"]
TRAIN += ["--seeds", "0"]
LAYERS = ["--lengths", "32", "--layer-size", "8", "--batch", "1", "--rounds", "1"]
OTHER_KNOTS = ["ski-loud-low-rank", "ski-zero-low-rank", "ski-unscaled", "ski-small-steps"]
PRODUCTS = ["--lengths", "16", "33", "--batch", "1", "--channels", "3", "--rounds", "1"]


def load(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def script() -> Any:
    return load("ablate_toeplitz")


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


@pytest.fixture(autouse=True)
def own_models() -> Iterator[None]:
    """Take back what a study adds to the models of comparisons, which other tests go through."""
    models = load("comparison.models").MODELS
    before = dict(models)
    yield
    models.clear()
    models.update(before)


def written(folder: Path, stem: str) -> list[Result]:
    assert (folder / f"{stem}.png").stat().st_size > 10_000
    text = (folder / f"{stem}.jsonl").read_text(encoding="utf-8")
    assert str(folder) not in text + (folder / f"{stem}.md").read_text(encoding="utf-8")
    return read_results(folder / f"{stem}.jsonl")


@pytest.mark.slow  # curves and masked runs have the same way from end to end
def test_sparse_and_low_rank(script: ModuleType, tmp_path: Path) -> None:
    command = ["sparse-low-rank", *TRAIN, *LAYERS, "--points", "8", "--output-dir", str(tmp_path)]
    found = script.main(command)
    names = ["ski_tnn", "low-rank-only", "convolution-only"]
    assert [row["model"] for row in found["timings"]] == names
    assert found["timings"][1]["time_ratio"] == found["timings"][1]["ms"] / found["timings"][0]["ms"]
    assert [row["model"] for row in found["trained"]] == [*names, *OTHER_KNOTS, "tnn"]
    sizes = [row["num_parameters"] for row in found["trained"]]
    assert max(sizes) < 1.02 * min(sizes)
    assert len({row["test_loss"] for row in found["trained"]}) == 8
    results = written(tmp_path, "sparse_low_rank")
    assert [r.value for r in results if r.metric == "test_loss"] == [row["test_loss"] for row in found["trained"]]
    assert [r.value for r in results if r.metric == "ms"] == [row["ms"] for row in found["timings"]]
    # Given again, the command trains nothing.
    lines = (tmp_path / "training" / "results.jsonl").read_bytes()
    again = script.main(command)
    assert (tmp_path / "training" / "results.jsonl").read_bytes() == lines
    assert [row["test_loss"] for row in again["trained"]] == [row["test_loss"] for row in found["trained"]]


@pytest.mark.slow
def test_settings_of_ski(script: ModuleType, tmp_path: Path) -> None:
    settings = ["--points", "4", "--taps", "5", "--warps", "20", "--falloffs", "0"]
    found = script.main(["ski-settings", *TRAIN, *settings, "--output-dir", str(tmp_path)])
    names = ["ski_tnn", "r=4", "m=5", "w=20", "convolution", "convolution, m=5", "a=0", "convolution, a=0"]
    assert [row["model"] for row in found["trained"]] == names
    runs = {r.model: r.run.model["config_overrides"] for r in written(tmp_path, "ski_settings") if r.run}
    few = {"num_inducing_points": 16}  # of 32 tokens, in every model but that of other points
    assert runs["r=4"] == {"num_inducing_points": 4} and runs["m=5"] == {"conv_kernel_size": 5, **few}
    assert runs["w=20"]["decay"] == pytest.approx(0.535, abs=1e-3)  # exp(-20 / 32)
    assert runs["convolution, m=5"]["mixer_configs"] == {"ski_convolution_only": {"conv_kernel_size": 5, **few}}
    assert len({row["test_loss"] for row in found["trained"]}) == len(names)


@pytest.mark.slow
def test_depth_of_the_encoder(script: ModuleType, tmp_path: Path) -> None:
    found = script.main(["mlp-depth", *TRAIN, *LAYERS, "--output-dir", str(tmp_path)])
    expected = ["tnn-K6", "tnn-K3", "fd_tnn-K6", "fd_tnn-K3"]
    assert [row["model"] for row in found["timings"]] == [row["model"] for row in found["trained"]] == expected
    assert sum(result.metric in ("ms", "test_loss") for result in written(tmp_path, "mlp_depth")) == 8


def test_curves(script: ModuleType, tmp_path: Path) -> None:
    found = script.main(["curves", *TRAIN, "--output-dir", str(tmp_path)])
    assert [row["model"] for row in found["trained"]] == ["tnn", "ski_tnn"]
    for row in found["trained"]:
        assert [step for step, _ in row["curves"][0]] == [1, 2]
    steps = [r.setting["step"] for r in written(tmp_path, "curves") if r.metric == "train_loss" and r.model == "tnn"]
    assert steps == [1, 2]


def test_causal_ski(script: ModuleType, tmp_path: Path) -> None:
    found = script.main(
        ["causal-ski", *PRODUCTS, "--points", "5", "--output-dir", str(tmp_path), "--most-mib", "0.001"]
    )
    short, long = found["rows"]
    assert "running_sums_ms" in short and "running_sums_ms" not in long
    assert short["within_cells_over_fft"] == short["within_cells_ms"] / short["fft_ms"]
    assert max(long["errors"].values()) < 1e-4
    results = written(tmp_path, "causal_ski")
    assert {r.model: r.value for r in results if r.metric == "faster_from"} == found["faster_from"]
    assert {r.value for r in results if r.metric == "errors"} >= set(long["errors"].values())


@pytest.mark.slow
def test_causal_ski_learns_text(script: ModuleType, tmp_path: Path) -> None:
    settings = ["--points", "4", "--taps", "5"]
    found = script.main(["causal-ski-text", *TRAIN, *settings, "--output-dir", str(tmp_path)])
    names = ["tnn", "convolution", "causal SKI, r=4"]
    assert [row["model"] for row in found["trained"]] == names
    sizes = [row["num_parameters"] for row in found["trained"]]
    assert max(sizes) < 1.02 * min(sizes)
    losses = [r.value for r in written(tmp_path, "causal_ski_text") if r.metric == "test_loss"]
    assert losses == [row["test_loss"] for row in found["trained"]] and len(set(losses)) == 3


def test_causal_ski_is_a_convolution_and_the_masked_product() -> None:
    """Of each row's real tokens, wherever pads stand."""
    module = load("ablations.causal_ski_text")
    operator = module.CausalSKI(3, max_length=20, num_points=5, taps=4).double()
    matrix = interpolation_matrix(20, operator.grid)
    points = matrix.shape[1]
    lags = operator.grid.spacing * torch.arange(1 - points, points)
    kernel = operator.kernel(lags.double())
    inducing = importlib.import_module("hf_seqmix.ops.toeplitz.product").toeplitz_matrix(kernel, points, causal=False)
    mixing = (matrix @ inducing @ matrix.mT).tril()
    for q in range(4):
        mixing += operator.conv_weight[:, 3 - q, None, None] * torch.diag(torch.ones(20 - q).double(), -q)
    masking = importlib.import_module("hf_seqmix.ops.layout")
    x = torch.randn(2, 20, 3, dtype=torch.float64)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[1, :7] = False
    mixed = operator(x, masking.token_layout(mask, 2, 20))
    assert_close(mixed[0], torch.einsum("cij,jc->ic", mixing, x[0]))
    assert_close(mixed[1, 7:], torch.einsum("cij,jc->ic", mixing[:, :13, :13], x[1, 7:]))


def test_interpolation(script: ModuleType, tmp_path: Path) -> None:
    found = script.main(["interpolation", *PRODUCTS, "--points", "5", "8", "--output-dir", str(tmp_path)])
    assert [(row["points"], row["length"]) for row in found["rows"]] == [(5, 16), (5, 33), (8, 16), (8, 33)]
    assert sum(result.metric == "faster_from" for result in written(tmp_path, "interpolation")) == 2 * 3


def test_where_a_ratio_stays_below_one() -> None:
    crossing = load("ablations.products").crossing
    assert crossing({8: 2.0, 16: 0.9, 32: 0.5}) == 16
    assert crossing({8: 0.9, 16: 1.1, 32: 0.5}) == 32
    assert crossing({8: 0.5, 16: 1.0}) is None


@pytest.mark.parametrize("name", ["running_sums", "chunked", "within_cells"])
@pytest.mark.parametrize(("length", "points"), [(2, 2), (7, 3), (13, 5), (65, 9), (50, 50), (100, 7)])
def test_causal_forms_are_the_masked_product(name: str, length: int, points: int) -> None:
    products = load("ski.causal_product")
    grid = products.whole_grid(length, points)
    x = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(3, 2 * grid.points(length) - 1, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)
    values = []
    for form in (getattr(products, name), products.causal_ski_dense):
        y = form(x, kernel, grid)
        values.append([y, *torch.autograd.grad(y, (x, kernel), upstream)])
    for actual, expected in zip(*values, strict=True):
        torch.testing.assert_close(actual, expected)
    past = x.detach().clone()
    past[:, length // 2 :] += 1
    changed = getattr(products, name)(past, kernel, grid)
    torch.testing.assert_close(changed[:, : length // 2], values[0][0][:, : length // 2])


def test_a_grid_between_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole spacing"):
        load("ski.causal_product").spacing_of(InducingGrid(10, 5))
    for length, points in ((10, 1), (1, 5)):
        with pytest.raises(ValueError, match=f"{points} points over {length} tokens has no cell"):
            load("ski.causal_product").whole_grid(length, points)


@pytest.mark.parametrize("name", ["band", "dense", "gather", "csr"])
@pytest.mark.parametrize("degree", [1, 3])
def test_forms_of_interpolation(name: str, degree: int) -> None:
    grid = InducingGrid(17, 6, degree)
    products = load("ski.interpolation").FORMS[name](17, grid)
    matrix = interpolation_matrix(17, grid)
    z, x = torch.randn(2, 3, grid.points(17)), torch.randn(2, 3, 17)
    assert_close(products.leave(products.forward(products.enter(z)), 2), z.double() @ matrix.mT)
    assert_close(products.leave(products.adjoint(products.enter(x)), 2), x.double() @ matrix)


def test_the_parts_add_up() -> None:
    parts = load("ski.parts")
    sizes = {"hidden_size": 6, "intermediate_size": 6, "num_hidden_layers": 1, "max_position_embeddings": 12}
    whole: Any = AutoConfig.for_model("ski_tnn", num_inducing_points=4, conv_kernel_size=3, **sizes)
    operator = SeqMixBlock(whole, 0).mixer.operator
    layout = importlib.import_module("hf_seqmix.ops.layout").TokenLayout()
    x = torch.randn(2, 12, operator.conv_weight.shape[0])
    both = parts.LowRankOnly(operator)(x, layout) + parts.ConvolutionOnly(operator)(x, layout)
    torch.testing.assert_close(operator(x, layout), both)
    names = parts.register_parts()
    for name, part in (("low-rank-only", parts.LowRankOnly), ("convolution-only", parts.ConvolutionOnly)):
        assert isinstance(hybrid_of(names[name], **sizes).model.layers[0].mixer.operator, part)


def test_knots_begin_large_or_at_zero() -> None:
    parts = load("ski.parts")
    names = parts.register_parts()
    sizes = {"hidden_size": 64, "intermediate_size": 6, "num_hidden_layers": 1, "max_position_embeddings": 100}
    expected = {"ski-loud-low-rank": 0.1, "ski-zero-low-rank": 0.0, "low-rank-only": 0.1}
    for name, spread in expected.items():
        knots = hybrid_of(names[name], **sizes).model.layers[0].mixer.operator.kernel.past_knots
        torch.testing.assert_close(knots.std(), torch.tensor(spread), rtol=0.1, atol=0)


@pytest.mark.parametrize(("name", "smaller"), [("ski-unscaled", 0.1), ("ski-small-steps", 10)])
def test_steps_of_other_sizes_are_of_the_same_model(name: str, smaller: float) -> None:
    """The kernel is that of SKI at first, and its derivatives by the knots are larger or smaller."""
    names = load("ski.parts").register_parts()
    sizes = {"hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 1, "max_position_embeddings": 100}
    found = {}
    for mixer in ("ski_tnn", names[name]):
        torch.manual_seed(0)
        model = hybrid_of(mixer, **sizes)
        kernel = model.model.layers[0].mixer.operator.kernel
        logits = model(torch.arange(100).remainder(11)[None]).logits
        found[mixer] = logits, torch.autograd.grad(logits.square().sum(), kernel.past_knots)[0]
    (before, steep), (after, flat) = found["ski_tnn"], found[names[name]]
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(smaller * flat, steep, rtol=1e-3, atol=1e-6)


def hybrid_of(mixer: str, **sizes: int) -> Any:
    config: Any = AutoConfig.for_model(
        "seqmix_hybrid",
        mixer_types=[mixer],
        mixer_configs={mixer: {"num_inducing_points": 4}},
        is_causal=False,
        vocab_size=11,
        **sizes,
    )
    return AutoModelForMaskedLM.from_config(config)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["causal-ski", "--lengths", "1"], "--lengths must be at least 2"),
        (["curves", "--train-file", "a.txt"], "or none of them"),
    ],
)
def test_wrong_arguments_end_with_a_message(
    script: ModuleType, tmp_path: Path, command: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        script.main([*command, "--output-dir", str(tmp_path)])


def test_text_of_another_size_is_another_text(tmp_path: Path) -> None:
    text_files = load("ablations.models").text_files
    shared = {"train_file": None, "validation_file": None, "test_file": None, "output_dir": str(tmp_path)}
    for size in (800, 1600):
        paths = text_files(argparse.Namespace(**shared, train_characters=size))
        assert [len(path.read_text(encoding="utf-8")) for path in paths.values()] == [size, size // 8, size // 8]
    with pytest.raises(ValueError, match=r"--train-characters is 7.*give 8 or more"):
        text_files(argparse.Namespace(**shared, train_characters=7))
