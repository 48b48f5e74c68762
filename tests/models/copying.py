"""A family's suite with a copy head: what such a head changes of the common tests."""

from typing import Any

import pytest
import torch

from hf_seqmix import SeqMixConfig
from tests.models.suite import VOCAB
from tests.tolerances import assert_close


class Copying:
    """A family's configurations with a copy head, where they are causal."""

    def config(self, is_causal: bool = True, **kwargs: Any) -> SeqMixConfig:
        form = {"copy_head_rank": 5, "copy_head_tokens": 3, "copy_head_state": True}
        copies = {"copy_head": True, **form} if is_causal else {}
        return super().config(is_causal, **{**copies, **kwargs})

    def test_generation_from_embeddings(self, generator):
        embeds = generator.get_input_embeddings()(torch.randint(1, VOCAB, (1, 5)))
        with pytest.raises(ValueError, match="give input_ids instead of inputs_embeds"):
            generator.generate(inputs_embeds=embeds, max_new_tokens=6)

    def test_resizing_and_tying_of_embeddings(self):
        """Log-probabilities are over more tokens then: their differences stay, but for what is copied."""
        model = self.make("ForCausalLM")
        ids = torch.full((1, 1), 7)  # nothing to copy
        before = model(ids).logits
        model.resize_token_embeddings(VOCAB + 5)
        after = model(ids).logits[..., :VOCAB]
        assert_close(after - after[..., :1], before - before[..., :1])
        assert model.lm_head.weight is model.get_input_embeddings().weight
