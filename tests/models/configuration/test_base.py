"""Configurations: what makes no sense is refused, by name, at init and again at saving."""

import math
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, BertConfig

import hf_seqmix
from hf_seqmix import (
    SeqMixConfig,
    SeqMixHybridConfig,
    TNNConfig,
    TNNForCausalLM,
    TNNForMaskedLM,
    TNNForSequenceClassification,
    register_mixer,
)
from hf_seqmix.hub.concatenation.source_modules import Package
from hf_seqmix.models import mixers
from hf_seqmix.models.auto import FAMILIES
from hf_seqmix.models.configuration import base, common_fields
from hf_seqmix.models.ipa import options
from hf_seqmix.modules.norms import NORM_TYPES
from hf_seqmix.modules.short_convolution import INITS
from hf_seqmix.ops.piecewise.column import KERNEL_NORMS
from tests.ecosystem.tiny import CAUSAL, tiny_config, tiny_model


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("decay", 0, "greater than 0 and at most 1"),
        ("decay", 1.5, "greater than 0 and at most 1"),
        ("hidden_size", 0, "at least 1"),
        ("vocab_size", -1, "at least 1"),
        ("num_hidden_layers", 0, "at least 1"),
        ("intermediate_size", 0, "at least 1"),
        ("max_position_embeddings", 0, "at least 1"),
        ("hidden_dropout", 1.0, "at least 0 and less than 1"),
        ("classifier_dropout", -0.1, "at least 0 and less than 1"),
        ("norm_eps", 0.0, "greater than 0"),
        ("embedding_scale", 0.0, "greater than 0"),
        ("initializer_range", -1, "greater than 0"),
        ("norm_type", "rms", "one of 'simple_rms', 'layer', 'batch'"),
        ("norm_position", "middle", "one of 'pre', 'post'"),
        ("position_embedding_type", "rope", "one of 'none', 'sinusoidal', 'learned'"),
        ("linear_init", "zeros", "one of 'uniform', 'normal'"),
        ("classifier_pooling", "max", "one of 'mean', 'last', 'first'"),
        ("classifier_head", "deep", "one of 'linear', 'mlp'"),
        ("num_segments", 3, "one of 1, 2"),
        ("hidden_act", "swoosh", "one of "),
        ("expand_ratio", 0, "greater than 0"),
        ("expand_ratio", math.inf, "a finite number"),
        ("embedding_scale", math.inf, "a finite number"),
        ("decay", math.nan, "a finite number"),
        ("rpe_hidden_size", 0, "at least 1"),
        ("rpe_num_layers", -1, "at least 0"),
        ("rpe_activation", "swoosh", "one of "),
        ("rpe_norm_type", "batch", "one of 'simple_rms', 'layer', 'none'"),
        ("kernel_max_lag", -1, "at least 0"),
        ("channel_decays", [0.9, 0], "greater than 0 and at most 1"),
        ("channel_decays", [1.5], "greater than 0 and at most 1"),
        ("channel_decays", [], "at least 1 and at most one for each channel"),
        ("channel_decays", [0.9] * 1537, "at most one for each channel"),
    ],
)
def test_values_that_make_no_sense(field, value, allowed, tmp_path):
    with pytest.raises(ValueError, match=field) as raised:
        TNNConfig(**{field: value})
    assert isinstance(value, list) or str(value).strip("'") in str(raised.value)
    assert allowed in str(raised.value)
    config = TNNConfig()
    setattr(config, field, value)
    with pytest.raises(StrictDataclassClassValidationError, match=field):
        config.save_pretrained(tmp_path)


def test_what_follows_from_other_fields_cannot_be_set():
    with pytest.raises(
        ValueError, match=r"num_attention_heads cannot be set: it follows from the other fields of a 'tnn'"
    ):
        TNNConfig(num_attention_heads=8)
    with pytest.raises(ValueError, match="layer_types cannot be set"):
        TNNConfig(layer_types=["full_attention"])


def test_widths_that_leave_no_channel():
    with pytest.raises(ValueError, match=r"expand_ratio x hidden_size is 0; it must be at least 1"):
        TNNConfig(hidden_size=4, expand_ratio=0.1)


@pytest.mark.parametrize(
    ("field", "value"), [("hidden_size", "512"), ("decay", "0.9"), ("is_causal", 1), ("hidden_size", 1.5)]
)
def test_values_of_another_type(field, value):
    with pytest.raises(StrictDataclassFieldValidationError, match=field):
        TNNConfig(**{field: value})


def test_whole_numbers_stand_for_floats():
    config = TNNConfig(decay=1, hidden_dropout=0, expand_ratio=2)
    assert config.mixer_size == 1024


@pytest.mark.parametrize(
    "config", [TNNConfig(is_causal=False, norm_position="post"), SeqMixHybridConfig(mixer_types=["tnn"])]
)
def test_comes_back_from_json(config, tmp_path):
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is type(config)
    where = {"transformers_version": None, "_name_or_path": None}
    assert loaded.to_dict() | where == config.to_dict() | where


def test_derived_defaults():
    causal, masked = TNNConfig(), TNNConfig(is_causal=False, norm_position="post")
    assert causal.intermediate_size == 512
    assert causal.embedding_scale == pytest.approx(math.sqrt(512)) and masked.embedding_scale == 1
    assert causal.linear_init == masked.linear_init == "uniform"
    assert (causal.classifier_pooling, masked.classifier_pooling) == ("last", "mean")
    assert (causal.classifier_head, masked.classifier_head) == ("linear", "mlp")
    assert causal.layer_types == ["seqmix_convolution"] * 7
    assert (causal.num_attention_heads, causal.head_dim) == (1, 1536)


