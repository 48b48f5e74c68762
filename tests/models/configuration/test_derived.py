"""Configurations derived from a family's, with a `model_type` of their own, as transformers has it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hf_seqmix import (
    IPAConfig,
    IPAForCausalLM,
    PolyTransformerConfig,
    PolyTransformerForCausalLM,
    SeqMixConfig,
    SeqMixHybridConfig,
    TNNConfig,
    TNNForCausalLM,
)
from hf_seqmix.models.configuration import MIXER_CONFIGS
from hf_seqmix.models.mixers import build_mixer

SMALL: dict[str, Any] = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2}
IDS = torch.randint(31, (2, 9))


class DerivedTNNConfig(TNNConfig):
    model_type = "derived_tnn"


class DerivedTNNForCausalLM(TNNForCausalLM):
    config_class = DerivedTNNConfig


class TwiceDerivedConfig(DerivedTNNConfig):
    model_type = "twice_derived"


class DerivedIPAConfig(IPAConfig):
    model_type = "derived_ipa"


class DerivedPolyConfig(PolyTransformerConfig):
    model_type = "derived_poly"


class WithoutMixerConfig(SeqMixConfig):
    model_type = "without_mixer"


@pytest.mark.parametrize(
    ("derived", "family", "model_class"),
    [
        (DerivedTNNConfig, TNNConfig, TNNForCausalLM),
        (TwiceDerivedConfig, TNNConfig, TNNForCausalLM),
        (DerivedIPAConfig, IPAConfig, IPAForCausalLM),
        (DerivedPolyConfig, PolyTransformerConfig, PolyTransformerForCausalLM),
    ],
)
def test_models_are_those_of_the_family(derived: Any, family: Any, model_class: Any) -> None:
    torch.manual_seed(0)
    own = model_class(derived(**SMALL)).eval()
    torch.manual_seed(0)
    assert torch.equal(own(IDS).logits, model_class(family(**SMALL)).eval()(IDS).logits)
    assert derived.model_type not in MIXER_CONFIGS


def test_saved_and_registered(tmp_path: Path) -> None:
    AutoConfig.register("derived_tnn", DerivedTNNConfig, exist_ok=True)
    AutoModelForCausalLM.register(DerivedTNNConfig, DerivedTNNForCausalLM, exist_ok=True)
    model = DerivedTNNForCausalLM(DerivedTNNConfig(**SMALL)).eval()
    model.save_pretrained(tmp_path)
    for cls in (DerivedTNNForCausalLM, AutoModelForCausalLM):
        again = cls.from_pretrained(tmp_path)
        assert type(again) is DerivedTNNForCausalLM
        assert type(again.config) is DerivedTNNConfig
        assert torch.equal(again.eval()(IDS).logits, model(IDS).logits)


def test_hybrids_name_the_mixer_of_the_family() -> None:
    with pytest.raises(ValueError, match="names 'derived_tnn'; known are"):
        SeqMixHybridConfig(**SMALL, mixer_types=["derived_tnn", "tnn"])


def test_a_family_without_a_mixer_is_told_how_to_add_one() -> None:
    with pytest.raises(ValueError, match=r"'without_mixer'; known are .*register_mixer adds one"):
        build_mixer(WithoutMixerConfig(**SMALL), 0)
