"""Configurations from hostile files: a `ValueError` or the library's own error, at once and without memory."""

import time
import warnings
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_seqmix import FDTNNConfig, IPAConfig, PolyTransformerConfig, SeqMixHybridConfig, TNNConfig
from hf_seqmix.models.auto import FAMILIES

SIZES = st.one_of(st.integers(-2, 40), st.sampled_from([2**15, 2**20, 2**24, 2**31, 2**70, -(10**30), 10**400]))
NUMBERS = st.one_of(SIZES, st.floats(), st.sampled_from([0.5, 2.5, 1e-300, 1e308]))
WORDS = st.sampled_from(
    [
        "none",
        "simple_rms",
        "layer",
        "batch",
        "static",
        "pre",
        "post",
        "learned",
        "sinusoidal",
        "relu",
        "silu",
        "uniform",
        "normal",
        "mean",
        "last",
        "first",
        "cubic",
        "linear",
        "omega",
        "cosine",
        "soft",
        "gate",
        "cumsum",
        "content",
        "toeplitz",
        "triangular",
        "shared",
        "bilinear",
        "p",
        "j",
        "prod",
        "mix",
        "glu",
        "rms",
        "mlp",
        "float32",
        "manual_seed",
        "tnn",
        "ipa",
        "attention",
    ]
)
MIXERS = st.sampled_from(["tnn", "fd_tnn", "ski_tnn", "ipa", "poly_transformer", "attention", "x"])
OWN = st.dictionaries(
    st.sampled_from(["decay", "num_centers", "degree", "num_heads", "hidden_size"]), NUMBERS, max_size=2
)
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    WORDS,
    st.text(max_size=4),
    st.lists(st.one_of(NUMBERS, MIXERS), max_size=4),
    st.dictionaries(MIXERS, OWN, max_size=2),
)
# What a file may hold beside a family's fields: what the library takes, what it derives, and what would break it.
EXTRA = [
    "num_labels",
    "id2label",
    "dtype",
    "torch_dtype",
    "layer_types",
    "num_attention_heads",
    "to_dict",
    "__class__",
    "__dict__",
    "_auto_class",
    "attribute_map",
    "cache_layer_type",
    "base_model_tp_plan",
    "rope_scaling",
    "rope_theta",
    "output_attentions",
    "name_or_path",
    "problem_type",
    "attn_implementation",
    "per_layer_config",
    "temperature",
    "quantization_config",
    "model_type",
    "unknown",
]
SMALL: dict[str, Any] = {"vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 8}


@st.composite
def configurations(draw):
    """Draw a family and fields of it, most of them sensible, so that some get through."""
    family = draw(st.sampled_from(FAMILIES))
    own = sorted(family.config_class.__dataclass_fields__)
    field = st.one_of(st.sampled_from(own), st.sampled_from(EXTRA))
    value = st.one_of(st.integers(1, 16), WORDS, ANYTHING)
    return family, {**draw(st.sampled_from([{}, SMALL])), **draw(st.dictionaries(field, value, max_size=4))}


@settings(max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(configurations(), st.data())
def test_no_configuration_does_harm(drawn, data):
    family, fields = drawn
    begin = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library's, about names that it renamed
            config = family.config_class.from_dict(fields)
            heads = [cls for _, cls in sorted(family.classes.items())]
            with torch.device("meta"):
                data.draw(st.sampled_from(heads))(config)
    except (ValueError, StrictDataclassError):
        pass
    assert time.monotonic() - begin < 60  # seconds: no hang; not a benchmark


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 10**400}, "hidden_size is a number of 1329 bits; it must be at most 1048576"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be at most 1024"),
        ({"expand_ratio": 1e308}, r"expand_ratio is 1e\+308; it must be at most 1024"),
        ({"image_size": [2**40, 1], "is_causal": False}, "image_size is 1099511627776"),
        ({"num_labels": 10**12}, "num_labels is 1000000000000; it must be at most 65536"),
        ({"num_labels": "3"}, "num_labels is '3'; it must be a number of classes"),
        ({"num_labels": None}, "num_labels is None"),
        ({"id2label": {"a": "b"}}, "id2label is {'a': 'b'}; it must map the number of each class to a name"),
        ({"id2label": ["a"]}, "id2label"),  # some releases of the library check it themselves
        ({"to_dict": 1}, "to_dict is part of the configuration's own code"),
        ({"__class__": 1}, "__class__ is part of"),
        ({"cache_layer_type": "x"}, "cache_layer_type is part of"),
        ({"dtype": "manual_seed"}, "dtype is 'manual_seed'; it must be a type of PyTorch, such as 'float32'"),
        ({"base_model_tp_plan": 1}, "base_model_tp_plan is 1; it must be an object"),
        ({"attn_implementation": 3}, "attn_implementation is 3; it must be a string"),
        ({"per_layer_config": {"0": {}}}, "per_layer_config is set"),
        ({"quantization_config": "x" * 900}, r"quantization_config is 'x+\.\.\.; it must be an object"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_no_configuration_may_say(fields, message):
    with pytest.raises((ValueError, StrictDataclassError), match=message):
        TNNConfig(**fields)


def test_sizes_are_checked_before_anything_is_computed_from_them():
    with pytest.raises(ValueError, match="num_hidden_layers is 10000000000"):
        SeqMixHybridConfig(num_hidden_layers=10**10)  # not a list of so many names first
    with pytest.raises(ValueError, match="mixer_types has 5,000 entries"):
        SeqMixHybridConfig(mixer_types=["tnn"] * 5000)
    with pytest.raises(ValueError, match="num_centers is 100000"):
        IPAConfig(num_centers=100000)
    with pytest.raises(ValueError, match=r"mixer_configs\['tnn'\]: rpe_num_layers is 1000000"):
        SeqMixHybridConfig(mixer_types=["tnn"], mixer_configs={"tnn": {"rpe_num_layers": 10**6}})


MANY = [2 + (i % 62) + (i // 62) / 100 for i in range(1024)]


@pytest.mark.parametrize(
    ("config_class", "fields", "message"),
    [
        (TNNConfig, {"num_hidden_layers": 256, "rpe_num_layers": 64}, "rpe_num_layers that makes 16,384 layers"),
        (TNNConfig, {"num_hidden_layers": 1025}, "it must be at most 1024"),
        (PolyTransformerConfig, {"degree": 64, "num_hidden_layers": 65}, "degree that makes 4,160 layers"),
        (
            PolyTransformerConfig,
            {"layer_degrees": [64] * 65, "num_hidden_layers": 65},
            "layer_degrees that makes 4,160",
        ),
        (
            PolyTransformerConfig,
            {"head_degrees": MANY, "num_attention_heads": 1024, "hidden_size": 1024},
            "head_degrees that makes",
        ),
        (
            PolyTransformerConfig,
            {"mixing": "triangular", "max_position_embeddings": 2**31 - 1},
            "2147483647, num_atten",
        ),
        (IPAConfig, {"rank": 2**20, "num_centers": 2**16, "hidden_size": 2**20}, "num_centers 65536, rank 1048576"),
        (
            TNNConfig,
            {
                "image_size": 2**16,
                "patch_size": 2**16,
                "num_channels": 2**16,
                "hidden_size": 2**20,
                "is_causal": False,
            },
            "patch_size 65536, num_channels 65536, hidden_size 1048576 together make a tensor of more than",
        ),
        (
            TNNConfig,
            {"image_size": 2**16, "patch_size": [2**16, 2**15], "num_channels": 2**16, "is_causal": False},
            r"patch_size \[65536, 32768\]",
        ),
        (
            SeqMixHybridConfig,
            {"mixer_types": ["tnn"] * 256, "mixer_configs": {"tnn": {"rpe_num_layers": 64}}},
            "16,384",
        ),
    ],
)
def test_sizes_that_are_too_large_together(config_class, fields, message):
    with pytest.raises(ValueError, match=message):
        config_class(**fields)


def test_large_sizes_that_models_have():
    TNNConfig(num_hidden_layers=1000, max_position_embeddings=2**31, hidden_size=2**14, vocab_size=2**20)
    PolyTransformerConfig(num_hidden_layers=96, head_degrees=[2, 3, 4, 5, 6, 7, 8, 2.5], num_attention_heads=8)
    PolyTransformerConfig(mixing="triangular", max_position_embeddings=2**17)
    IPAConfig(max_position_embeddings=2**17, hidden_size=2**14, num_centers=128)


def test_other_extra_fields_are_kept_as_the_library_does():
    config = TNNConfig(some_tool_wrote_this=[1, 2], num_labels=5, name_or_path="x")
    assert config.some_tool_wrote_this == [1, 2] and config.num_labels == 5
    assert TNNConfig.from_dict(config.to_dict()).some_tool_wrote_this == [1, 2]
    numbers = {"trained_tokens": 5 * 10**9, "created_at": 1764317000000, "losses": [1.5] * 5000}
    assert TNNConfig(**numbers).to_dict().items() >= numbers.items()


@pytest.mark.parametrize(
    ("config_class", "field", "meant"),
    [
        (TNNConfig, "hiden_size", "hidden_size"),
        (TNNConfig, "num_layers", "num_hidden_layers"),
        (FDTNNConfig, "expand_ration", "expand_ratio"),
        (SeqMixHybridConfig, "mixers", "mixer_types"),
    ],
)
def test_a_misspelled_field_is_named_beside_the_one_that_was_meant(config_class, field, meant, caplog):
    config = config_class(**{field: 2})
    assert f"{config_class.__name__} has no field '{field}'" in caplog.text and meant in caplog.text
    # the library's own habit: what a caller adds stays, for whatever reads it
    assert getattr(config, field) == 2


@pytest.mark.parametrize("field", ["num_labels", "output_attentions", "is_encoder_decoder", "note_of_a_user"])
def test_fields_of_the_library_and_of_users_are_taken_in_silence(field, caplog):
    TNNConfig(**{field: 2})
    assert not caplog.records
