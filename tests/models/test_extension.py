"""A family in under 40 lines: configuration, mixer, classes, one table row. The common suite holds for it."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from huggingface_hub.dataclasses import strict
from torch import Tensor, arange, device, equal, nn
from transformers import GenerationMixin

from hf_seqmix import (
    Family,
    GatedToeplitzUnit,
    SeqMixConfig,
    ToeplitzOperator,
    from_hybrid,
    register_family,
    to_hybrid,
)
from hf_seqmix.models.backbone import SeqMixModel
from hf_seqmix.models.heads import (
    SeqMixForCausalLM,
    SeqMixForImageClassification,
    SeqMixForMaskedLM,
    SeqMixForQuestionAnswering,
    SeqMixForSequenceClassification,
    SeqMixForTokenClassification,
)
from hf_seqmix.models.pretrained import SeqMixPreTrainedModel
from tests.models.suite import VOCAB, CompiledModelSuite
from tests.models.suite.caching import CachingTests
from tests.models.suite.saving import SavingTests

# -- the family ----------------------------------------------------------------------------------------------------


@strict
class PowerLawConfig(SeqMixConfig):
    model_type: ClassVar[str] = "power_law"
    cache_layer_type: ClassVar[str] = "seqmix_history"

    exponent: float | int = 1.5


class PowerLawKernel(nn.Module):
    """k(t) = scale (1 + |t|)^-exponent."""

    def __init__(self, channels: int, exponent: float, is_causal: bool) -> None:
        super().__init__()
        self.scale, self.exponent, self.is_causal = nn.Linear(1, channels), exponent, is_causal

    def forward(self, length: int, device: device) -> Tensor:
        lags = arange(0 if self.is_causal else 1 - length, length, dtype=self.scale.weight.dtype, device=device)
        return self.scale(lags.new_ones(1, 1)).T * (1 + lags.abs()) ** -self.exponent  # (channels, lags)


def build_power_law_mixer(config: PowerLawConfig, layer_idx: int) -> nn.Module:
    kernel = PowerLawKernel(config.hidden_size, config.exponent, config.is_causal)
    operator = ToeplitzOperator(kernel, config.is_causal, layer_idx)
    return GatedToeplitzUnit(config.hidden_size, config.hidden_size, operator, layer_idx=layer_idx)


class PowerLawPreTrainedModel(SeqMixPreTrainedModel):
    config_class = PowerLawConfig


class PowerLawModel(SeqMixModel, PowerLawPreTrainedModel): ...


class PowerLawForCausalLM(SeqMixForCausalLM, PowerLawPreTrainedModel, GenerationMixin):
    base_model_class = PowerLawModel


class PowerLawForMaskedLM(SeqMixForMaskedLM, PowerLawPreTrainedModel):
    base_model_class = PowerLawModel


class PowerLawForSequenceClassification(SeqMixForSequenceClassification, PowerLawPreTrainedModel):
    base_model_class = PowerLawModel


class PowerLawForTokenClassification(SeqMixForTokenClassification, PowerLawPreTrainedModel):
    base_model_class = PowerLawModel


class PowerLawForQuestionAnswering(SeqMixForQuestionAnswering, PowerLawPreTrainedModel):
    base_model_class = PowerLawModel


class PowerLawForImageClassification(SeqMixForImageClassification, PowerLawPreTrainedModel):
    base_model_class = PowerLawModel


POWER_LAW_FAMILY = Family(PowerLawPreTrainedModel, build_power_law_mixer)
register_family(POWER_LAW_FAMILY)

# -- the end of the family -----------------------------------------------------------------------------------------


class PowerLawConfigurations:
    family = POWER_LAW_FAMILY

    def config(self, is_causal: bool = True, **kwargs: Any) -> PowerLawConfig:
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "is_causal": is_causal}
        return PowerLawConfig(**{**fields, **kwargs})


class TestPowerLaw(PowerLawConfigurations, SavingTests, CachingTests):
    """The slow class below has all tests."""


@pytest.mark.slow
class TestCompiledPowerLaw(PowerLawConfigurations, CompiledModelSuite): ...


def test_the_family_comes_back_from_a_hybrid():
    model = PowerLawForCausalLM(PowerLawConfigurations().config(exponent=2)).eval()
    back, ids = from_hybrid(to_hybrid(model)), arange(7)[None]
    assert type(back) is PowerLawForCausalLM and back.config.exponent == 2
    assert equal(back(ids).logits, model(ids).logits)


def test_the_family_is_short():
    lines = Path(__file__).read_text().split("# -- the")[1].splitlines()[1:]
    assert len([line for line in lines if line.strip()]) < 40
