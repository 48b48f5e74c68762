"""Images: every family that has the head, mixing in one dimension and in two, from configuration to pipeline."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForImageClassification, PreTrainedModel

from hf_seqmix import (
    IPAConfig,
    SeqMixConfig,
    SeqMixImageProcessor,
    TNNConfig,
    TNNForImageClassification,
    TNNForMaskedLM,
    TNNModel,
)
from hf_seqmix.models.auto import FAMILIES
from hf_seqmix.modules.patch_embedding import PatchEmbedding
from hf_seqmix.modules.positions import sinusoids
from tests.models.suite import perturb
from tests.tolerances import assert_close, relative_error

BY_NAME = {family.prefix: family for family in FAMILIES}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_labels": 3}
TOEPLITZ = {
    "TNN": {"expand_ratio": 1.5, "rpe_hidden_size": 8, "decay": 0.9},
    "FDTNN": {"expand_ratio": 1.5, "rpe_hidden_size": 8},
    "SKITNN": {"expand_ratio": 1.5, "num_inducing_points": 3, "conv_kernel_size": 3},
}
OWN = {
    **TOEPLITZ,
    "IPA": {"num_centers": 2, "intermediate_size": 32},
    "PolyTransformer": {"num_attention_heads": 2, "intermediate_size": 32},
    "SeqMixHybrid": {
        "num_hidden_layers": 3,
        "mixer_types": ["ipa", "attention", "poly_transformer"],
        "mixer_configs": {"attention": {"num_heads": 2}},
    },
}
CAUSAL = [name for name in OWN if "ForCausalLM" in BY_NAME[name].classes]
MODES = {
    "rows and columns": {"mixing_dimensions": 2, "is_causal": False},
    "flattened": {"is_causal": False},
    "flattened, causal": {"is_causal": True},
}
NAMES = {"rows and columns": TOEPLITZ, "flattened": OWN, "flattened, causal": CAUSAL}
each_mode = pytest.mark.parametrize(
    ("name", "mode"),
    [pytest.param(name, MODES[mode], id=f"{name}-{mode}") for mode, names in NAMES.items() for name in names],
)
each_toeplitz_family = pytest.mark.parametrize("name", TOEPLITZ)
IMAGE = {"image_size": [6, 10], "patch_size": 2, "num_channels": 3}  # 3 x 5 patches


def config(name: str, **kwargs: Any) -> SeqMixConfig:
    return BY_NAME[name].config_class(**{**SMALL, **OWN[name], **IMAGE, **kwargs})


def grid(name: str) -> dict[str, Any]:
    """The fields of a bidirectional model: one that mixes rows and columns if its family does."""
    return MODES["rows and columns" if name in TOEPLITZ else "flattened"]


def make(name: str, dtype: torch.dtype = torch.float64, **kwargs: Any) -> PreTrainedModel:
    model = perturb(BY_NAME[name].classes["ForImageClassification"](config(name, **kwargs)))
    return model.to(dtype).eval()


def batch(rows: int = 4, size: tuple[int, int] = (6, 10), dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(rows, 3, *size, dtype=dtype), "labels": torch.arange(rows) % 3}


@pytest.fixture(params=OWN)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_all_families_have_the_head():
    assert {name for name, family in BY_NAME.items() if "ForImageClassification" in family.classes} == set(OWN)
    assert set(OWN) == set(BY_NAME)


# -- what is computed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patch", [(1, 1), (2, 3), (4, 1)], ids=str)
def test_patches_are_those_of_a_strided_convolution(patch):
    embedding = PatchEmbedding(3, patch, 5).double()
    images = torch.randn(2, 3, 8, 9, dtype=torch.float64)
    weight = embedding.proj.weight.view(5, 3, *patch)
    expected = nn.functional.conv2d(images, weight, embedding.proj.bias, stride=patch)
    assert_close(embedding(images), expected.flatten(2).transpose(1, 2))
    assert embedding.grid_size(images) == tuple(expected.shape[2:])
    assert embedding(images[:0]).shape == (0, expected[0, 0].numel(), 5)


@each_toeplitz_family
def test_a_turned_image_needs_the_operators_exchanged(name):
    """Rows are rows and columns columns: H x W images, and W x H images with the two operators exchanged."""
    model = make(name, patch_size=1, image_size=[4, 7], mixing_dimensions=2, is_causal=False)
    turned = make(name, patch_size=1, image_size=[7, 4], mixing_dimensions=2, is_causal=False)
    exchange = {"row_operator": "column_operator", "column_operator": "row_operator"}
    state = {
        ".".join(exchange.get(part, part) for part in key.split(".")): value
        for key, value in model.state_dict().items()
    }
    turned.load_state_dict(state)
    images = torch.randn(2, 3, 4, 7, dtype=torch.float64)
    assert_close(turned(images.transpose(2, 3)).logits, model(images).logits)
    assert relative_error(model(images.flip(2)).logits, model(images).logits) > 1e-3


@each_toeplitz_family
def test_mixing_dimensions_matter(name):
    models = [make(name, mixing_dimensions=dimensions, is_causal=False) for dimensions in (1, 2)]
    counts = [sum(p.numel() for p in model.model.layers[0].mixer.operator.parameters()) for model in models]
    assert counts[1] > counts[0]  # a kernel for each axis
    images = batch()["pixel_values"]
    # A pixel of the first row reaches the last row, and another column, in either.
    changed = images.clone()
    changed[:, :, 0, 0] += 1
    for model in models:
        before, after = (model.model(pixel_values=x).last_hidden_state for x in (images, changed))
        assert ((after - before).abs().amax(dim=(0, 2)) > 1e-9).all()


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_images_are_read_row_after_row(name):
    model = make(name, is_causal=True).model
    images = batch()["pixel_values"]
    changed = images.clone()
    changed[:, :, 2, 4] += 1  # in the patch of row 1, column 2: number 7
    before, after = (model(pixel_values=x) for x in (images, changed))
    assert_close(after[0][:, :7], before[0][:, :7])
    assert relative_error(after[0][:, 7:], before[0][:, 7:]) > 1e-4
    assert before.past_key_values is None


@pytest.mark.parametrize(("name", "is_causal"), [*((name, False) for name in OWN), *((name, True) for name in CAUSAL)])
def test_patches_are_mixed_as_the_tokens_of_a_text_are(name, is_causal):
    image = make(name, is_causal=is_causal, position_embedding_type="learned").model
    fields = {"image_size": None, "max_position_embeddings": 15, "embedding_scale": 1.0, "vocab_size": 7}
    fields |= {"is_causal": is_causal, "position_embedding_type": "learned"}
    text = BY_NAME[name].classes["Model"](config(name, **fields)).double().eval()
    keys = text.load_state_dict(image.state_dict(), strict=False)
    assert keys.missing_keys == ["embed_tokens.weight"]
    assert {key.split(".")[0] for key in keys.unexpected_keys} == {"embed_patches"}
    pixels = batch()["pixel_values"]
    expected = text(inputs_embeds=image.embed_patches(pixels)).last_hidden_state
    assert_close(image(pixel_values=pixels).last_hidden_state, expected)


@pytest.mark.parametrize(
    ("name", "fields", "limited"),
    [
        ("IPA", {"coupling": "toeplitz"}, False),
        ("PolyTransformer", {"mixing": "triangular"}, True),
        ("PolyTransformer", {"mixing": "toeplitz"}, False),
        ("SeqMixHybrid", {"mixer_configs": {"poly_transformer": {"mixing": "triangular"}}}, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])
def test_parameters_of_places_are_as_many_as_the_patches(name, fields, limited, is_causal):
    model = make(name, is_causal=is_causal, **fields)
    places = {15, 29, 120, 225}  # a place, an offset both ways, a pair of the past, or any pair each
    assert any(places & set(parameter.shape) for parameter in model.model.layers.parameters())
    model(**batch()).loss.backward()
    larger = batch(size=(8, 10))["pixel_values"]
    if limited:
        with pytest.raises(ValueError, match=r"20 tokens.*(max_position_embeddings|15)"):
            model(larger)
    else:
        assert model(larger).logits.isfinite().all()


@each_mode
def test_sinusoidal_positions_are_those_of_the_flattened_image(name, mode):
    plain = make(name, **mode)
    model = make(name, position_embedding_type="sinusoidal", **mode)
    model.load_state_dict(plain.state_dict())
    images = batch()["pixel_values"]
    before, after = (m(images, output_hidden_states=True).hidden_states[0] for m in (plain, model))
    assert_close(after - before, sinusoids(torch.arange(15)[None], 16).double().expand(4, -1, -1), torch.float32)


def test_the_mean_over_patches_is_classified():
    model = make("TNN", is_causal=False)
    images = batch()["pixel_values"]
    hidden = model.model(pixel_values=images).last_hidden_state
    assert_close(model(images).logits, model.classifier.out_proj(hidden.mean(dim=1)))


@each_mode
@pytest.mark.parametrize("size", [(6, 10), (2, 2), (4, 14), (12, 6)], ids=str)
@pytest.mark.one_in(2)
def test_images_of_another_size(name, mode, size):
    model = make(name, position_embedding_type="sinusoidal", **mode)
    inputs = batch(size=size)
    out = model(**inputs, output_hidden_states=True)
    assert out.hidden_states[-1].shape == (4, size[0] * size[1] // 4, 16)
    assert out.loss.isfinite()
    assert_close(model(inputs["pixel_values"][1:2]).logits, out.logits[1:2])  # neighbors do not matter


# -- as a model of the library ----------------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("positions", ["none", "learned"])
@pytest.mark.one_in(2)
def test_saved_and_loaded_bit_equal(name, mode, positions, tmp_path):
    model = make(name, torch.float32, position_embedding_type=positions, **mode)
    inputs = batch(dtype=torch.float32)
    expected = model(**inputs)
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(model) and not any(info[kind] for kind in info)
    assert {**loaded.config.to_dict(), "_name_or_path": ""} == model.config.to_dict()
    assert torch.equal(loaded(**inputs).logits, expected.logits)
    backbone = AutoModel.from_pretrained(tmp_path)
    actual = backbone(pixel_values=inputs["pixel_values"]).last_hidden_state
    assert torch.equal(actual, model.model(pixel_values=inputs["pixel_values"]).last_hidden_state)
    assert not [key for key in backbone.state_dict() if "embed_tokens" in key]
    assert isinstance(loaded.get_input_embeddings(), PatchEmbedding)
    assert loaded.main_input_name == backbone.main_input_name == "pixel_values"


@each_mode
@pytest.mark.parametrize("fields", [{}, {"position_embedding_type": "learned"}, {"norm_position": "post"}], ids=str)
@pytest.mark.one_in(3)
def test_every_parameter_gets_a_gradient(name, mode, fields):
    model = make(name, **mode, **fields).train()
    model(**batch()).loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), key


@each_mode
def test_gradient_checkpointing_changes_nothing(name, mode):
    model = make(name, hidden_dropout=0.0, **mode).train()
    inputs = batch()
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model(**inputs).loss.backward()
        gradients.append({key: p.grad.clone() for key, p in model.named_parameters()})
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    for key, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], gradient, msg=key)


def test_accumulated_losses_add_up(name):
    model = make(name, **grid(name))
    inputs = batch(rows=5)
    whole = model(**inputs).loss
    parts = [
        model(**{key: value[part] for key, value in inputs.items()}, num_items_in_batch=5).loss
        for part in (slice(0, 2), slice(2, 5))
    ]
    assert_close(sum(parts), whole)


@pytest.mark.parametrize(
    ("labels", "num_labels"), [(torch.rand(4), 1), (torch.randint(2, (4, 3)).float(), 3)], ids=["numbers", "several"]
)
def test_regression_and_several_labels(labels, num_labels):
    model = make("TNN", num_labels=num_labels, is_causal=False)
    logits = model(batch()["pixel_values"]).logits
    loss = model(batch()["pixel_values"], labels).loss
    assert logits.shape == (4, num_labels) and loss.isfinite()


# Images enter every family by one embedding, so one family with two axes is compiled by default.
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "FDTNN" else pytest.mark.slow) for n in OWN])
def test_compiles_in_one_graph(name):
    torch._dynamo.reset()
    few_layers = {} if name == "SeqMixHybrid" else {"num_hidden_layers": 1}
    model = make(name, hidden_dropout=0.0, **grid(name), **few_layers)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for size in ((6, 10), (4, 8)):
        images = batch(size=size)["pixel_values"]
        assert_close(compiled(images).logits, model(images).logits)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_compiled_training_step_has_the_same_gradients(name):
    torch._dynamo.reset()
    few_layers = {} if name == "SeqMixHybrid" else {"num_hidden_layers": 1}
    model = make(name, hidden_dropout=0.0, **grid(name), **few_layers).train()
    inputs = batch()
    expected = model(**inputs)
    expected.loss.backward()
    gradients = {key: p.grad.clone() for key, p in model.named_parameters()}
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    actual = compiled(**inputs)
    actual.loss.backward()
    assert_close(actual.logits, expected.logits)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[key], msg=key)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(name, dtype):
    model = make(name, torch.float32, **grid(name))
    images = batch(dtype=torch.float32)["pixel_values"]
    expected = model(images).logits
    with torch.autocast("cpu", dtype=dtype):
        assert relative_error(model(images).logits.float(), expected) < 0.1
    half = model.to(dtype)
    assert half(images).logits.dtype == dtype  # pixels come in float32
    assert relative_error(half(images).logits.float(), expected) < 0.1


# -- what makes no sense ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mixing_dimensions": 3}, "mixing_dimensions is 3; it must be one of 1, 2"),
        ({"mixing_dimensions": 2, "is_causal": True}, "mixing_dimensions is 2, but is_causal is True"),
        ({"mixing_dimensions": 2, "image_size": None}, "mixing_dimensions is 2, but image_size is None"),
        ({"decay": [0.9, 0.8]}, r"decay is \[0.9, 0.8\]; it must be one number, or, with mixing_dimensions=2, two"),
        ({"decay": [0.9, 1.2], "mixing_dimensions": 2}, "decay is 1.2"),
        ({"decay": [0.9] * 3, "mixing_dimensions": 2}, "decay is"),
    ],
    ids=str,
)
def test_mixing_that_makes_no_sense(fields, message):
    with pytest.raises(ValueError, match=message):
        TNNConfig(**{"image_size": 28, "is_causal": False, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": [28, 30, 3]}, r"image_size is \[28, 30, 3\]; it must be one number or \[height, width\]"),
        ({"image_size": 0}, "image_size is 0; it must be at least 1"),
        ({"patch_size": [4, 3]}, r"image_size is 28, which patch_size \[4, 3\] does not divide"),
        ({"patch_size": 0}, "patch_size is 0"),
        ({"patch_size": 0, "image_size": None}, "patch_size is 0"),
        ({"num_channels": 0}, "num_channels is 0"),
        ({"num_segments": 2}, "num_segments is 2, but a model of images"),
        ({"max_position_embeddings": 700}, "max_position_embeddings is 700, but the images have 784 patches"),
    ],
    ids=str,
)
def test_images_that_make_no_sense(name, fields, message):
    with pytest.raises(ValueError, match=message):
        config(name, **{"image_size": 28, "patch_size": 1, "is_causal": False, **fields})


def test_what_follows_from_the_size_of_the_image():
    image = TNNConfig(image_size=(28, 14), patch_size=(4, 7), is_causal=False, mixing_dimensions=2)
    assert (image.mixing_grid, image.max_position_embeddings, image.embedding_scale) == ((7, 2), 14, 1.0)
    assert image.classifier_pooling == "mean"
    flat = TNNConfig(image_size=32, max_position_embeddings=2000)
    assert (flat.mixing_grid, flat.max_position_embeddings, flat.embedding_scale) == (None, 2000, 1.0)
    assert IPAConfig(image_size=(28, 14), patch_size=7).max_relative_distance == 8
    text = TNNConfig()
    assert (text.image_shape, text.mixing_grid, text.max_position_embeddings) == (None, None, 512)
    with pytest.raises(ValueError, match="mixing_grid cannot be set"):
        TNNConfig(mixing_grid=[2, 2])


def test_each_head_wants_its_kind_of_model():
    with pytest.raises(ValueError, match="image_size is None, but TNNForImageClassification reads images"):
        TNNForImageClassification(TNNConfig(**SMALL))
    with pytest.raises(ValueError, match="image_size is set, but TNNForMaskedLM reads text"):
        TNNForMaskedLM(TNNConfig(**SMALL, image_size=8, is_causal=False))
    with pytest.raises(ValueError, match="pixel_values are given, but this is a model of text"):
        TNNModel(TNNConfig(**SMALL))(pixel_values=torch.zeros(1, 3, 8, 8))
    model = TNNModel(TNNConfig(**SMALL, image_size=8, is_causal=False))
    for kwargs in ({}, {"input_ids": torch.zeros(1, 64, dtype=torch.long)}):
        with pytest.raises(ValueError, match="this is a model of images"):
            model(**kwargs)
    with pytest.raises(ValueError, match="Images have no pads, so no attention_mask either"):
        model(pixel_values=torch.zeros(1, 3, 8, 8), attention_mask=torch.ones(1, 64))


def test_images_that_do_not_fit(name):
    model = make(name, torch.float32, is_causal=False, position_embedding_type="learned")
    with pytest.raises(
        ValueError, match=r"pixel_values has shape \(1, 1, 6, 10\); it must be \(batch, 3, height, width\)"
    ):
        model(torch.zeros(1, 1, 6, 10))
    with pytest.raises(ValueError, match=r"must be \(batch, 3, height, width\)"):
        model(torch.zeros(3, 6, 10))
    with pytest.raises(ValueError, match="images of 6 x 9 pixels are not divided by patches of 2 x 2"):
        model(torch.zeros(1, 3, 6, 9))
    with pytest.raises(ValueError, match="the images have 3 x 4 patches, but position_embedding_type='learned'"):
        model(torch.zeros(1, 3, 6, 8))


# -- with the library's tools -----------------------------------------------------------------------------------------


# One for all whose mixers are not Toeplitz matrices: it takes seconds.
@pytest.mark.parametrize("name", [*TOEPLITZ, "SeqMixHybrid"])
@pytest.mark.one_in(4)
def test_trainer_and_pipeline(name, tmp_path, caplog):
    pytest.importorskip("accelerate")
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    # Dark images with a bright left, or a bright upper half.
    rng = torch.Generator().manual_seed(0)
    pictures = (torch.rand(64, 12, 8, generator=rng) * 60).to(torch.uint8)
    labels = torch.arange(64) % 2
    pictures[labels == 0, :, :4] += 150
    pictures[labels == 1, :6] += 150
    pictures = [image.fromarray(picture.numpy()) for picture in pictures]

    fields = {"image_size": [6, 4], "patch_size": 1, "num_channels": 1, **grid(name)}
    if name not in TOEPLITZ:  # pixels are told apart by their places
        fields |= {"position_embedding_type": "sinusoidal", "linear_init": "uniform"}
    fields |= {"num_labels": 2, "id2label": {0: "left", 1: "upper"}, "label2id": {"left": 0, "upper": 1}}
    model = BY_NAME[name].classes["ForImageClassification"](config(name, **fields))
    processor = SeqMixImageProcessor.for_model(model.config)
    data = datasets.Dataset.from_dict({"image": pictures, "label": labels.tolist()})
    data = data.with_transform(lambda rows: {**processor(rows["image"], return_tensors="pt"), "label": rows["label"]})
    arguments = transformers.TrainingArguments(
        str(tmp_path / "run"),
        max_steps=60,
        learning_rate=1e-2,
        per_device_train_batch_size=16,
        remove_unused_columns=False,
        report_to="none",
        use_cpu=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data, processing_class=processor)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.3
    trainer.save_model(tmp_path / "model")
    if getattr(transformers.AutoImageProcessor, "is_dummy", False):
        pytest.skip("this release of the library wants torchvision for any image processor")
    classify = transformers.pipeline("image-classification", str(tmp_path / "model"))
    assert type(classify.image_processor) is SeqMixImageProcessor
    answers = [answer[0]["label"] for answer in classify(pictures[:6])]
    assert answers == ["left", "upper"] * 3
    assert not [record for record in caplog.records if "not supported" in record.message]


def test_weights_of_integers_leave_pixels_as_they_are() -> None:
    embedding = PatchEmbedding(3, (2, 2), 8)
    pixels = torch.rand(1, 3, 4, 4)
    expected = embedding(pixels)

    class Quantized(nn.Module):
        """A linear layer as quantizers make them: integers and a scale."""

        def __init__(self, linear: nn.Linear) -> None:
            super().__init__()
            self.scale = linear.weight.abs().max() / 127
            self.weight = nn.Parameter((linear.weight / self.scale).round().to(torch.int8), requires_grad=False)
            self.bias = linear.bias

        def forward(self, inputs: Tensor) -> Tensor:
            return nn.functional.linear(inputs, self.weight * self.scale, self.bias)

    embedding.proj = Quantized(embedding.proj)
    assert relative_error(embedding(pixels), expected) < 2e-2
