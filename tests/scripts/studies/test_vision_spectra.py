"""Spectra of classifiers of images: trained, resumed, measured; against couplings that are decomposed by hand."""

import importlib.util
import sys
from pathlib import Path

import datasets
import pytest
import torch
from PIL import Image
from vision.figures import Figures, Measurement, measure
from vision.training import SIZED, Classifiers, Images

import hf_seqmix
from hf_seqmix.analysis.couplings import coupling
from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.results import Result

PATH = Path(hf_seqmix.__file__).parent.parent / "scripts" / "studies" / "vision_spectra.py"
SHAPE = ["--image-size", "8", "--patch-size", "2", "--hidden-size", "8", "--num-layers", "2", "--num-heads", "2"]
FEW = ["--train-rows", "12", "--test-rows", "6", "--images", "3"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("vision_spectra", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["vision_spectra"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the arguments that name two tables of pictures."""
    folder, arguments = tmp_path_factory.mktemp("pictures"), []
    for split, rows in (("train", 12), ("test", 6)):
        pixels = torch.randint(256, (rows, 8, 8, 3), dtype=torch.uint8).numpy()
        columns = {"image": [Image.fromarray(each) for each in pixels], "label": [row % 3 for row in range(rows)]}
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        datasets.Dataset.from_dict(columns, features=features).to_parquet(folder / f"{split}.parquet")
        arguments += [f"--{split}-file", str(folder / f"{split}.parquet")]
    return arguments


@pytest.fixture(scope="module")
def images():
    return Images(torch.randn(4, 3, 8, 8), torch.arange(4) % 3, ("a", "b", "c"), "noise")


def measured(model, images, **changes):
    wanted = {"layers": (0, -1), "head": 1, "source": "auto", "center": "none", "images": 3, "probes": 1, **changes}
    found = measure(model.eval(), images.pixel_values, Measurement(**wanted))
    return Figures([Result("t", "m", each["metric"], each["value"], setting=each["setting"]) for each in found])


@pytest.mark.parametrize("kind", ["attention", "vit"])
def test_singular_values_are_those_of_the_logits(images, kind):
    model = Classifiers(2, 8, 2, 2).build(kind, 3, images, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    batch = {"pixel_values": images.pixel_values[:3]}
    logits = coupling(model, batch, -1, 1, "logits")
    tokens = 17 if kind == "vit" else 16  # with the token of the class
    found = measured(model, images)
    assert found.one("tokens", -1) == logits.shape[-1] == tokens
    expected = torch.linalg.svdvals(logits.double()) / tokens
    assert found.curve("sigma", -1) == pytest.approx(expected.mean(dim=0)[:3].tolist(), rel=1e-5)
    assert found.curve("sigma_q0.5", -1) == pytest.approx(expected.median(dim=0).values[:3].tolist(), rel=1e-5)
    # A head of three channels has rank three, and copies of one image are no further tokens.
    assert len(found.curve("sigma", 0)) == 3 and found.one("rank_1", -1) <= 3
    copies = Images(images.pixel_values[:1].repeat(3, 1, 1, 1), images.labels[:3], images.names, "copies")
    found = measured(model, copies)
    assert found.curve("sigma_cross", -1) == pytest.approx(found.curve("sigma", -1), rel=1e-5)
    found = measured(model, images)
    assert found.curve("sigma_cross", -1)[0] != pytest.approx(found.curve("sigma", -1)[0], rel=1e-3)
    assert measured(model, images, center="row").curve("sigma", -1)[0] < found.curve("sigma", -1)[0]


@pytest.mark.parametrize(
    ("kind", "source", "samples"),
    [
        ("tnn", "weights", 24),
        ("ski_tnn", "weights", 24),
        ("poly_transformer", "weights", 6),
        ("ipa", "logits", 3),
        ("ipa_prod", "logits", 3),
    ],
)
def test_mixers_without_a_softmax_are_measured_by_what_they_have(images, kind, source, samples):
    model = Classifiers(2, 8, 2, 2).build(kind, 4, images, seed=0)
    found = measured(model, images)
    assert (found.source(0), found.one("samples", 0)) == (source, samples)
    if source == "weights":
        weights = coupling(model, {"pixel_values": images.pixel_values[:3]}, 0).flatten(0, 1).double()
        values = torch.linalg.svdvals(weights)
        assert found.curve("sigma", 0) == pytest.approx(
            (values / values.norm(dim=-1, keepdim=True)).mean(dim=0).tolist()
        )
    assert found.curve("sigma_cross", 0) == []  # there are weights, or logits with a bias of the lag
    assert measured(model, images, source="jacobian").source(0) == "jacobian"


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_sizes_are_trained_fitted_and_kept(script, files, tmp_path, capsys, monkeypatch):
    command = ["train", *files, *FEW, *SHAPE, "--models", "attention", "vit", "--sizes", "1", "3", "5"]
    command += ["--steps", "2", "--batch-size", "4", "--save-models", "--output-dir", str(tmp_path)]
    rows = script.main(command)
    assert [(row["model"], row["size"]) for row in rows] == [
        (kind, m) for kind in ("attention", "vit") for m in (1, 3, 5)
    ]
    assert all(row["train_loss"] > 0 and 0 <= row["test_error"] <= 1 for row in rows)
    assert rows[0]["parameters"] < rows[1]["parameters"] < rows[2]["parameters"]
    text = " ".join(capsys.readouterr().out.split())
    assert "| vit | 1 to 5 | train_loss |" in text and "held-out images of images" in text
    assert (tmp_path / "spectra.png").stat().st_size > 20_000
    results = read_results(tmp_path / "results.jsonl")
    assert {each.seed for each in results} == {0} and {each.get("model_size") for each in results} == {1, 3, 5}
    assert len([each for each in results if each.metric == "sigma" and each.get("model_size") == 5]) == 2 * 2 * 5
    monkeypatch.setattr(script, "train", None)  # a second call reads the file
    assert script.main(command) == rows
    models = [str(tmp_path / "models" / f"{kind}-5-0") for kind in ("attention", "vit")]
    again = script.main(
        ["measure", "--model", *models, *files[2:], *FEW[2:], "--output-dir", str(tmp_path / "measured")]
    )
    assert [(row["model"], row["layer"]) for row in again] == [
        (f"{m}-5-0", n) for m in ("attention", "vit") for n in (0, -1)
    ]
    saved = {
        (each.model, each.get("layer"), each.get("k")): each.value
        for each in results
        if each.metric == "sigma" and each.get("model_size") == 5
    }
    assert again[0]["sigma_1"] == pytest.approx(saved["attention", 0, 1], rel=1e-5)
    assert again[2]["sigma_1"] == pytest.approx(saved["vit", 0, 1], rel=1e-5)


def test_wrong_input_is_refused_before_anything_is_trained(script, files, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "train", None)
    run = ["--output-dir", str(tmp_path)]
    with pytest.raises(SystemExit, match="--sizes, --steps, --batch-size and --hidden-size must be at least 1"):
        script.main(["train", "--sizes", "0", *files, *run])
    with pytest.raises(SystemExit, match="give --train-file and --test-file, or neither"):
        script.main(["train", *files[:2], *run])
    with pytest.raises(SystemExit, match="Where there is no network, give --train-file and --test-file"):
        script.main(["train", *run])
    for option in ("--seeds", "--sizes"):
        with pytest.raises(SystemExit, match=f"{option} names 4 twice: 4 4 8"):
            script.main(["train", option, "4", "4", "8", *files, *run])
    with pytest.raises(SystemExit, match="--model names best twice"):
        script.main(["measure", "--model", "a/best", "b/best", *files[2:], *run])
    with pytest.raises(SystemExit, match=r"--images is 1000, but only .* held-out images are read"):
        script.main(["train", "--images", "1000", "--sizes", "1", "--steps", "1", *files, *run])
    for option, message in (("--layers", "layer is 9, but the model has"), ("--head", "head is 9")):
        for kind in ("attention", "vit"):
            with pytest.raises(SystemExit, match=message):
                script.main(["train", "--models", kind, "--sizes", "1", *files, *FEW, *SHAPE, option, "9", *run])
    with pytest.raises(SystemExit, match="which reads no images: give a model of images"):
        script.main(["measure", "--model", str(PATH.parents[2] / "model_cards" / "tnn-listops"), *files[2:], *run])
    with pytest.raises(SystemExit) as stopped:
        script.main(
            ["measure", "--model", "a", *files, *run]
        )  # nothing is trained, so training images would be ignored
    assert stopped.value.code == 2


def test_a_layer_that_is_not_there_is_refused(images):
    model = Classifiers(2, 8, 2, 2).build("tnn", 4, images, seed=0)
    with pytest.raises(ValueError, match="layer is 2, but the model has 2 layers, 0 to 1"):
        measured(model, images, layers=(2,))


def test_every_kind_has_a_size(images):
    for kind in SIZED:
        small, large = (Classifiers(2, 8, 1, 2).build(kind, size, images, 0).num_parameters() for size in (2, 4))
        assert (small < large) == (kind != "poly_transformer"), kind
