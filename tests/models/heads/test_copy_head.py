"""The copy head alone: what it predicts, in blocks, compiled, and after what a cache holds."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hf_seqmix.cache import CopyKeys, StaticCopyKeys
from hf_seqmix.models.heads.copy_head import CopyHead
from hf_seqmix.models.recent_tokens import sum_of_parts
from hf_seqmix.ops.layout import TokenLayout, token_layout
from tests.largest import Largest
from tests.tolerances import assert_close

VOCAB = 7


def parts(
    channels: int = 6, rank: int = 3, tokens: int = 1, with_state: bool = False
) -> tuple[CopyHead, nn.Embedding, nn.Linear]:
    head = CopyHead(channels, rank, tokens, with_state).double()
    if with_state:
        nn.init.constant_(head.score_gate, 0.7)
    return head, nn.Embedding(VOCAB, channels).double(), nn.Linear(channels, VOCAB).double()


def run(modules: tuple[CopyHead, nn.Embedding, nn.Linear], ids: Tensor, states: Tensor, layout: TokenLayout) -> Tensor:
    return ask(modules, ids, states, layout, None, 0)


def ask(
    modules: tuple[CopyHead, nn.Embedding, nn.Linear],
    ids: Tensor,
    states: Tensor,
    layout: TokenLayout,
    copy_keys: Any,
    past: int,
) -> Tensor:
    """Log p after each of `ids`, which follow `past` tokens that `copy_keys` holds."""
    head, embed, lm_head = modules
    recent = head.recent(ids, layout, copy_keys)
    embeddings = torch.where((recent.ids < 0).unsqueeze(-1), 0, embed(recent.ids.clamp(min=0)))
    keys, copied = head.keys(recent, embeddings, layout, copy_keys)
    places = torch.arange(ids.shape[1]) + past
    packed = None if layout.sequence_ids is None else (layout.sequence_ids, layout.sequence_ids)
    queries = sum_of_parts(head.q_proj(embeddings), recent.slots[..., : head.tokens])
    return head(states, queries, places, keys, copied, lm_head, VOCAB, packed)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"rank": 0}, ValueError, "rank is 0; it must be at least 1"),
        ({"tokens": 0}, ValueError, "tokens is 0; it must be at least 1"),
        ({"tokens": 1.5}, TypeError, "tokens is 1.5; it must be an integer, at least 1"),
    ],
)
def test_sizes_that_make_no_sense(wrong, error, message):
    with pytest.raises(error, match=message):
        CopyHead(8, **{"rank": 4, **wrong})


def test_copy_keys_skip_pads_and_stay_in_their_sequence():
    ids = torch.tensor([[5, 3, 0, 4, 6]])
    masked = token_layout(torch.tensor([[1, 1, 0, 1, 1]]), 1, 5)
    packed = token_layout(None, 1, 5, position_ids=torch.tensor([[0, 1, 0, 1, 2]]))
    modules, states = parts(), torch.zeros(1, 5, 6, dtype=torch.float64)
    for layout, expected in (
        (TokenLayout(), [[-1, 5], [3, 3], [0, 0], [4, 4], [6, 6]]),
        (masked, [[-1, 5], [3, 3], [-1, -1], [4, 4], [6, 6]]),
        (packed, [[-1, 5], [3, 3], [-1, 0], [4, 4], [6, 6]]),
    ):
        copy_keys = CopyKeys()
        ask(modules, ids, states, layout, copy_keys, 0)
        assert copy_keys.values[0, 0].tolist() == expected
    ask(modules, ids, states, TokenLayout(), copy_keys, 5)
    assert copy_keys.values[0, 0, 5:, 0].tolist() == [5, 3, 0, 4, 6]  # the first follows the last of the call before


def test_an_open_gate_copies_what_followed():
    """After a b c a the token b, whose predecessor is the same token, gets all of the probability."""
    head, embed, lm_head = parts(VOCAB, VOCAB)
    embed.weight.data = torch.eye(VOCAB).double()
    for projection in (head.q_proj, head.k_proj):
        projection.weight.data = 30 * torch.eye(VOCAB).double()
    head.gate_proj.weight.data.fill_(1e3)
    ids = torch.tensor([[1, 2, 3, 1]])
    states = torch.full((1, 4, VOCAB), 1.0, dtype=torch.float64)
    out = run((head, embed, lm_head), ids, states, TokenLayout())
    assert_close(out.exp().sum(-1), torch.ones(1, 4, dtype=torch.float64))
    assert out[0, 3].argmax().item() == 2 and out[0, 3, 2].exp().item() > 0.999
    # The first has nothing to copy.
    assert_close(out[0, 0], lm_head(states)[0, 0].log_softmax(-1))


def test_a_state_asks_for_what_it_expects_and_the_gate_for_what_matches():
    """Of the tokens that followed earlier ones the state chooses, and a gate that sees high scores opens."""
    head, embed, lm_head = parts(VOCAB, VOCAB, with_state=True)
    embed.weight.data = torch.eye(VOCAB).double()
    head.q_proj.weight.data.zero_()
    head.state_proj.weight.data = 30 * torch.eye(VOCAB).double()
    head.k_proj.weight.data = torch.cat([torch.zeros(VOCAB, VOCAB), torch.eye(VOCAB)]).double()
    head.gate_proj.weight.data.zero_()
    ids = torch.tensor([[1, 2, 3, 1]])
    states = 2 * torch.eye(VOCAB, dtype=torch.float64)[torch.tensor([[0, 0, 0, 3]])]
    probabilities = []
    for gate in (-1.0, 0.0, 1.0):
        nn.init.constant_(head.score_gate, gate)
        probabilities.append(run((head, embed, lm_head), ids, states, TokenLayout())[0, 3, 3].exp().item())
    assert probabilities[0] < 0.5 < 0.999 < probabilities[2]
    assert probabilities[0] < probabilities[1] < probabilities[2]


@pytest.mark.parametrize("memory", [1, 400])
@pytest.mark.parametrize("form", [{}, {"channels": 4, "tokens": 2, "with_state": True}], ids=str)
def test_blocks_are_the_whole_and_smaller(monkeypatch, form, memory):
    modules, ids = parts(**form), torch.randint(VOCAB, (2, 33))
    states = torch.randn(2, 33, form.get("channels", 6), dtype=torch.float64)
    results = []
    for limit in (2**20, memory):
        monkeypatch.setattr("hf_seqmix.models.heads.copy_head._BYTES", limit)
        modules[0].zero_grad()
        with Largest() as largest:
            out = run(modules, ids, states, TokenLayout())
            (out * out.detach()).sum().backward()
        results.append((out, modules[0].q_proj.weight.grad.clone(), largest.elements))
    assert_close(results[1][0], results[0][0])
    assert_close(results[1][1], results[0][1])
    assert results[0][2] >= 2 * 33 * 33 > 2 * results[1][2]  # all scores, and never half of them


def test_compiled():
    torch._dynamo.reset()
    modules, ids = parts(tokens=2, with_state=True), torch.randint(VOCAB, (2, 9))
    states = torch.randn(2, 9, 6, dtype=torch.float64)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert_close(compiled(modules, ids, states, TokenLayout()), run(modules, ids, states, TokenLayout()))


@pytest.mark.parametrize("make", [CopyKeys, lambda: StaticCopyKeys(max_cache_len=12)])
@pytest.mark.parametrize("form", [{}, {"tokens": 3}, {"tokens": 2, "with_state": True}], ids=str)
def test_a_cache_continues(make, form):
    modules = parts(**form)
    ids, states = torch.randint(VOCAB, (2, 9)), torch.randn(2, 9, 6, dtype=torch.float64)
    copy_keys, past, out = make(), 0, []
    for size in (4, 1, 4):
        some = slice(past, past + size)
        out.append(ask(modules, ids[:, some], states[:, some], TokenLayout(), copy_keys, past))
        past += size
    assert_close(torch.cat(out, dim=1), run(modules, ids, states, TokenLayout()))
