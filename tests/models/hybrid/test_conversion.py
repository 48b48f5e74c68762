"""Models of a family as hybrids and back, and other mixers in trained models."""

from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hf_seqmix import SeqMixHybridConfig, from_hybrid, replace_mixers, to_hybrid
from hf_seqmix.models.auto import FAMILIES
from tests.models.suite import VOCAB, perturb

SMALL = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 32}
ENCODER = {"rpe_hidden_size": 8, "expand_ratio": 1.5}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tnn": ("tnn", {**ENCODER, "decay": 0.9}),
    "tnn-decays": ("tnn", {**ENCODER, "decay": None, "channel_decays": [0.5, 0.99], "short_conv_taps": 3}),
    "fd_tnn": ("fd_tnn", {**ENCODER, "norm_type": "layer", "position_embedding_type": "learned"}),
    "ski_tnn": ("ski_tnn", {"num_inducing_points": 5, "scale_kernel": False, "is_causal": False}),
    "degree-3": ("poly_transformer", {"degree": 3, "num_attention_heads": 2}),
    "degree-4": ("poly_transformer", {"degree": 4, "degree_form": "gate", "normalization": "static"}),
}
FAMILY = {family.config_class.model_type: family for family in FAMILIES}


def make(name: str, head: str = "Model", **more: Any) -> Any:
    model_type, fields = CASES[name]
    config = FAMILY[model_type].config_class(**{**SMALL, **fields, **more})
    torch.manual_seed(0)
    return perturb(FAMILY[model_type].classes[head](config)).eval()


def hybrid(*mixers: str, head: str = "ForCausalLM", **more: Any) -> Any:
    own = {"attention": {"num_heads": 2}, "tnn": ENCODER}
    own = {name: fields for name, fields in own.items() if name in mixers}
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "mixer_types": list(mixers), "mixer_configs": own}
    torch.manual_seed(0)
    return perturb(FAMILY["seqmix_hybrid"].classes[head](SeqMixHybridConfig(**{**fields, **more}))).eval()


