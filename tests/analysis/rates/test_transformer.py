"""Transformers of the theory: loops over tokens, symmetries, ranks, gradients, heads and layers, bad input."""

import cmath
import math

import pytest
import torch
from torch.func import functional_call

from hf_seqmix.analysis.rates import MultiHeadTransformer, SingleHeadTransformer
from hf_seqmix.analysis.rates.transformer import POSITIONS, dense_net

DOUBLE = torch.float64


def build(make=MultiHeadTransformer, **options):
    defaults = {
        "hidden_size": 6,
        "head_size": 4,
        "value_size": 5,
        "ff_width": 7,
        "activation": "tanh",
        "max_length": 9,
    }
    return make(2, **(defaults | options)).double()


def turned(vector, place):
    """Return a vector whose channels c and c + half are one complex number, turned by place / 10000^(c / half)."""
    values, half = vector.tolist(), len(vector) // 2
    pairs = [complex(values[c], values[half + c]) * cmath.exp(1j * place / 10000 ** (c / half)) for c in range(half)]
    return torch.tensor([pair.real for pair in pairs] + [pair.imag for pair in pairs], dtype=DOUBLE)


def by_loops(model, hidden, causal, layer=0):
    """Return sum_s softmax_s[(W_Q h(t))^T W_K h(s)] W_V h(s), heads side by side, of (batch, length, n)."""
    attention, heads = model.attention[layer], model.num_heads
    query, key, value = (part.weight.chunk(heads) for part in (attention.query, attention.key, attention.value))
    length = hidden.shape[1]
    sums = hidden.new_zeros(len(hidden), length, sum(map(len, value)))
    for b in range(len(hidden)):
        for t in range(length):
            parts = []
            for q, k, v in zip(query, key, value, strict=True):
                h = hidden[b]
                asked, held = q @ h[t], [k @ h[s] for s in range(length)]
                if model.positions == "rotary":
                    asked, held = turned(asked, t), [turned(each, s) for s, each in enumerate(held)]
                weights = [
                    0.0 if causal and s > t else math.exp(torch.dot(asked, held[s]).item()) for s in range(length)
                ]
                parts.append(sum(w * (v @ h[s]) for s, w in enumerate(weights)) / sum(weights))
            sums[b, t] = torch.cat(parts)
    return sums


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
def test_equation_5_by_loops(positions, causal, length):
    model = build(SingleHeadTransformer, positions=positions, is_causal=causal)
    x = torch.rand(2, length, 2, dtype=DOUBLE)
    codes = torch.zeros(length, 6, dtype=DOUBLE)
    for s in range(length):
        for i in range(3):
            angle = s / 10000 ** (2 * i / 6)
            codes[s, i], codes[s, 3 + i] = math.sin(angle), math.cos(angle)
    hidden = {
        "none": lambda: model.dense[0](x),
        "rotary": lambda: model.dense[0](x),
        "shift": lambda: model.dense[0](x + 2 * torch.arange(length)[:, None]),
        "learned": lambda: model.dense[0](x) + model.position_codes[:length],
        "sinusoidal": lambda: model.dense[0](x) + codes,
    }[positions]()
    wanted = model.outer(by_loops(model, hidden, causal)).squeeze(-1)
    assert model(x).shape == (2, length)
    torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("positions", ["none", "rotary"])
@pytest.mark.parametrize("residual", [False, True])
def test_heads_layers_and_outputs_by_loops(residual, positions):
    model = build(
        num_heads=3, num_layers=2, num_outputs=4, positions=positions, residual=residual, head_size=2, is_causal=True
    )
    x = torch.rand(2, 5, 2, dtype=DOUBLE)
    before = model.dense[0](x)
    between = model.dense[1](by_loops(model, before, True)) + (before if residual else 0)
    last = by_loops(model, between, True, layer=1)
    torch.testing.assert_close(model(x), model.outer(last), rtol=1e-12, atol=1e-12)
    for layer, hidden in ((0, before), (1, between), (-1, between)):
        wanted = hidden @ model.attention[layer].query.weight.T
        found = model.coupling(x, layer).queries.transpose(1, 2).flatten(2)
        turns = positions == "rotary"
        torch.testing.assert_close(found[:, 0], wanted[:, 0])  # the first token is not turned
        assert torch.allclose(found, wanted) != turns
        torch.testing.assert_close(found.norm(dim=-1), wanted.norm(dim=-1))


def test_one_head_and_one_layer_are_equation_5():
    general, paper = build(positions="sinusoidal", residual=True), build(SingleHeadTransformer, positions="sinusoidal")
    paper.load_state_dict(general.state_dict())
    x = torch.rand(2, 7, 2, dtype=DOUBLE)
    assert torch.equal(general(x), paper(x))
    with pytest.raises(TypeError, match="num_heads"):
        SingleHeadTransformer(num_heads=2)


