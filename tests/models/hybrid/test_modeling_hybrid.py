"""Hybrids, and softmax attention alone."""

from typing import Any, ClassVar

import pytest
import torch

from hf_seqmix import SeqMixHybridConfig, SeqMixHybridForCausalLM
from hf_seqmix._compat import CACHE_NAME
from hf_seqmix.models.hybrid.modeling_hybrid import HYBRID_FAMILY
from tests.models.suite import PADS, VOCAB, CompiledModelSuite
from tests.models.suite.caching import CachingTests
from tests.models.suite.calling import CallingTests
from tests.models.suite.compiling import CompilingTests
from tests.models.suite.generating import GeneratingTests
from tests.models.suite.padding import PaddingTests
from tests.models.suite.saving import SavingTests
from tests.models.suite.training import TrainingTests

MIXERS: dict[str, dict[str, Any]] = {
    "attention": {"num_heads": 2},
    "tnn": {"decay": 0.95, "rpe_hidden_size": 8, "expand_ratio": 1.5},
    "fd_tnn": {"rpe_hidden_size": 8, "expand_ratio": 1.5},
    "ipa": {"num_centers": 2},
    "poly_transformer": {"num_attention_heads": 2, "degree": 3},
}


class HybridConfigurations:
    """Configurations of hybrids of the mixers that a test class names."""

    family = HYBRID_FAMILY
    mixer_types: ClassVar[tuple[str, ...]]
    few_layers: ClassVar[dict[str, int]] = {}

    def config(self, is_causal: bool = True, **kwargs: Any) -> SeqMixHybridConfig:
        own = {name: fields for name, fields in MIXERS.items() if name in ("attention", *self.mixer_types)}
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "mixer_types": list(self.mixer_types), "mixer_configs": own}
        return SeqMixHybridConfig(**{**fields, "is_causal": is_causal, **kwargs})


class TestAttention(HybridConfigurations, CachingTests):
    """Every layer's cache is the library's; the slow class below has the other tests."""

    mixer_types = ("attention", "attention")


class TestAttentionLast(HybridConfigurations, SavingTests, CallingTests, TrainingTests, CompilingTests):
    """What two kinds of layers show, and graphs with their caches; the slow class below has the others."""

    mixer_types = ("tnn", "attention")

    test_exports_with_any_length = None
    test_exports_with_positions = None
    test_the_librarys_exporter_takes_both_stages_of_generation = None  # IPA's copy head has such a cache, too
    test_a_compiled_training_step_has_the_same_gradients = None


@pytest.mark.slow
class TestCompiledAttentionLast(HybridConfigurations, CompiledModelSuite):
    mixer_types = ("tnn", "attention")


class FourMixers(HybridConfigurations):
    """Keys and values, a history, inputs, and sums: four kinds of cache side by side, attention first."""

    mixer_types = ("attention", "fd_tnn", "ipa", "poly_transformer")

    def config(self, is_causal: bool = True, **kwargs: Any) -> SeqMixHybridConfig:
        # Deviations of 0.02 are made for wider models: these would hardly move in the dozen steps of a test.
        return super().config(is_causal, **{"initializer_range": 0.2, **kwargs})


class TestFourMixers(FourMixers, PaddingTests, CachingTests, GeneratingTests):
    def test_a_later_mask_must_have_the_order_of_the_cache(self, generator):
        """A prompt that ends in pads and is read in chunks is read pads first."""
        right = torch.tensor(PADS["right"])
        settings = {"max_new_tokens": 2, "prefill_chunk_size": 4, "return_dict_in_generate": True}
        ids = torch.randint(1, VOCAB, right.shape)
        first = generator.generate(ids, attention_mask=right, **settings)
        text = torch.cat([first.sequences, ids], dim=1)
        settings[CACHE_NAME] = getattr(first, CACHE_NAME)
        turn = torch.ones(2, 11, dtype=torch.long)
        with pytest.raises(ValueError, match=r"read in chunks, pads first.*pad prompts on the left"):
            generator.generate(text, attention_mask=torch.cat([right, turn], dim=1), **settings)


@pytest.mark.slow
class TestTrainedFourMixers(FourMixers, SavingTests, CallingTests, TrainingTests):
    """By default fewer layers are saved, called and trained."""


@pytest.mark.slow
class TestCompiledAttention(HybridConfigurations, CompiledModelSuite):
    mixer_types = ("attention", "attention")


@pytest.mark.slow
class TestCompiledAttentionFirst(HybridConfigurations, CompiledModelSuite):
    mixer_types = ("attention", "tnn")