def outputs(model: Any, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("name", CASES)
def test_the_hybrid_of_a_family_is_the_same_model(name, tmp_path):
    model = make(name)
    inputs = {"input_ids": torch.randint(VOCAB, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    inputs["attention_mask"][0, :3] = 0
    wanted = outputs(model, **inputs)
    found = to_hybrid(model)
    assert type(found).__name__ == "SeqMixHybridModel"
    assert torch.equal(outputs(found, **inputs), wanted)
    assert found.state_dict().keys() == model.state_dict().keys()
    found.save_pretrained(tmp_path)
    opened = AutoModel.from_pretrained(tmp_path).eval()
    assert torch.equal(outputs(opened, **inputs), wanted)
    back = from_hybrid(opened)
    assert type(back) is type(model)
    assert torch.equal(outputs(back, **inputs), wanted)
    for config in (back.config, model.config):
        config.architectures = config.dtype = None
        config.name_or_path = ""
    assert back.config.to_dict() == model.config.to_dict()


def test_a_derived_class_carries_over_by_what_it_derives_from():
    model = make("tnn", "ForCausalLM")
    model.__class__ = type("OwnModel", (type(model),), {})
    assert type(to_hybrid(model)) is FAMILY["seqmix_hybrid"].classes["ForCausalLM"]


def test_every_head_carries_over():
    for suffix, cls in FAMILY["tnn"].classes.items():
        more = {"image_size": 8, "patch_size": 4} if suffix == "ForImageClassification" else {}
        more |= {"is_causal": False} if suffix in ("ForMaskedLM", "ForImageClassification") else {}
        model = make("tnn", suffix, **more)
        inputs = (
            {"pixel_values": torch.randn(2, 3, 8, 8)}
            if more.get("image_size")
            else {"input_ids": torch.ones(2, 5).long()}
        )
        found = to_hybrid(model)
        assert type(found).__name__ == f"SeqMixHybrid{suffix}"
        assert torch.equal(outputs(found, **inputs), outputs(model, **inputs))
        assert type(from_hybrid(found)) is cls


def test_labels_ties_and_generation_carry_over():
    model = make("tnn", "ForCausalLM", copy_head=True, copy_head_tokens=2, copy_head_state=True)
    model.generation_config.max_new_tokens = 4
    found = to_hybrid(model)
    assert found.lm_head.weight is found.model.embed_tokens.weight
    assert found.lm_head.weight is not model.lm_head.weight
    prompt = torch.tensor([[5, 6, 5]])
    assert torch.equal(found.generate(prompt), model.generate(prompt))
    assert found.generation_config.max_new_tokens == 4
    found.generation_config.max_new_tokens = 9
    assert model.generation_config.max_new_tokens == 4
    classifier = make(
        "tnn", "ForSequenceClassification", id2label={0: "bad", 1: "good", 2: "fair"}, problem_type="regression"
    )
    config = to_hybrid(classifier).config
    assert (config.num_labels, config.id2label[1], config.problem_type) == (3, "good", "regression")


def test_a_distilled_decoder_carries_over():
    model = make("tnn", "ForCausalLM")
    model.distill_decoder(tolerance=1e-2, exact_taps=2)
    found = to_hybrid(model)
    prompt = torch.tensor([[5, 6, 5, 9]])
    options = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_logits": True}
    wanted, logits = model.generate(prompt, **options), found.generate(prompt, **options).logits
    assert all(torch.equal(*pair) for pair in zip(logits, wanted.logits, strict=True))
    assert "seqmix_modes" in found.config.layer_types


def test_dtypes_carry_over(tmp_path):
    make("tnn", "ForCausalLM").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    model.model.norm.float()
    kinds = {name: value.dtype for name, value in model.state_dict().items()}
    assert set(kinds.values()) == {torch.bfloat16, torch.float32}
    found = to_hybrid(model)
    assert {name: value.dtype for name, value in found.state_dict().items()} == kinds
    replaced = replace_mixers(found, {0: "fd_tnn"}, {"fd_tnn": ENCODER})
    assert {p.dtype for p in replaced.model.layers[0].mixer.parameters()} == {torch.bfloat16}


def test_weights_are_copies():
    model = make("tnn")
    found = to_hybrid(model)
    with torch.no_grad():
        found.layers[0].mixer.o_proj.weight.zero_()
    assert model.layers[0].mixer.o_proj.weight.abs().sum() > 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: FAMILY["ipa"].classes["Model"](FAMILY["ipa"].config_class(**SMALL)),
            "PiecewiseRow, and that of hybrids",
        ),
        (lambda: make("degree-3", feed_forward="none"), "feed-forward of this 'poly_transformer' model is none"),
        (
            lambda: FAMILY["ipa"].classes["Model"](FAMILY["ipa"].config_class(**SMALL, tie_iterations=True)),
            "are one block, iterated",
        ),
        (
            lambda: make("tnn", "ForImageClassification", is_causal=False, image_size=4, mixing_dimensions=2),
            "hybrids mix images as sequences",
        ),
        (lambda: hybrid("tnn"), "SeqMixHybridForCausalLM is a hybrid already"),
        (
            lambda: LlamaForCausalLM(LlamaConfig(**SMALL, num_attention_heads=2, intermediate_size=16)),
            "LlamaForCausalLM is of no family of this package",
        ),
        (lambda: torch.nn.DataParallel(make("tnn")), "DataParallel wraps a model: give the model inside"),
    ],
    ids=["ipa", "no-feed-forward", "tied", "two-dimensions", "hybrid", "library", "wrapped"],
)
def test_what_hybrids_do_not_have_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        to_hybrid(model())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: make("tnn"), "TNNModel is no hybrid"),
        (lambda: hybrid("tnn", "attention"), "the mixers attention, tnn; a family has one mixer"),
        (lambda: hybrid("attention"), "'attention' is of no family"),
        (lambda: hybrid("ipa"), "PiecewiseRow, and that of hybrids"),
    ],
    ids=["family", "several", "attention", "ipa"],
)
def test_hybrids_that_are_no_family_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        from_hybrid(model())