def test_heads_refuse_the_wrong_direction():
    with pytest.raises(ValueError, match="is_causal is False, but TNNForCausalLM needs a causal model"):
        TNNForCausalLM(TNNConfig(is_causal=False))
    with pytest.raises(ValueError, match="is_causal is True, but TNNForMaskedLM needs a bidirectional model"):
        TNNForMaskedLM(TNNConfig())
    with pytest.raises(ValueError, match="norm_type is 'batch', but batch statistics let"):
        TNNForCausalLM(TNNConfig(norm_type="batch"))
    with pytest.raises(ValueError, match="num_labels is 0"):
        TNNForSequenceClassification(TNNConfig(hidden_size=8, num_hidden_layers=1, vocab_size=5, num_labels=0))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
def test_a_configuration_needs_no_models(family):
    package = Package(Path(hf_seqmix.__file__).parent)
    needed = package.import_order([tuple(family.config_class.__module__.split(".")[1:])])
    assert ("models", "configuration", "base") in needed
    parts = {module[1] for module in needed if module[0] == "models"}
    assert not {"backbone", "block", "family", "heads", "mixers"} & parts
    assert not [module for module in needed if module[-1].startswith("modeling_")]


def test_configurations_know_the_choices_of_modules_and_operations():
    assert (common_fields.NORM_TYPES, common_fields.TAPS_INITS) == (NORM_TYPES, INITS)
    assert options.KERNEL_NORMS == KERNEL_NORMS


def test_mixers_are_known_by_their_configurations(monkeypatch):
    monkeypatch.setattr("hf_seqmix.models.configuration.base.MIXER_CONFIGS", {})
    monkeypatch.setattr("hf_seqmix.models.mixers.MIXER_CONFIGS", known := base.MIXER_CONFIGS)

    class MineConfig(TNNConfig):
        model_type = "mine"

    class DerivedConfig(MineConfig):
        pass

    class AnotherConfig(SeqMixConfig):
        model_type = "mine"
        cache_layer_type = "seqmix_history"

    class HybridConfig(SeqMixConfig):
        model_type = "hybrid"

    assert known == {"mine": MineConfig}  # the first of a name stays, unless another is registered
    register_mixer("mine", AnotherConfig, lambda config, layer_idx: None)
    assert known == {"mine": AnotherConfig}
    del mixers.MIXERS["mine"]


class TestFieldsSetLater:
    """`from_pretrained` sets fields of a configuration that is made: they count as those of a new one."""

    @pytest.mark.parametrize("model_type", CAUSAL)
    def test_a_copy_head_is_added_when_a_model_is_loaded(self, model_type, tmp_path):
        model = tiny_model(model_type)
        model.save_pretrained(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, copy_head=True)
        assert loaded.config.copy_head_rank == tiny_config(model_type, copy_head=True).copy_head_rank
        for name, value in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], value), name
        ids = torch.arange(12).view(1, 12)
        assert loaded(ids, labels=ids).loss.isfinite()

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"num_hidden_layers": 3}, "mixer_types names 2 layers, but num_hidden_layers is 3"),
            ({"mixer_types": []}, r"mixer_types is \[\]; it must name a mixer for each layer"),
            ({"mixer_types": ["tnn", "rnn"]}, "mixer_types names 'rnn'"),
            ({"embedding_scale": -1.0}, "embedding_scale is -1.0; it must be greater than 0"),
            ({"hidden_act": "sine"}, "hidden_act is 'sine'; it must be one of"),
        ],
    )
    def test_a_wrong_field_is_refused_before_the_model_is_built(self, fields, message, tmp_path):
        tiny_model("seqmix_hybrid").save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=message):
            AutoModelForCausalLM.from_pretrained(tmp_path, **fields)
        config = tiny_config("seqmix_hybrid")
        for name, value in fields.items():
            setattr(config, name, value)
        with pytest.raises(ValueError, match=message):
            AutoModel.from_config(config)

    def test_what_is_not_given_follows_from_the_other_fields(self, tmp_path):
        tiny_model("tnn").save_pretrained(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, num_hidden_layers=1)
        loaded.config.intermediate_size = None
        again = AutoModelForCausalLM.from_config(loaded.config)
        assert again.config.intermediate_size == tiny_config("tnn").intermediate_size

    @pytest.mark.parametrize(
        ("model_type", "fields"),
        [
            ("tnn", {"image_size": 8, "is_causal": True, "embedding_scale": None}),
            ("poly_transformer", {"degree": None}),
            ("poly_transformer", {"normalization": "static", "norm_type": "simple_rms"}),
            ("ipa", {"rank": None, "max_relative_distance": None}),
            ("seqmix_hybrid", {"mixer_types": ["tnn"]}),
        ],
    )
    def test_fields_set_later_count_as_those_of_a_new_configuration(self, model_type, fields):
        expected = tiny_config(model_type, **fields)
        config = tiny_config(model_type, **{name: fields[name] for name in fields if name == "image_size"})
        for name, value in fields.items():
            setattr(config, name, value)
        config.complete()
        assert {name: getattr(config, name) for name in fields} == {name: getattr(expected, name) for name in fields}

    @pytest.mark.parametrize(
        ("config", "message"), [("tnn", "should be an instance of"), (BertConfig(), "BertConfig")]
    )
    def test_what_is_no_configuration_of_the_family(self, config, message):
        with pytest.raises(TypeError, match=message):
            TNNForCausalLM(config)
