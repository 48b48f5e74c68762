"""The image processor: what it computes, and how the library finds it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from hf_seqmix import SeqMixImageProcessor, TNNConfig
from hf_seqmix.models.auto import FAMILIES
from tests.markers import needs_no_torchvision

Image = pytest.importorskip("PIL.Image")


def colors(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_by_its_formula():
    picture = colors(5, 4)
    processor = SeqMixImageProcessor(size={"height": 5, "width": 4}, image_mean=[0.1, 0.2, 0.3], image_std=0.25)
    values = processor(Image.fromarray(picture), return_tensors="pt").pixel_values
    expected = (picture.transpose(2, 0, 1) / 255 - np.array([0.1, 0.2, 0.3])[:, None, None]) / 0.25
    assert values.shape == (1, 3, 5, 4) and values.dtype == torch.float32
    np.testing.assert_allclose(values[0].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("num_channels", [1, 3])
def test_pictures_of_all_kinds_and_sizes_together(num_channels):
    processor = SeqMixImageProcessor(size={"height": 8, "width": 6}, num_channels=num_channels)
    rgb = colors(11, 7)
    picture = Image.fromarray(rgb)
    gray = picture.convert("L")
    kinds = {
        "RGB": picture,
        "gray": gray,
        "palette": picture.convert("P"),
        "with transparency": picture.convert("RGBA"),
        "array": rgb,
        "channels first": rgb.transpose(2, 0, 1),
        "array with transparency": np.asarray(picture.convert("RGBA")),
        "gray array": np.asarray(gray),
        "another size": Image.fromarray(colors(3, 20)),
        "tensor": torch.tensor(rgb),
    }
    values = processor(list(kinds.values()), return_tensors="pt").pixel_values
    assert values.shape == (len(kinds), num_channels, 8, 6)
    named = dict(zip(kinds, values, strict=True))
    for same in ("with transparency", "array", "channels first", "array with transparency", "tensor"):
        torch.testing.assert_close(named[same], named["RGB"], msg=same)
    torch.testing.assert_close(named["gray array"], named["gray"])
    if num_channels == 1:
        torch.testing.assert_close(named["gray"], named["RGB"])
    for name, picture in kinds.items():
        torch.testing.assert_close(processor(picture, return_tensors="pt").pixel_values[0], named[name], msg=name)


def test_gray_values_of_real_numbers():
    rgb = colors(6, 5)
    processor = SeqMixImageProcessor(size={"height": 6, "width": 5}, num_channels=1, do_rescale=False)
    real = processor((rgb / 255).astype(np.float32), return_tensors="np").pixel_values
    whole = SeqMixImageProcessor(size={"height": 6, "width": 5}, num_channels=1)(rgb, return_tensors="np").pixel_values
    np.testing.assert_allclose(real, whole, atol=0.02)  # a gray value is a whole number out of 255 in the one


@pytest.mark.parametrize("num_channels", [1, 3])
def test_gray_pictures_of_sixteen_bits(num_channels):
    processor = SeqMixImageProcessor(size={"height": 4, "width": 5}, num_channels=num_channels)
    gray = colors(4, 5)[..., 0]
    expected = processor(Image.fromarray(gray), return_tensors="pt").pixel_values
    deep = Image.fromarray(gray.astype(np.uint16) * 257)
    assert deep.mode == "I;16"
    assert torch.equal(processor(deep, return_tensors="pt").pixel_values, expected)
    for dtype in (np.int32, np.float32):
        assert torch.equal(processor(Image.fromarray(gray.astype(dtype)), return_tensors="pt").pixel_values, expected)
        with pytest.raises(ValueError, match=r"mode '.' has values from .* to .*; they must be from 0 to 255"):
            processor(Image.fromarray(gray.astype(dtype) + 300))


def test_yes_and_no_are_black_and_white():
    processor = SeqMixImageProcessor(size={"height": 4, "width": 5}, num_channels=1)
    mask = colors(4, 5)[..., 0] > 127
    expected = processor(mask.astype(np.uint8) * 255, return_tensors="pt").pixel_values
    for image in (mask, torch.tensor(mask)):
        assert torch.equal(processor(image, return_tensors="pt").pixel_values, expected)
    as_it_is = {"do_resize": False, "do_rescale": False, "do_normalize": False}
    assert processor(mask, **as_it_is).pixel_values[0].max() == 1
    colored = np.stack([mask, mask, ~mask])
    assert np.array_equal(processor(colored, **as_it_is).pixel_values[0][0], mask)  # red and green outweigh blue


@pytest.mark.parametrize("do_resize", [True, False])
def test_numbers_up_to_one_are_not_divided_again(do_resize):
    real = (colors(4, 4) / 255).astype(np.float32)
    processor = SeqMixImageProcessor(size={"height": 4, "width": 4}, do_resize=do_resize)
    for image in (real, torch.tensor(real)):
        with pytest.raises(ValueError, match=r"values run from 0 to 1, but .* give uint8, or .* do_rescale=False"):
            processor(image)
    with pytest.raises(
        ValueError, match=r"mode 'F' has values up to 1, .* give numpy.asarray\(picture\) with do_rescale"
    ):
        processor(Image.fromarray(real[..., 0]))
    processor(real, do_rescale=False)
    processor(real, rescale_factor=0.5)
    processor(np.zeros_like(real))  # black either way
    processor([255 * real, np.ones_like(real)])  # one picture of several is dark


def test_channels_that_cannot_be_made():
    processor = SeqMixImageProcessor(size={"height": 4, "width": 4}, num_channels=2, do_resize=False)
    assert processor(np.zeros((2, 4, 4), np.uint8), input_data_format="channels_first").pixel_values[0].shape == (
        2,
        4,
        4,
    )
    with pytest.raises(ValueError, match=r"an image has 3 channels; this processor makes 2 \(num_channels\)"):
        processor(colors(5, 5))


def test_the_processor_of_a_model():
    config = TNNConfig(image_size=[12, 8], num_channels=1, is_causal=False)
    processor = SeqMixImageProcessor.for_model(config, image_mean=0.3)
    values = processor(colors(20, 30), return_tensors="pt").pixel_values
    assert values.shape == (1, config.num_channels, *config.image_shape.image_size)
    assert (processor.image_mean, processor.image_std) == (0.3, 0.5)
    with pytest.raises(ValueError, match="image_size of the 'tnn' configuration is None"):
        SeqMixImageProcessor.for_model(TNNConfig())


def test_saved_and_loaded(tmp_path):
    processor = SeqMixImageProcessor(
        size={"height": 9, "width": 5}, num_channels=1, image_mean=0.1307, image_std=0.3081, do_resize=True
    )
    processor.save_pretrained(tmp_path)
    loaded = SeqMixImageProcessor.from_pretrained(tmp_path)
    assert loaded.to_dict() == processor.to_dict()
    picture = colors(13, 13)
    expected = processor(picture, return_tensors="pt").pixel_values
    assert torch.equal(loaded(picture, return_tensors="pt").pixel_values, expected)


@needs_no_torchvision
def test_the_library_finds_it(tmp_path):
    SeqMixImageProcessor(num_channels=1).save_pretrained(tmp_path / "processor")
    loaded = transformers.AutoImageProcessor.from_pretrained(tmp_path / "processor")
    assert type(loaded) is SeqMixImageProcessor and loaded.num_channels == 1
    mapping = transformers.models.auto.image_processing_auto.IMAGE_PROCESSOR_MAPPING
    for family in FAMILIES:
        assert mapping[family.config_class]["pil"] is SeqMixImageProcessor


@pytest.mark.slow  # a process each; by default that of tests/test_package.py opens an image processor first
@needs_no_torchvision
@pytest.mark.parametrize(
    "imports",
    [
        "import hf_seqmix; from transformers import AutoImageProcessor",
        "from transformers import AutoImageProcessor; import hf_seqmix",
    ],
    ids=["ours first", "the library's first"],
)
def test_the_library_finds_it_before_any_configuration_is_made(tmp_path, imports):
    SeqMixImageProcessor(num_channels=1).save_pretrained(tmp_path)
    code = f"{imports}\nprint(type(AutoImageProcessor.from_pretrained({str(tmp_path)!r})).__name__)"
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=root, timeout=120
    )
    assert done.stdout.strip() == "SeqMixImageProcessor", done.stderr