@pytest.mark.parametrize("heads", [2, 3, 6])
def test_heads_that_share_a_size_share_the_rank(heads):
    one = build(head_size=6, value_size=6, hidden_size=8, positions="none")
    many = build(num_heads=heads, head_size=6 // heads, value_size=6 // heads, hidden_size=8, positions="none")
    many.load_state_dict(one.state_dict())  # equal in every shape
    x = torch.rand(1, 11, 2, dtype=DOUBLE) * 40 - 20  # far apart, so that nets of tanh give features of full rank
    logits = many.coupling(x).logits
    torch.testing.assert_close(logits.sum(dim=1, keepdim=True), one.coupling(x).logits)
    assert torch.linalg.matrix_rank(logits).tolist() == [[6 // heads] * heads]
    assert torch.linalg.matrix_rank(one.coupling(x).logits).item() == 6


@pytest.mark.parametrize("causal", [False, True])
def test_coupling(causal):
    model = build(num_heads=2, is_causal=causal)
    logits, weights, queries, keys = model.coupling(torch.rand(3, 7, 2, dtype=DOUBLE))
    assert logits.shape == weights.shape == (3, 2, 7, 7) and queries.shape == keys.shape == (3, 2, 7, 4)
    torch.testing.assert_close(logits, torch.einsum("bhtm,bhsm->bhts", queries, keys))
    assert logits.triu(1).any()  # unmasked
    assert torch.linalg.matrix_rank(logits).max() <= 4
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 7, dtype=DOUBLE))
    assert bool(weights.triu(1).any()) != causal


def test_a_causal_model_does_not_look_ahead():
    model, x = build(is_causal=True, num_layers=2), torch.rand(1, 7, 2, dtype=DOUBLE)
    changed = x.clone()
    changed[:, 4:] += 1
    difference = (model(x) - model(changed)).abs()[0]
    assert difference[:4].max() == 0 and difference[4:].min() > 0


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
def test_without_positions_alone_the_model_commutes_with_permutations(positions, residual):
    order = torch.tensor([3, 0, 4, 1, 2])
    x = torch.rand(2, 5, 2, dtype=DOUBLE) * 4
    model = build(positions=positions, num_heads=2, num_layers=3, residual=residual)
    assert torch.allclose(model(x[:, order]), model(x)[:, order], rtol=1e-9, atol=1e-12) == (positions == "none")
    spectra = [torch.linalg.svdvals(model.coupling(each).logits) for each in (x, x[:, order])]
    assert torch.allclose(*spectra, rtol=1e-9, atol=1e-12) == (positions == "none")


def test_rotary_logits_depend_on_the_distance():
    model = build(positions="rotary", num_heads=2)
    logits = model.coupling(torch.rand(1, 1, 2, dtype=DOUBLE).expand(1, 8, 2)).logits
    torch.testing.assert_close(logits[..., 1:, 1:], logits[..., :-1, :-1])
    assert logits[0, 0, 0].diff().abs().min() > 1e-9


def test_another_order_needs_other_codes_alone():
    order = torch.tensor([3, 0, 4, 1, 2])
    x = torch.rand(2, 5, 2, dtype=DOUBLE)
    # Proposition 6.2: no other sizes.
    model = build(positions="learned", max_length=5)
    before = model(x)
    model.position_codes.data = model.position_codes.data[order]
    torch.testing.assert_close(model(x[:, order]), before[:, order])


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_gradients(positions):
    model = build(positions=positions, hidden_size=3, head_size=2, value_size=2, ff_width=3, max_length=3)
    names, values = zip(*model.named_parameters(), strict=True)
    x = torch.rand(1, 3, 2, dtype=DOUBLE, requires_grad=True)

    def call(inputs, *parameters):
        return functional_call(model, dict(zip(names, parameters, strict=True)), (inputs,))

    assert torch.autograd.gradcheck(call, (x, *values))


def test_sizes():
    model = SingleHeadTransformer(head_size=5)
    sizes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert sizes["attention.0.query.weight"] == sizes["attention.0.key.weight"] == (5, 32)
    assert sizes["attention.0.value.weight"] == (32, 32)
    # f: 1 -> 128 -> 128 -> 32, F: 32 -> 128 -> 128 -> 1
    assert [sizes[f"dense.0.{i}.weight"] for i in (0, 2, 4)] == [(128, 1), (128, 128), (32, 128)]
    assert [sizes[f"outer.{i}.weight"] for i in (0, 2, 4)] == [(128, 32), (128, 128), (1, 128)]
    assert len(dense_net(3, 2, 9, 1)) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build(head_size=0), "head_size is 0"),
        (
            lambda: build(positions="alibi"),
            "positions is 'alibi'; give one of learned, sinusoidal, shift, rotary, none",
        ),
        (lambda: build(positions="rotary", head_size=3), "head_size is 3; rotary positions turn pairs"),
        (lambda: build(activation="sine"), "activation is 'sine'; give one of relu, tanh, gelu"),
        (lambda: build(ff_depth=0), "depth is 0"),
        (lambda: build(num_outputs=0), "outputs is 0"),
        (lambda: build()(torch.zeros(2, 3, dtype=DOUBLE)), r"shape \(2, 3\); give \(batch, length, 2\)"),
        (lambda: build(positions="learned")(torch.zeros(1, 10, 2, dtype=DOUBLE)), "10 tokens and there are 9 learned"),
        (
            lambda: build().coupling(torch.zeros(1, 3, 2, dtype=DOUBLE), 1),
            "layer is 1; the model has the layers 0 to 0",
        ),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