def test_a_replaced_mixer_is_new_and_all_else_is_kept():
    model = hybrid("tnn", "attention", "attention", zero_init_outputs=True, short_conv_taps=2)
    found = replace_mixers(model, {"attention": "tnn", 2: "fd_tnn"}, {"fd_tnn": {"rpe_hidden_size": 4}})
    assert found.config.layer_mixers == ["tnn", "tnn", "fd_tnn"]
    assert found.config.mixer_configs == {"tnn": ENCODER, "fd_tnn": {"rpe_hidden_size": 4}}
    kept, new = model.state_dict(), found.state_dict()
    same = {name for name in new if name in kept and torch.equal(new[name], kept[name])}
    assert {name for name in new if name not in same} == {
        n for n in new if ".layers.1.mixer." in n or ".layers.2.mixer." in n
    }
    # New mixers add nothing yet.
    assert found.model.layers[1].mixer.o_proj.weight.count_nonzero() == 0
    inputs = torch.randint(VOCAB, (2, 6))
    before = model.model.layers[1].mixer.register_forward_hook(lambda *_: torch.zeros(2, 6, 16))
    model.model.layers[2].mixer.register_forward_hook(lambda *_: torch.zeros(2, 6, 16))
    torch.testing.assert_close(outputs(found, input_ids=inputs), outputs(model, input_ids=inputs))
    before.remove()


@pytest.mark.parametrize("head", ["Model", "ForCausalLM"])
@pytest.mark.parametrize(("old", "new"), [("tnn", "short_conv"), ("short_conv", "attention")])
def test_only_the_mixer_that_is_no_convolution_has_one_before_it(old, new, head, tmp_path):
    model = hybrid("tnn", old, head=head, short_conv_taps=3)
    found = replace_mixers(model, {1: new}, {"attention": {"num_heads": 2}} if new == "attention" else None).eval()
    prefix = "" if head == "Model" else "model."
    anew = (f"{prefix}layers.1.mixer.", f"{prefix}layers.1.short_conv.")
    kept, weights = model.state_dict(), found.state_dict()
    shared = {name for name in weights if not name.startswith(anew)}
    assert shared == {name for name in kept if not name.startswith(anew)}
    assert all(torch.equal(weights[name], kept[name]) for name in shared)
    assert f"{prefix}layers.0.short_conv.weight" in shared
    # Taps begin as no convolution.
    assert (f"{anew[1]}weight" in weights) == (new != "short_conv")
    if new != "short_conv":
        x = torch.randn(2, 5, 16)
        assert torch.equal(found.base_model.layers[1].short_conv(x), x)
    found.save_pretrained(tmp_path)
    ids = torch.randint(VOCAB, (2, 6))
    wanted = outputs(found, input_ids=ids)
    assert torch.equal(outputs(type(found).from_pretrained(tmp_path).eval(), input_ids=ids), wanted)


def test_a_convolution_that_both_mixers_have_before_them_stays():
    model = hybrid("tnn", "attention", short_conv_taps=3)
    found = replace_mixers(model, {"attention": "fd_tnn"}, {"fd_tnn": ENCODER})
    assert torch.equal(found.model.layers[1].short_conv.weight, model.model.layers[1].short_conv.weight)


def test_mixers_of_a_family_can_be_replaced():
    found = replace_mixers(make("tnn", "ForCausalLM"), {1: "attention"}, {"attention": {"num_heads": 4}})
    assert found.config.layer_mixers == ["tnn", "attention"]
    assert found.generate(torch.tensor([[3, 4]]), max_new_tokens=3).shape == (1, 5)


@pytest.mark.parametrize(
    ("replacements", "message"),
    [
        ({"ipa": "tnn"}, "names 'ipa', but the layers are tnn, attention"),
        ({2: "tnn"}, "names 2, but the layers are tnn, attention: name a mixer among them, or a layer from 0 to 1"),
        ({"tnn": "tnn"}, "every layer would stay as it is"),
        ({}, "every layer would stay as it is"),
        ({"tnn": "mamba"}, "mixer_types names 'mamba'"),
        ({"tnn": "ski_tnn"}, "a SKI-TNN is bidirectional"),
        (["tnn"], r"replacements is \['tnn'\]; it must map a mixer, or the number of a layer, to the name of a mixer"),
        ({0: None}, r"replacements is {0: None}; it must map"),
        ({True: "tnn"}, "names True, but the layers are tnn, attention"),
    ],
)
def test_replacements_that_make_no_sense(replacements, message):
    with pytest.raises(ValueError, match=message):
        replace_mixers(hybrid("tnn", "attention"), replacements)


