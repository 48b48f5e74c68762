"""The copy head alone: which tokens it pairs, what it predicts, in blocks, compiled, and with a cache."""

import pytest
import torch
from torch import Tensor, nn

from hf_seqmix.cache.pairs import PairsLayer, PairsStaticLayer
from hf_seqmix.models.ipa.copy_head import CopyHead, copy_pairs
from hf_seqmix.ops.masking import TokenLayout, token_layout
from tests.largest import Largest
from tests.tolerances import assert_close

VOCAB = 7


def parts(channels: int = 6, rank: int = 3) -> tuple[CopyHead, nn.Embedding, nn.Linear]:
    head = CopyHead(channels, rank).double()
    return head, nn.Embedding(VOCAB, channels).double(), nn.Linear(channels, VOCAB).double()


def run(modules: tuple[CopyHead, nn.Embedding, nn.Linear], ids: Tensor, states: Tensor, layout: TokenLayout) -> Tensor:
    head, embed, lm_head = modules
    keys, copied = head.keys(ids, embed, layout, None)
    places = torch.arange(ids.shape[1])
    packed = None if layout.sequence_ids is None else (layout.sequence_ids, layout.sequence_ids)
    return head(states, embed(ids), places, keys, copied, lm_head, packed)


def test_pairs_skip_pads_and_stay_in_their_sequence():
    ids = torch.tensor([[5, 3, 0, 4, 6]])
    previous, pairs = copy_pairs(ids, TokenLayout())
    assert previous.tolist() == [[0, 5, 3, 0, 4]]
    assert pairs[0, :, 0].tolist() == [-1, 3, 0, 4, 6] and torch.equal(pairs[..., 1], ids)
    previous, pairs = copy_pairs(ids, token_layout(torch.tensor([[1, 1, 0, 1, 1]]), 1, 5))
    assert previous[0, 3].item() == 3
    assert pairs[0].tolist() == [[-1, 5], [3, 3], [-1, -1], [4, 4], [6, 6]]
    previous, pairs = copy_pairs(ids, token_layout(None, 1, 5, position_ids=torch.tensor([[0, 1, 0, 1, 2]])))
    assert pairs[0, :, 0].tolist() == [-1, 3, -1, 4, 6]
    previous, pairs = copy_pairs(ids, TokenLayout(), last=torch.tensor([2]))
    assert previous[0, 0].item() == 2 and pairs[0, 0, 0].item() == 5


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


@pytest.mark.parametrize("memory", [1, 400])
def test_blocks_are_the_whole_and_smaller(monkeypatch, memory):
    modules, ids = parts(), torch.randint(VOCAB, (2, 33))
    states = torch.randn(2, 33, 6, dtype=torch.float64)
    results = []
    for limit in (2**20, memory):
        monkeypatch.setattr("hf_seqmix.models.ipa.copy_head._BYTES", limit)
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
    modules, ids = parts(), torch.randint(VOCAB, (2, 9))
    states = torch.randn(2, 9, 6, dtype=torch.float64)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert_close(compiled(modules, ids, states, TokenLayout()), run(modules, ids, states, TokenLayout()))


@pytest.mark.parametrize("make", [PairsLayer, lambda: PairsStaticLayer(max_cache_len=12)])
def test_a_cache_continues(make):
    head, embed, lm_head = modules = parts()
    ids, states = torch.randint(VOCAB, (2, 9)), torch.randn(2, 9, 6, dtype=torch.float64)
    pairs, past, out = make().pairs, 0, []
    for size in (4, 1, 4):
        some = slice(past, past + size)
        keys, copied = head.keys(ids[:, some], embed, TokenLayout(), pairs)
        out.append(head(states[:, some], embed(ids[:, some]), torch.arange(9)[some], keys, copied, lm_head))
        past += size
    assert_close(torch.cat(out, dim=1), run(modules, ids, states, TokenLayout()))
