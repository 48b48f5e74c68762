"""ONNX graphs for any batch and length, whole sequences and generation with a cache, computed by onnxruntime."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, PreTrainedModel
from transformers.exporters import ExportedModel, OnnxConfig, OnnxExporter

from hf_seqmix._compat import CACHE_NAME
from hf_seqmix.hub import onnx as hub_onnx
from hf_seqmix.hub import open_checkpoint
from hf_seqmix.hub.onnx import export_onnx, generate_onnx, onnx_difference
from hf_seqmix.hub.verification import VerificationError
from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model
from tests.tolerances import MODEL_TOLERANCE, TOLERANCE, relative_error

pytestmark = [
    pytest.mark.ecosystem("onnx", "onnxscript", "onnxruntime"),
    # the converter and what it is built of call parts of each other and of torch that are on their way out
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]

EXAMPLE = Path(__file__).parents[2] / "scripts" / "examples" / "export_onnx.py"
SIZES = [
    (1, 1),
    (3, 1),
    (1, 2),
    (1, 13),
    (3, 37),
    (2, 64),
    (1, 131),
]  # beyond the 64 positions of the configuration, too
WITH_SHORT_CONVOLUTIONS = ["ski_tnn"]
IMAGES: dict[str, Any] = {"image_size": [6, 4], "patch_size": 2, "num_channels": 1, "is_causal": False}


def sharpened(model_type: str, suffix: str, **overrides: Any) -> PreTrainedModel:
    """Return a model whose kernels are as uneven as trained kernels, and whose embedding of token 0 is zero."""
    model = tiny_model(model_type, suffix, **overrides).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".kernel." in name or "relative_bias" in name:
                parameter.mul_(2)
        if suffix != "ForImageClassification":
            model.get_input_embeddings().weight[0] = 0
    return model


def padded(batch: int, length: int, side: str) -> torch.Tensor:
    mask = torch.ones(batch, length, dtype=torch.long)
    if side != "none" and length > 3:
        for row in range(batch):
            mask[row, : row + 2] = 0
    return mask.flip(-1) if side == "right" else mask


@pytest.mark.parametrize("model_type", EVERY)
def test_every_family(model_type: str, tmp_path: Path) -> None:
    import onnx
    from onnxruntime import InferenceSession

    model = sharpened(model_type, "ForCausalLM" if model_type in CAUSAL else "ForMaskedLM")
    path = tmp_path / "new" / "model.onnx"
    assert export_onnx(model, path.parent) < MODEL_TOLERANCE[torch.float32]
    graph = onnx.load(path, load_external_data=False).graph
    assert {node.domain for node in graph.node} == {""}
    assert "Conv" not in {node.op_type for node in graph.node} or model_type in WITH_SHORT_CONVOLUTIONS
    ids, mask = (tuple(d.dim_param for d in x.type.tensor_type.shape.dim) for x in graph.input)
    assert ids == mask and all(ids)  # any batch and length, the same in both

    session = InferenceSession(str(path))
    for batch, length in SIZES:
        for side in ("none", "left", "right"):
            mask = padded(batch, length, side)
            ids = torch.randint(300, mask.shape)
            ids[0, -1] = 0
            with torch.no_grad():
                expected = model(ids, attention_mask=mask).logits
            (logits,) = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
            real = mask.bool()
            error = relative_error(torch.from_numpy(logits)[real], expected[real])
            assert error < TOLERANCE[torch.float32], (batch, length, side, error)


# A head or an option each, and whether positions are numbered.
VARIANTS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("tnn", "Model", {}, False),
    ("tnn", "ForMaskedLM", {"kernel_max_lag": 9, "norm_type": "batch", "norm_position": "post"}, False),
    ("tnn", "ForSequenceClassification", {"classifier_pooling": "last"}, False),
    ("tnn", "ForSequenceClassification", {"is_causal": False, "num_segments": 2}, False),
    ("tnn", "ForTokenClassification", {"position_embedding_type": "sinusoidal"}, False),
    ("tnn", "ForQuestionAnswering", {"is_causal": False}, False),
    ("tnn", "ForCausalLM", {"position_embedding_type": "learned"}, True),
    ("tnn", "ForImageClassification", {**IMAGES, "mixing_dimensions": 2}, False),
    ("fd_tnn", "ForMaskedLM", {}, False),
    ("fd_tnn", "ForMaskedLM", {"frequency_input": "cosine", "kernel_max_lag": 9}, False),
    ("ski_tnn", "ForSequenceClassification", {"interpolation": "cubic", "ngram_sizes": [3]}, False),
    ("ski_tnn", "ForImageClassification", IMAGES, False),
    ("ipa", "ForMaskedLM", {}, False),
    (
        "ipa",
        "ForCausalLM",
        {"kernel_norm": "prod", "coupling": "toeplitz", "token_shift": 3},
        False,
    ),
    ("ipa", "ForCausalLM", {"kernel_norm": "mix"}, False),
    (
        "ipa",
        "ForCausalLM",
        {"copy_head": True, "copy_head_tokens": 2, "copy_head_state": True, "kernel_norm": "j"},
        False,
    ),
    ("poly_transformer", "ForCausalLM", {"degree": 2}, False),
    ("poly_transformer", "ForCausalLM", {"degree": 4, "degree_form": "soft"}, False),
    ("poly_transformer", "ForCausalLM", {"degree": 2.718}, False),
    ("poly_transformer", "ForMaskedLM", {"degree": 5}, False),
    ("poly_transformer", "ForCausalLM", {"mixing": "toeplitz"}, False),
    ("poly_transformer", "ForCausalLM", {"head_degrees": [3, 4], "forget_gate": True}, False),
    ("poly_transformer", "ForCausalLM", {"kernel_power": 2, "forget_gate": True, "denominator": True}, False),
    ("seqmix_hybrid", "ForMaskedLM", {}, False),
    ("poly_transformer", "ForCausalLM", {"short_conv_taps": 4, "short_conv_init": "uniform"}, False),
    ("tnn", "ForMaskedLM", {"short_conv_taps": 5, "short_conv_init": "uniform"}, False),
    ("tnn", "ForImageClassification", {**IMAGES, "mixing_dimensions": 2, "short_conv_taps": 3}, False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "suffix", "overrides", "numbered"), VARIANTS)
def test_heads_and_options(
    model_type: str, suffix: str, overrides: dict[str, Any], numbered: bool, tmp_path: Path
) -> None:
    layers = {} if model_type == "seqmix_hybrid" else {"num_hidden_layers": 1}
    model = sharpened(model_type, suffix, **layers, **overrides)
    export_onnx(model, tmp_path, max_length=64 if numbered else None, tolerance=1e-5)


def test_a_vector_of_zeros_is_normalized(tmp_path: Path) -> None:
    """The converter drops the addition of an epsilon of 1e-8 or less, and what follows divides by zero."""
    from onnxruntime import InferenceSession

    model = sharpened("poly_transformer", "ForCausalLM", num_hidden_layers=1, use_bias=False, norm_eps=1e-8)
    export_onnx(model, tmp_path)
    ids = torch.zeros(2, 5, dtype=torch.long)
    ids[1, 2:] = 7
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    session = InferenceSession(str(tmp_path / "model.onnx"))
    (logits,) = session.run(None, {name: x.numpy() for name, x in inputs.items()})
    with torch.no_grad():
        assert relative_error(torch.from_numpy(logits), model(**inputs).logits) < TOLERANCE[torch.float32]


def test_half_precision_and_training_mode_are_left_as_they_are(tmp_path: Path) -> None:
    model = tiny_model("poly_transformer", num_hidden_layers=1, hidden_dropout=0.3).to(torch.bfloat16).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert export_onnx(model, tmp_path) < 1e-4
    assert model.training and model.dtype == torch.bfloat16
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_graph_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("poly_transformer", num_hidden_layers=1).eval()
    (tmp_path / "model.onnx").write_text("an older one")
    for found in (0.5, float("nan")):
        monkeypatch.setattr(hub_onnx, "onnx_difference", lambda *args, found=found, **kwargs: found)
        with pytest.raises(VerificationError, match="differs from torch"):
            export_onnx(model, tmp_path)
        assert (tmp_path / "model.onnx").read_text() == "an older one" and len(list(tmp_path.iterdir())) == 1
    monkeypatch.undo()
    assert export_onnx(model, tmp_path, tolerance=None) == 0
    exported = ExportedModel.from_pretrained(tmp_path)
    assert onnx_difference(model, exported) < 1e-4
    with torch.no_grad():
        model.lm_head.weight.mul_(1.01)
    assert onnx_difference(model, exported) > 1e-3


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("tnn")
    file = tmp_path / "model.onnx"
    file.touch()
    with pytest.raises(ValueError, match=r"is a file\..*model\."):
        export_onnx(model, file)
    with pytest.raises(ValueError, match="ForMaskedLM does not generate"):
        export_onnx(tiny_model("tnn", "ForMaskedLM"), tmp_path / "new", generation=True)
    small = {
        "vocab_size": 9,
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 4,
    }
    with pytest.raises(ValueError, match="not a class of the package's families"):
        export_onnx(BertModel(BertConfig(**small)), tmp_path / "new")
    monkeypatch.setattr(hub_onnx, "find_spec", lambda name: None if name == "onnxruntime" else name)
    with pytest.raises(ImportError, match="pip install onnxruntime"):
        export_onnx(model, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [file]


GENERATION: dict[str, tuple[str, dict[str, Any]]] = {
    **{model_type: (model_type, {}) for model_type in CAUSAL},
    "copy head": (
        "ipa",
        {"copy_head": True, "copy_head_tokens": 3, "copy_head_state": True, "token_shift": 3, "kernel_norm": "mix"},
    ),
    "short convolutions": (
        "seqmix_hybrid",
        {"mixer_types": ["short_conv", "attention", "tnn"], "num_hidden_layers": 3, "short_conv_taps": 3},
    ),
    "soft degrees": ("poly_transformer", {"degree": 4, "degree_form": "soft"}),
    "n-grams": ("tnn", {"ngram_sizes": [2, 4], "ngram_buckets": 32}),
}


def test_generation_within_few_positions(tmp_path: Path) -> None:
    model = sharpened("tnn", "ForCausalLM", position_embedding_type="learned", max_position_embeddings=8)
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    export_onnx(model, tmp_path, max_length=8)
    assert export_onnx(model, tmp_path, generation=True, max_length=8) < MODEL_TOLERANCE[torch.float32]
    assert not (tmp_path / "model.onnx").exists()  # which the export before wrote


@pytest.mark.parametrize("name", GENERATION)
def test_generation_with_a_cache(name: str, tmp_path: Path) -> None:
    model_type, overrides = GENERATION[name]
    model = sharpened(model_type, "ForCausalLM", **overrides)
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    assert export_onnx(model, tmp_path, generation=True) < MODEL_TOLERANCE[torch.float32]
    exported = ExportedModel.from_pretrained(tmp_path)
    state = {put.name for put in exported.runners["decode"].session.get_inputs()} - {"input_ids", "attention_mask"}
    assert state and all(name.startswith(f"input.{CACHE_NAME}.layers.") for name in state)
    assert not [name for name in state if name.endswith(".taps")]
    for batch, length, side in ((1, 9, "none"), (3, 14, "left"), (2, 70, "left")):
        mask = padded(batch, length, side)
        ids = torch.randint(1, 300, mask.shape)
        expected = model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
        assert torch.equal(generate_onnx(exported, ids, mask, max_new_tokens=12), expected), (batch, length)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("model_type", "suffix"), [("fd_tnn", "ForCausalLM"), ("ski_tnn", "ForSequenceClassification")]
)
def test_the_librarys_exporter(model_type: str, suffix: str, dynamic: bool) -> None:
    """It is told nothing: while it traces, operations are computed in real numbers."""
    model = sharpened(model_type, suffix, num_hidden_layers=1)
    mask = padded(2, 9, "left")
    inputs = {"input_ids": torch.randint(300, mask.shape), "attention_mask": mask}
    exported = OnnxExporter().export(model, {**inputs, "use_cache": False}, OnnxConfig(dynamic=dynamic))
    for batch, length in ((3, 13), (1, 31)) if dynamic else ((2, 9),):
        mask = padded(batch, length, "right")
        inputs = {"input_ids": torch.randint(300, mask.shape), "attention_mask": mask}
        with torch.no_grad():
            expected = model(**inputs, use_cache=False).logits
        logits = exported(**inputs).logits
        if logits.shape[:2] == mask.shape:
            logits, expected = logits[mask.bool()], expected[mask.bool()]
        assert relative_error(logits, expected) < TOLERANCE[torch.float32]


def test_the_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_model("poly_transformer", num_hidden_layers=1).save_pretrained(tmp_path / "model")
    main = runpy.run_path(str(EXAMPLE))["main"]
    for options, file in (([], "model.onnx"), (["--generation"], "decode.onnx")):
        folder = tmp_path / "onnx"
        assert main([str(tmp_path / "model"), "--output", str(folder), *options]) == 0
        assert (folder / file).exists() and "differs from torch by at most" in capsys.readouterr().out
    assert main([str(tmp_path / "model"), "--output", str(folder / "model.onnx")]) == 2
    assert "is a file" in capsys.readouterr().err


def test_a_trained_model_that_copies_with_certainty(tmp_path: Path) -> None:
    """The logarithm of a rounded sigmoid would be off by 1e-4 here."""
    model, _ = open_checkpoint(str(EXAMPLE.parents[2] / "model_cards" / "tnn-python-2m"))
    assert export_onnx(model, tmp_path / "onnx", generation=True) < TOLERANCE[torch.float32]