@pytest.mark.parametrize(
    ("mixer_configs", "message"),
    [
        ([1], r"mixer_configs is \[1\]; it must map the name of a mixer to its fields"),
        (
            {"tnn": 3},
            r"mixer_configs has 'tnn': 3; it must map a mixer of the new model \(fd_tnn, tnn\) to its fields",
        ),
        ({"attention": {}}, "mixer_configs has 'attention': {}"),
        ({"tnn": {"foo": 3}}, r"mixer_configs\['tnn'\] sets foo: the mixer has no such field"),
    ],
)
def test_fields_of_no_new_mixer_are_refused(mixer_configs, message):
    with pytest.raises(ValueError, match=message):
        replace_mixers(hybrid("tnn", "attention"), {"attention": "fd_tnn"}, mixer_configs)


def test_layers_that_stay_keep_their_fields():
    model = hybrid("tnn", "attention")
    found = replace_mixers(model, {"attention": "tnn"}, {"tnn": {"rpe_hidden_size": ENCODER["rpe_hidden_size"]}})
    assert found.config.mixer_configs == {"tnn": ENCODER}
    with pytest.raises(ValueError, match=r"mixer_configs\['tnn'\] sets decay otherwise than the layers of that mixer"):
        replace_mixers(model, {"attention": "tnn"}, {"tnn": {"decay": 0.5}})
    # Of a mixer that has no layer left, fields are free.
    moved = replace_mixers(model, {0: "fd_tnn", 1: "tnn"}, {"tnn": {"decay": 0.5}}).config
    assert moved.layer_mixers == ["fd_tnn", "tnn"] and moved.mixer_configs == {"tnn": {"decay": 0.5}}
    assert not replace_mixers(model, {0: "fd_tnn", 1: "tnn"}).config.mixer_configs


def test_fields_of_a_wrong_type_name_their_mixer():
    with pytest.raises(ValueError, match=r"mixer_configs\['tnn'\]: .*decay"):
        SeqMixHybridConfig(mixer_types=["tnn"], mixer_configs={"tnn": {"decay": "x"}})


def test_layers_of_a_distilled_model_stay():
    model = make("tnn", "ForCausalLM")
    model.distill_decoder(tolerance=1e-2, exact_taps=2)
    with pytest.raises(ValueError, match="the decoder of tnn is distilled"):
        replace_mixers(model, {0: "attention"}, {"attention": {"num_heads": 2}})


@pytest.mark.parametrize("convert", [to_hybrid, from_hybrid, lambda model: replace_mixers(model, {0: "tnn"})])
@pytest.mark.parametrize("given", [SeqMixHybridConfig(hidden_size=16), "runs/tnn"], ids=["configuration", "path"])
def test_anything_but_a_model_is_refused(convert, given):
    with pytest.raises(TypeError, match=f"a {type(given).__name__} was given; it must be a model"):
        convert(given)


@pytest.mark.parametrize("kind", ["peft_config", "_hf_peft_config_loaded"])
def test_adapters_are_merged_first(kind):
    """PEFT's own model has the first, a model that took an adapter in the second."""
    model = make("tnn")
    vars(model)[kind] = True
    with pytest.raises(ValueError, match="this TNNModel has adapters: merge the adapters first"):
        to_hybrid(model)


def test_weights_of_other_names_are_named_in_part():
    model = make("tnn")
    for index in range(5):
        model.register_parameter(f"more_{index}", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(ValueError, match=r"names differ: more_0, more_1, more_2 and 2 more\."):
        to_hybrid(model)


def test_what_was_set_for_the_training_carries_over():
    model = make("tnn", "ForCausalLM", attn_implementation="eager")
    model.model.layers.requires_grad_(False)
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    model.model.layers[1].gradient_checkpointing = False  # the library has it for every so many layers
    found = to_hybrid(model)
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert {name: parameter.requires_grad for name, parameter in found.named_parameters()} == trained
    assert set(trained.values()) == {True, False}
    assert found.config._attn_implementation == "eager"
    replaced = replace_mixers(found, {1: "attention"}, {"attention": {"num_heads": 2}})
    new = {name for name, parameter in replaced.named_parameters() if parameter.requires_grad}
    mixer = {name for name, _ in replaced.named_parameters() if ".layers.1.mixer." in name}
    assert mixer and new == mixer | {name for name, is_trained in trained.items() if is_trained}
    for each in (found, replaced, from_hybrid(found)):
        assert each.config._attn_implementation == "eager"
        first, second = each.base_model.layers
        assert first.gradient_checkpointing and not second.gradient_checkpointing
        assert first._gradient_checkpointing_func is model.model.layers[0]._gradient_checkpointing_func
