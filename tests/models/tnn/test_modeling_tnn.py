"""The Toeplitz neural network."""

from typing import Any, ClassVar

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from hf_seqmix import SeqMixHybridConfig, SeqMixHybridForCausalLM, TNNConfig, TNNForCausalLM, TNNForMaskedLM
from hf_seqmix.models.tnn.modeling_tnn import TNN_FAMILY
from tests.models.suite import VOCAB, CompiledModelSuite, perturb
from tests.tolerances import assert_close, relative_error


class TestTNN(CompiledModelSuite):
    family = TNN_FAMILY

    def config(self, is_causal: bool = True, **kwargs: Any) -> TNNConfig:
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "expand_ratio": 1.5, "decay": 0.95}
        return TNNConfig(**{**fields, "rpe_hidden_size": 8, "is_causal": is_causal, **kwargs})


class TestTNNOfSeveralDecays:
    fields: ClassVar[dict[str, Any]] = {"vocab_size": VOCAB, "hidden_size": 8, "num_hidden_layers": 2}

    def make(self, **fields: Any) -> TNNForCausalLM:
        torch.manual_seed(0)
        config = TNNConfig(**self.fields, rpe_hidden_size=8, channel_decays=[0.5, 0.9], **fields)
        return perturb(TNNForCausalLM(config)).double().eval()

    def test_decoding_is_the_full_text(self):
        model, ids = self.make(), torch.randint(VOCAB, (2, 401))
        full = model(ids, use_cache=False).logits
        cache, outputs = DynamicCache(config=model.config), []
        for part in ids.split([300, *[1] * 20, 70, *[1] * 11], dim=1):
            outputs.append(model(part, past_key_values=cache).logits)
        assert_close(torch.cat(outputs, dim=1), full)
        other = TNNForCausalLM(TNNConfig(**self.fields, rpe_hidden_size=8, decay=0.9)).double().eval()
        other.load_state_dict(model.state_dict())  # decays are no part of the weights
        assert relative_error(other(ids).logits, full) > 1e-3

    def test_its_decoder_can_be_distilled(self):
        model, ids = self.make(), torch.randint(VOCAB, (1, 120))
        full = model(ids, use_cache=False).logits
        report = model.distill_decoder(tolerance=1e-3, exact_taps=8)
        assert max(row["tap_error"] for row in report.rows()) < 1e-3
        modal = torch.cat(
            [
                model(part, past_key_values=c).logits
                for c in [DynamicCache(config=model.config)]
                for part in ids.split([90, *[1] * 30], dim=1)
            ],
            dim=1,
        )
        assert 0 < relative_error(modal, full) < 1e-2

    def test_comes_back_bit_equal(self, tmp_path):
        model, ids = self.make().float(), torch.randint(VOCAB, (1, 9))
        model.save_pretrained(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert loaded.config.channel_decays == [0.5, 0.9]
        assert torch.equal(loaded(ids).logits, model(ids).logits)

    def test_a_decay_beside_them_is_refused(self):
        with pytest.raises(ValueError, match=r"decay is 0.9 and channel_decays \[0.5, 0.9\]: give one decay"):
            self.make(decay=0.9)
        assert self.make(decay=None).config.decay is None
        with pytest.raises(ValueError, match="decay is None, and so is channel_decays"):
            TNNConfig(decay=None)

    def test_layers_of_a_hybrid_have_them_too(self):
        config = SeqMixHybridConfig(
            **self.fields, mixer_types=["tnn", "fd_tnn"], mixer_configs={"tnn": {"channel_decays": [0.5, 0.9]}}
        )
        layers = SeqMixHybridForCausalLM(config).model.layers
        assert layers[0].mixer.operator.kernel.decay == (0.5, 0.9)


@pytest.mark.parametrize(
    ("model_class", "fields", "parameters"),
    [
        (TNNForCausalLM, {"vocab_size": 50264, "rpe_num_layers": 6}, 48_666_624),
        (TNNForCausalLM, {"vocab_size": 50264}, 48_579_264),
        (
            TNNForMaskedLM,
            {
                "vocab_size": 50265,
                "hidden_size": 768,
                "num_hidden_layers": 12,
                "rpe_num_layers": 6,
                "norm_position": "post",
                "is_causal": False,
            },
            126_372_441,
        ),
    ],
)
def test_parameters_of_the_published_models(model_class, fields, parameters):
    with torch.device("meta"):
        model = model_class(TNNConfig(**fields))
    assert sum(p.numel() for p in model.parameters()) == parameters
