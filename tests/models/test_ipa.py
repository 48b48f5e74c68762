"""IPA: the common suite, and what is its own."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache, StaticCache

from hf_seqmix import IPAConfig, IPAForCausalLM, IPAForMaskedLM, IPAModel, SeqMixHybridConfig, SeqMixHybridForCausalLM
from hf_seqmix.models.ipa.modeling_ipa import IPA_FAMILY
from tests.models.suite import PADS, VOCAB, ModelSuite, perturb
from tests.tolerances import MODEL_TOLERANCE, assert_close, relative_error


class TestIPA(ModelSuite):
    family = IPA_FAMILY
    own: dict[str, Any] = {}

    def config(self, is_causal: bool = True, **kwargs: Any) -> IPAConfig:
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_centers": 4}
        fields |= {"max_position_embeddings": 24, "is_causal": is_causal, **self.own, **kwargs}
        if not is_causal:
            fields.pop("copy_head", None)
        return IPAConfig(**fields)


EXTENDED = {"token_shift": 3, "copy_head": True, "kernel_norm": "prod", "tie_iterations": True}


class TestExtendedIPA(TestIPA):
    """All extensions at once, where they could matter."""

    own = EXTENDED

    def test_masks_of_this_calls_tokens_alone(self):
        model = self.make("ForCausalLM")
        ids, mask = torch.randint(VOCAB, (2, 9)), torch.tensor(PADS["inside"])
        cache = DynamicCache(config=model.config)
        model(ids[:, :3], mask[:, :3], past_key_values=cache, use_cache=True)
        with pytest.raises(ValueError, match="give a mask of 6 columns"):
            model(ids[:, 3:6], mask[:, 3:6], past_key_values=cache, use_cache=True)

    def test_generation_from_embeddings(self, generator):
        embeds = generator.get_input_embeddings()(torch.randint(1, VOCAB, (1, 5)))
        with pytest.raises(ValueError, match="give input_ids instead of inputs_embeds"):
            generator.generate(inputs_embeds=embeds, max_new_tokens=6)


def make(**kwargs: Any) -> IPAForCausalLM:
    return perturb(IPAForCausalLM(TestIPA().config(True, **kwargs)), 0.2).double().eval()
