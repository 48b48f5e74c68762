"""Models with a copy head, their formula token by token, and what such a head changes of the common tests."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from hf_seqmix import SeqMixConfig, SeqMixHybridConfig
from tests.models.suite import VOCAB, perturb
from tests.tolerances import assert_close

FORMS = [{}, {"copy_head_tokens": 2}, {"copy_head_tokens": 3, "copy_head_state": True}]
"""The token alone, the last two, and the last three with the hidden state."""


OWN = {
    "attention": {"num_heads": 2},
    "tnn": {"decay": 0.95, "rpe_hidden_size": 8},
    "fd_tnn": {"rpe_hidden_size": 8},
    "ipa": {"num_centers": 4, "token_shift": 2},
    "poly_transformer": {"num_attention_heads": 2},
    "short_conv": {"taps": 3},
}
MIXERS = [["tnn", "attention"], ["attention", "fd_tnn"], ["short_conv"], ["ipa"], ["poly_transformer"]]
"""The first layer of a cache keeps the pairs, beside a history, keys, inputs, or sums."""


def make(mixers: list[str], **fields: Any) -> PreTrainedModel:
    config = SeqMixHybridConfig(
        vocab_size=31, hidden_size=16, pad_token_id=0, eos_token_id=None, mixer_types=mixers,
        mixer_configs={mixer: OWN[mixer] for mixer in mixers}, copy_head=True, copy_head_rank=5, **fields,
    )  # fmt: skip
    return perturb(AutoModelForCausalLM.from_config(config), 0.2).double().eval()


def copied(model: PreTrainedModel, ids: list[int], states: Tensor) -> Tensor:
    """Log p after each of `ids`, token by token, from hidden states (length, channels)."""
    head, embed = model.copy_head, model.get_input_embeddings()
    compared, with_state = model.config.copy_head_tokens, model.config.copy_head_state

    def added(projection: nn.Linear, tokens: list[int]) -> Tensor:
        """What the newest token, the one before, ... give."""
        rank = model.config.copy_head_rank
        return sum(
            projection(embed(torch.tensor(token)))[turn * rank : (turn + 1) * rank]
            for turn, token in enumerate(tokens)
            if token is not None
        )

    def last(end: int) -> list[int | None]:
        return [ids[j] if j >= 0 else None for j in range(end, end - compared, -1)]

    out = []
    for here, state in enumerate(states):
        p = model.lm_head(state).softmax(-1)
        if here > 0:
            query = added(head.q_proj, last(here)) + (head.state_proj(state) if with_state else 0)
            keys = [added(head.k_proj, last(j) + ([ids[j + 1]] if with_state else [])) for j in range(here)]
            scores = torch.stack(keys) @ query / len(query) ** 0.5
            alpha = scores.softmax(-1)
            gate = head.gate_proj(state) - 2
            gate = torch.sigmoid(gate + head.score_gate * scores.logsumexp(-1) if with_state else gate)
            p = (1 - gate) * p
            for j in range(here):
                p = p + gate * alpha[j] * nn.functional.one_hot(torch.tensor(ids[j + 1]), len(p))
        out.append(p.log())
    return torch.stack(out)


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
