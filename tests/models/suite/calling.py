"""Outputs and arguments of a call."""

import pytest
import torch

from hf_seqmix.models.mixers import WeighingMixer
from tests.models.suite.base import VOCAB, SuiteBase
from tests.tolerances import MODEL_TOLERANCE, assert_close


class CallingTests(SuiteBase):
    """What a model returns as asked for, and what it refuses."""

    def test_hidden_states(self, is_causal):
        model = self.make("Model", is_causal)
        out = model(**self.batch("Model"), output_hidden_states=True)
        assert len(out.hidden_states) == model.config.num_hidden_layers + 1
        assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
        as_tuple = model(**self.batch("Model"), output_hidden_states=True, return_dict=False)
        assert isinstance(as_tuple, tuple)

    @pytest.mark.parametrize(
        "each", [pytest.param(False, id="once"), pytest.param(True, id="each direction", marks=pytest.mark.slow)]
    )
    def test_tuples_by_configuration(self, each):
        for suffix, is_causal in self.heads() if each else self.some_heads():
            model, batch = self.make(suffix, is_causal), self.batch(suffix)
            expected = model(**batch)[0]
            model.config.return_dict = False
            out = model(**batch)
            assert isinstance(out, tuple)
            assert torch.equal(out[0], expected)
            assert torch.equal(model(**batch, return_dict=True)[0], expected)

    @pytest.mark.parametrize(
        "each", [pytest.param(False, id="once"), pytest.param(True, id="each direction", marks=pytest.mark.slow)]
    )
    def test_attentions(self, each):
        for suffix, is_causal in self.heads() if each else self.some_heads():
            model, batch = self.make(suffix, is_causal), self.batch(suffix)
            depth, blocks = model.config.num_hidden_layers, model.base_model.layers
            weighing = [isinstance(blocks[i % len(blocks)].mixer, WeighingMixer) for i in range(depth)]
            if not any(weighing):
                with pytest.raises(ValueError, match="output_attentions is True, but the mixers of this model"):
                    model(**batch, output_attentions=True)
                continue
            out = model(**batch, output_attentions=True)
            assert len(out.attentions) == sum(weighing)
            assert_close(out[0], model(**batch)[0], factor=MODEL_TOLERANCE[torch.float64] / 1e-11)
            assert model(**batch).attentions is None

    def test_embeddings_instead_of_ids(self, is_causal):
        model = self.make("Model", is_causal)
        ids = self.batch("Model")["input_ids"]
        out = model(inputs_embeds=model.get_input_embeddings()(ids))
        assert torch.equal(out[0], model(ids)[0])
        for kwargs in ({}, {"input_ids": ids, "inputs_embeds": model.get_input_embeddings()(ids)}):
            with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
                model(**kwargs)

    def test_logits_to_keep(self):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no causal language model")
        model = self.make("ForCausalLM")
        ids = torch.randint(VOCAB, (2, 9))
        full = model(ids).logits
        assert_close(model(ids, logits_to_keep=1).logits, full[:, -1:])
        assert_close(model(ids, logits_to_keep=4).logits, full[:, -4:])
        assert_close(model(ids, logits_to_keep=torch.tensor([0, 5])).logits, full[:, [0, 5]])

    def test_resizing_and_tying_of_embeddings(self):
        for suffix, is_causal in self.heads():
            if suffix not in ("ForCausalLM", "ForMaskedLM"):
                continue
            model = self.make(suffix, is_causal)
            ids = torch.randint(VOCAB, (2, 9))
            before = model(ids).logits
            model.resize_token_embeddings(VOCAB + 5)
            assert model.lm_head.weight is model.get_input_embeddings().weight
            assert model.config.vocab_size == VOCAB + 5
            assert_close(model(ids).logits[..., :VOCAB], before)
            assert model(ids, labels=ids).loss.isfinite()
            untied = self.make(suffix, is_causal, tie_word_embeddings=False)
            assert untied.lm_head.weight is not untied.get_input_embeddings().weight

    def test_bad_arguments_are_refused_clearly(self, is_causal):
        model = self.make("Model", is_causal)
        ids = torch.randint(VOCAB, (2, 9))
        with pytest.raises(
            ValueError, match=f"input_ids run from 0 to {VOCAB}, but the vocabulary has ids 0 to {VOCAB - 1}"
        ):
            model(torch.tensor([[0, VOCAB]]))
        with pytest.raises(ValueError, match="input_ids run from -1"):
            model(torch.tensor([[0, -1]]))
        with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 8\)"):
            model(ids, attention_mask=torch.ones(2, 8))
        with pytest.raises(ValueError, match=r"must be \(batch, length\)"):
            model(ids[0])
