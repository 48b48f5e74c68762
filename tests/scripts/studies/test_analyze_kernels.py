"""The analyses of kernels run from the command line and write what they say."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import hf_seqmix
from hf_seqmix import (
    FDTNNConfig,
    FDTNNForCausalLM,
    FDTNNForMaskedLM,
    SKITNNConfig,
    SKITNNForMaskedLM,
    TNNConfig,
    TNNForCausalLM,
    TNNForImageClassification,
)
from hf_seqmix.training.result_files import read_results

PATH = Path(hf_seqmix.__file__).parent.parent / "scripts" / "studies" / "analyze_kernels.py"
SIZES = {"vocab_size": 7, "hidden_size": 4, "num_hidden_layers": 2, "max_position_embeddings": 24}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("analyze_kernels", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["analyze_kernels"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    torch.manual_seed(0)
    models = {
        "tnn": TNNForCausalLM(TNNConfig(**SIZES, rpe_hidden_size=4)),
        "fd": FDTNNForCausalLM(
            FDTNNConfig(**SIZES, rpe_hidden_size=4, rpe_activation="gelu", frequency_input="omega")
        ),
        "fd-masked": FDTNNForMaskedLM(
            FDTNNConfig(
                **SIZES,
                rpe_hidden_size=16,
                rpe_activation="relu",
                frequency_input="omega",
                is_causal=False,
                linear_init="uniform",
            )
        ),
        "ski": SKITNNForMaskedLM(SKITNNConfig(**SIZES, num_inducing_points=6, conv_kernel_size=3)),
        "image": TNNForImageClassification(
            TNNConfig(
                **{**SIZES, "num_hidden_layers": 1},
                rpe_hidden_size=4,
                is_causal=False,
                mixing_dimensions=2,
                image_size=[8, 12],
                patch_size=2,
                num_channels=1,
            )
        ),
    }
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, model in models.items():
        model.save_pretrained(folder / name)
    return folder


def check(folder: Path, name: str, rows: list) -> None:
    written = read_results(folder / f"{name}.jsonl")
    assert len({(result.model, str(result.setting), result.seed) for result in written}) >= len(rows) > 0
    assert all(result.environment["versions"]["torch"] for result in written)
    assert len((folder / f"{name}.md").read_text().splitlines()) == len(rows) + 4


@pytest.mark.parametrize("model", ["tnn", "fd", "fd-masked", "ski", "image"])
@pytest.mark.one_in(4)
@pytest.mark.usefixtures("pictures")
def test_kernels(script, checkpoints, tmp_path, model, capsys):
    rows = script.main(["kernels", "--model", str(checkpoints / model), "--output-dir", str(tmp_path)])
    assert len(rows) == 2
    if model == "image":
        assert [row["lags"] for row in rows] == [11, 7]
    check(tmp_path, "kernels", rows)
    assert (tmp_path / "kernels.png").stat().st_size > 10_000
    assert "reach" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["tnn", "fd", "fd-masked", "ski", "image"])
@pytest.mark.one_in(2)
def test_extrapolation(script, checkpoints, tmp_path, model):
    rows = script.main(["extrapolation", "--model", str(checkpoints / model), "--output-dir", str(tmp_path)])
    assert len(rows) == (2 if model in ("tnn", "image") else 4)
    assert {(row["length"], row["longer"]) for row in rows} == ({(6, 12), (4, 8)} if model == "image" else {(24, 48)})
    check(tmp_path, "extrapolation", rows)


@pytest.mark.parametrize("model", ["tnn", "ski"])
def test_split(script, checkpoints, tmp_path, model):
    arguments = ["--model", str(checkpoints / model), "--length", "20", "--half-widths", "1", "3"]
    rows = script.main(["split", *arguments, "--output-dir", str(tmp_path)])
    assert [row["half_width"] for row in rows] == [1, 3, 1, 3]
    check(tmp_path, "split", rows)


@pytest.mark.parametrize("model", ["fd", "fd-masked"])
def test_learned_responses(script, checkpoints, tmp_path, model):
    arguments = ["--model", str(checkpoints / model), "--fft-length", "16384", "--channels", "2"]
    rows = script.main(["responses", *arguments, "--output-dir", str(tmp_path)])
    assert [row["activation"] for row in rows] == ["gelu" if model == "fd" else "relu"] * 2
    assert all(row["tail_error"] < 0.2 for row in rows)
    check(tmp_path, "responses-learned", rows)


@pytest.mark.usefixtures("pictures")
def test_responses_of_theory(script, tmp_path):
    arguments = ["--seeds", "1", "--fft-length", "16384", "--fit-steps", "2", "--hidden-size", "8"]
    rows = script.main(["responses", *arguments, "--output-dir", str(tmp_path)])
    check(tmp_path, "responses", rows[:12])
    check(tmp_path, "responses-fitted", rows[12:])
    for name in ("random", "fitted"):
        assert (tmp_path / f"responses-{name}.png").stat().st_size > 20_000


def test_inequalities(script, tmp_path):
    rows = script.main(["inequalities", "--seeds", "1", "--hidden-size", "8", "--output-dir", str(tmp_path)])
    assert len(rows) == 2 * 3 * 5 and [row["order"] for row in rows[:5]] == [0, 1, 2, 3, 4]
    check(tmp_path, "inequalities", rows)


def test_ski_error(script, checkpoints, tmp_path):
    rows = script.main(["ski-error", "--length", "32", "--points", "4", "8", "--output-dir", str(tmp_path)])
    assert len(rows) == 8
    check(tmp_path, "ski-error", rows)
    arguments = ["--model", str(checkpoints / "ski"), "--length", "24", "--points", "4", "--layers", "1"]
    theory = (tmp_path / "ski-error.md").read_text()
    rows = script.main(["ski-error", *arguments, "--output-dir", str(tmp_path)])
    assert (tmp_path / "ski-error.md").read_text() == theory  # beside, not in its place
    assert [row["kernel"] for row in rows] == ["layers.1.mixer.operator"]
    assert "bound" not in (tmp_path / "ski-error-learned.md").read_text()
    (coarse,) = script.main(["ski-error", *arguments, "--rtol", "0.9", "--output-dir", str(tmp_path / "coarse")])
    assert coarse["ski"] == rows[0]["ski"] and coarse["nystrom"] != rows[0]["nystrom"]


def test_piecewise_linear(script, tmp_path):
    rows = script.main(["piecewise-linear", "--seeds", "1", "--cells", "512", "--output-dir", str(tmp_path)])
    assert [row["normalization"] for row in rows] == ["none", "simple_rms", "layer"]
    check(tmp_path, "piecewise-linear", rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernels", "--model", "no-such-folder"], "no-such-folder is no folder here"),
        (["kernels", "--model", "{}/tnn", "--layers", "5"], r"--layers is \[5\]; the model has 2"),
        (["responses", "--model", "{}/tnn"], "it is no FD-TNN"),
        (["responses", "--fft-length", "64"], "at least 16384"),
        (["ski-error", "--points", "1"], r"--points is \[1\]"),
        (["ski-error", "--model", "{}/fd", "--length", "8", "--points", "4"], "integer lags only"),
        (["piecewise-linear", "--range", "2", "1"], "the range must rise"),
    ],
)
def test_refusals(script, checkpoints, tmp_path, arguments, message):
    arguments = [argument.format(checkpoints) for argument in arguments]
    with pytest.raises(SystemExit, match=message):
        script.main([*arguments, "--output-dir", str(tmp_path / "out")])
    assert not list((tmp_path / "out").glob("*.json"))