def test_defaults_are_the_attention_control():
    config = SeqMixHybridConfig()
    assert config.mixer_types == ["attention"] * 7
    assert config.layer_types == ["full_attention"] * 7
    assert SeqMixHybridConfig(mixer_types=["tnn", "attention"]).num_hidden_layers == 2


def test_fewer_names_are_repeated():
    config = SeqMixHybridConfig(mixer_types=["tnn", "attention"], num_hidden_layers=6)
    assert config.layer_mixers == ["tnn", "attention"] * 3
    assert SeqMixHybridConfig(mixer_types=["tnn"], num_hidden_layers=2).layer_mixers == ["tnn", "tnn"]
    assert SeqMixHybridConfig(mixer_types=["tnn", "ipa"]).num_hidden_layers == 2
    assert SeqMixHybridConfig.from_dict(config.to_dict()).layer_mixers == config.layer_mixers


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mixer_types": ["tnn", "mamba"]}, "mixer_types names 'mamba'; known are attention,.*tnn"),
        (
            {"mixer_types": ["tnn"] * 2, "num_hidden_layers": 3},
            "mixer_types names 2 layers, but num_hidden_layers is 3",
        ),
        ({"mixer_types": [], "num_hidden_layers": 3}, "mixer_types is \\[\\]; it must name a mixer for each layer"),
        ({"mixer_configs": {"foo": {}}}, "mixer_configs names 'foo'; known are attention,.*tnn"),
        ({"mixer_configs": {"attention": {"num_heads": 3}}}, "num_heads is 3, which does not divide hidden_size 512"),
        ({"mixer_configs": {"attention": {"heads": 3}}}, "sets heads: the mixer has no such field"),
        ({"mixer_configs": {"tnn": {"hidden_size": 3}}}, "sets hidden_size: these are fields of the whole model"),
        ({"mixer_configs": {"tnn": {"norm_type": "layer"}}}, "sets norm_type: these are fields of the whole model"),
        ({"mixer_configs": {"ipa": {"copy_head": True}}}, "sets copy_head: these are fields of the whole model"),
        ({"mixer_configs": {"tnn": {"image_size": 8}}}, "sets image_size: these are fields of the whole model"),
        ({"mixer_configs": {"ipa": {"patch_size": 2}}}, "sets patch_size: these are fields of the whole model"),
        (
            {"mixer_configs": {"tnn": {"mixing_dimensions": 2}}, "image_size": 8, "is_causal": False},
            "hybrids mix an image as a sequence",
        ),
        ({"mixer_configs": {"tnn": {"decay": 2}}}, "decay is 2; it must be greater than 0 and at most 1"),
    ],
)
def test_configurations_that_make_no_sense(fields, message):
    with pytest.raises(ValueError, match=message):
        SeqMixHybridConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mixer_types": 3}, "mixer_types is 3; it must be a list of names"),
        ({"mixer_types": [["tnn"]]}, r"mixer_types is \[\['tnn'\]\]; it must be a list of names"),
        ({"mixer_configs": 3}, "mixer_configs is 3; it must map the name of a mixer to its fields"),
        ({"mixer_configs": [1]}, r"mixer_configs is \[1\]; it must map"),
        ({"mixer_configs": "x"}, "mixer_configs is 'x'; it must map"),
        ({"mixer_configs": {"poly_transformer": 3}}, "mixer_configs is {'poly_transformer': 3}; it must map"),
    ],
)
def test_fields_of_other_types(fields, message):
    with pytest.raises(ValueError, match=message):
        SeqMixHybridConfig.from_dict(fields)
    config = SeqMixHybridConfig(hidden_size=16)
    vars(config).update(fields)
    with pytest.raises(ValueError, match=message):
        config.complete()


@torch.no_grad()
def test_an_assistant_takes_generated_pads_for_tokens():
    """Logits of zeros name token 0, which pads, too; drafts of an assistant that names others are taken back."""
    fields = {"vocab_size": 31, "hidden_size": 16, "mixer_types": ["attention", "fd_tnn"], "pad_token_id": 0}
    own = {"attention": {"num_heads": 2}, "fd_tnn": {"rpe_hidden_size": 8}}
    config = SeqMixHybridConfig(**fields, mixer_configs=own, tie_word_embeddings=False)
    model, assistant = SeqMixHybridForCausalLM(config).eval(), SeqMixHybridForCausalLM(config).eval()
    model.lm_head.weight.zero_()
    ids, settings = torch.randint(1, 31, (1, 9)), {"max_new_tokens": 8, "do_sample": False}
    assert model.generate(ids, assistant_model=assistant, **settings)[0, 9:].tolist() == [0] * 8
    assert model.generate(ids, assistant_early_exit=1, **settings)[0, 9:].tolist() == [0] * 8
