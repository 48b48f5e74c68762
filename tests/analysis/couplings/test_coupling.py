"""How much each token counts for each other one, in models of this package and of the library."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from hf_seqmix import SeqMixHybridConfig, SeqMixHybridForCausalLM, SeqMixHybridModel
from hf_seqmix.analysis import coupling, queries_and_keys
from hf_seqmix.analysis.couplings.recording import _attend, record_mixers
from hf_seqmix.analysis.inside import look_inside
from tests.models.suite import perturb
from tests.tolerances import assert_close

MIXERS: dict[str, dict[str, Any]] = {
    "attention": {"num_heads": 2},
    "ipa": {"num_centers": 4, "kernel_norm": "prod"},
    "tnn": {"rpe_hidden_size": 8},
    "poly_transformer": {"degree": 3, "num_attention_heads": 4, "normalization": "none"},
    "short_conv": {"taps": 3},
}
LENGTH = 7


def make(*mixers: str, is_causal: bool = True, **own: Any) -> SeqMixHybridModel:
    config = SeqMixHybridConfig(
        vocab_size=13,
        hidden_size=16,
        mixer_types=list(mixers),
        mixer_configs={name: {**MIXERS[name], **own} for name in mixers},
        is_causal=is_causal,
        max_position_embeddings=LENGTH,
    )
    return perturb(SeqMixHybridModel(config)).double().eval()


def ids(rows: int = 2) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(13, (rows, LENGTH))}


def test_weights_are_those_that_the_model_returns():
    model, batch = make("tnn", "attention", "ipa"), ids()
    returned = model(**batch, output_attentions=True).attentions
    assert_close(coupling(model, batch, 1), returned[0])
    assert_close(coupling(model, batch, -1), returned[1])
    assert_close(coupling(model, batch, 2, head=3), returned[1][:, 3])


@pytest.mark.parametrize(("name", "own"), [("attention", {}), ("ipa", {}), ("ipa", {"token_shift": 2})])
def test_logits_make_the_weights(name, own):
    model, batch = make(name, **own), ids()
    logits, weights = coupling(model, batch, source="logits"), coupling(model, batch)
    assert logits.shape == weights.shape
    if name == "ipa":  # "prod": responsibilities times competition
        logits = logits + logits.log_softmax(dim=1)
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    assert_close(logits.masked_fill(~visible, float("-inf")).softmax(-1), weights)
    pairs = queries_and_keys(model, batch, head=1)
    assert_close(pairs.logits()[:, 0], coupling(model, batch, head=1, source="logits"))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("name", MIXERS)
def test_what_a_token_does_not_see_has_no_weight(name, is_causal):
    model, batch = make(name, is_causal=is_causal), ids()
    offsets = torch.arange(LENGTH).unsqueeze(1) - torch.arange(LENGTH)
    seen = offsets >= 0 if is_causal else torch.ones_like(offsets, dtype=torch.bool)
    if name == "short_conv":  # of three taps
        seen = seen & (offsets <= 2) if is_causal else offsets.abs() <= 1
    for source in ("weights", "jacobian"):
        matrix = coupling(model, batch, source=source).abs()
        assert matrix[..., seen].min() > 1e-9
        assert not matrix[..., ~seen].numel() or matrix[..., ~seen].max() < 1e-12  # rounding of transforms


@pytest.mark.parametrize(
    "fields",
    [{}, {"forget_gate": True}, {"kernel_power": 2, "forget_gate": True, "denominator": True}],
    ids=["plain", "gated", "squared"],
)
def test_the_weights_of_degree_3_are_what_values_are_summed_with(fields):
    model, batch = make("poly_transformer", **fields), ids()
    mixer = model.layers[0].mixer
    caught: list[torch.Tensor] = []
    hook = mixer.o_proj.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0]))
    (call,) = record_mixers(model, batch)
    hook.remove()
    value = mixer.groups[0].project(call.hidden_states)[2].unflatten(-1, (4, 4)).transpose(1, 2)
    assert_close(caught[0], (coupling(model, batch) @ value).transpose(1, 2).flatten(2))


def test_a_toeplitz_layer_has_a_matrix_of_its_taps():
    model, batch = make("tnn"), ids()
    matrix = coupling(model, batch)
    taps = model.layers[0].mixer.operator.kernel(LENGTH, torch.device("cpu"))
    assert matrix.shape[0] == 1  # for all inputs
    for t in range(LENGTH):
        for s in range(t + 1):
            assert_close(matrix[0, :, t, s], taps[:, t - s])
    assert_close(coupling(model, batch, head=5), matrix[:, 5])


@pytest.mark.ecosystem("peft")
@pytest.mark.parametrize("name", ["tnn", "short_conv"])
def test_a_layer_with_an_adapter_has_the_matrix_of_its_operator(name):
    from peft import LoraConfig

    model, batch = make(name), ids()
    expected = coupling(model, batch)
    model.add_adapter(LoraConfig(target_modules=["v_proj"], r=2))
    assert torch.equal(coupling(model, batch), expected)


def test_models_of_the_library_have_logits_and_weights():
    config = LlamaConfig(
        vocab_size=13,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=8,
    )
    model, batch = LlamaForCausalLM(config).eval(), ids()
    weights = coupling(model, batch, layer=1)
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    assert_close(weights, model(**batch, output_attentions=True).attentions[1])
    logits = coupling(model, batch, layer=1, source="logits")
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    assert_close(logits.masked_fill(~visible, float("-inf")).softmax(-1), weights)
    assert logits.triu(1).abs().amax() > 0  # before the mask
    with pytest.raises(ValueError, match="layer is 2, but the model has 2 layers, 0 to 1"):
        coupling(model, batch, layer=2)
    with pytest.raises(TypeError, match="layer is '0'; it must be an integer"):
        coupling(model, batch, layer="0")
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    assert_close(coupling(model, {**batch, "attention_mask": mask}, layer=1), weights)
    mask[0, 0] = 0
    for call in (coupling, queries_and_keys):
        with pytest.raises(ValueError, match="a row has pads or holds several sequences"):
            call(model, {**batch, "attention_mask": mask})


def test_a_bias_by_position_is_a_part_of_the_logits():
    """As T5 gives it, whose attention follows attn_implementation in later releases."""
    query, key, value = torch.randn(3, 2, 4, LENGTH, 3).unbind()
    bias, mask = torch.randn(1, 4, LENGTH, LENGTH), torch.randn(2, 1, LENGTH, LENGTH)
    expected = (query @ key.mT + bias + mask).softmax(-1)
    mixed, weights = _attend(torch.nn.Identity(), query, key, value, mask, scaling=1.0, position_bias=bias)
    assert_close(weights, expected)
    assert_close(mixed, (expected @ value).transpose(1, 2))


@pytest.mark.parametrize(("kind", "option"), [(Gemma2Config, "softcap"), (GptOssConfig, "s_aux")])
def test_attention_that_changes_its_logits_otherwise_is_refused(kind, option):
    sizes = {"vocab_size": 13, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1} if kind is GptOssConfig else {}
    config = kind(**sizes, **experts, num_attention_heads=2, num_key_value_heads=2)
    model = AutoModelForCausalLM.from_config(config).eval()
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=f"Attention changes its logits by {option}, so that"):
        coupling(model, ids())
    assert model.config._attn_implementation == before


def test_images_have_weights_of_patches():
    config = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=4, patch_size=2
    )
    model = ViTForImageClassification(config).eval()
    weights = coupling(model, {"pixel_values": torch.randn(2, 3, 4, 4)})
    assert weights.shape == (2, 2, 5, 5)
    assert_close(weights.sum(-1), torch.ones(2, 2, 5))


def test_what_is_not_there_is_refused():
    model, batch = make("tnn"), ids()
    with pytest.raises(ValueError, match="source is 'mixing'; it must be one of 'logits', 'weights', 'jacobian'"):
        coupling(model, batch, source="mixing")
    with pytest.raises(ValueError, match="TNNMixer has no logits"):
        coupling(model, batch, source="logits")
    with pytest.raises(ValueError, match="head is 99, but the layer has"):
        coupling(model, batch, head=99)
    with pytest.raises(ValueError, match="one of all heads of a layer: leave head out"):
        coupling(model, batch, head=0, source="jacobian")
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, 0] = 0
    with pytest.raises(ValueError, match="a row has pads or holds several sequences"):
        coupling(model, {**batch, "attention_mask": mask})
    with pytest.raises(ValueError, match="does not sum values with weights of pairs of tokens"):
        coupling(make("poly_transformer", degree=4), batch)


@pytest.mark.parametrize("call", [coupling, queries_and_keys, look_inside])
def test_what_is_no_model_or_no_batch_is_refused(call):
    model, batch = make("attention"), ids()
    with pytest.raises(TypeError, match="a str was given; it must be a model"):
        call("attention", batch)
    for wrapped in (torch.compile(model, backend="eager"), torch.nn.DataParallel(model)):
        with pytest.raises(ValueError, match="wraps a model of this package: give the model inside"):
            call(wrapped, batch)
    with pytest.raises(TypeError, match="batch is a Tensor; it must map names of the model's arguments to tensors"):
        call(model, batch["input_ids"])


def test_a_batch_may_say_that_there_is_no_cache():
    model, batch = make("attention"), ids()
    assert torch.equal(coupling(model, {**batch, "use_cache": False}), coupling(model, batch))


def test_a_model_is_left_as_it_was():
    model, batch = make("attention").train(), ids()
    hooks = len(model.layers[0].mixer._forward_pre_hooks)
    coupling(model, batch, source="jacobian", probes=2)
    assert model.training
    assert len(model.layers[0].mixer._forward_pre_hooks) == hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_causal_language_models_and_backbones_are_alike():
    config = make("attention").config
    model = SeqMixHybridForCausalLM(config).double().eval()
    batch = ids()
    assert_close(coupling(model, batch), coupling(model.model, batch))
