"""The transformer of equation 5: loops over tokens, symmetries, gradients, heads and layers, bad input."""

import math

import pytest
import torch
from torch.func import functional_call

from hf_seqmix.analysis.rates import SingleHeadTransformer
from hf_seqmix.analysis.rates.transformer import POSITIONS, dense_net

DOUBLE = torch.float64


def build(**options):
    defaults = {
        "hidden_size": 6,
        "head_size": 3,
        "value_size": 5,
        "ff_width": 7,
        "activation": "tanh",
        "max_length": 9,
    }
    return SingleHeadTransformer(2, **(defaults | options)).double()


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
                weights = [
                    0.0 if causal and s > t else math.exp(torch.dot(q @ h[t], k @ h[s]).item()) for s in range(length)
                ]
                parts.append(sum(w * (v @ h[s]) for s, w in enumerate(weights)) / sum(weights))
            sums[b, t] = torch.cat(parts)
    return sums


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
def test_equation_5_by_loops(positions, causal, length):
    model = build(positions=positions, is_causal=causal)
    x = torch.rand(2, length, 2, dtype=DOUBLE)
    codes = torch.zeros(length, 6, dtype=DOUBLE)
    for s in range(length):
        for i in range(3):
            angle = s / 10000 ** (2 * i / 6)
            codes[s, i], codes[s, 3 + i] = math.sin(angle), math.cos(angle)
    hidden = {
        "none": lambda: model.dense[0](x),
        "shift": lambda: model.dense[0](x + 2 * torch.arange(length)[:, None]),
        "learned": lambda: model.dense[0](x) + model.position_codes[:length],
        "sinusoidal": lambda: model.dense[0](x) + codes,
    }[positions]()
    wanted = model.outer(by_loops(model, hidden, causal)).squeeze(-1)
    assert model(x).shape == (2, length)
    torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)


def test_heads_layers_and_outputs_by_loops():
    model = build(num_heads=3, num_layers=2, num_outputs=4, positions="none", is_causal=True)
    x = torch.rand(2, 5, 2, dtype=DOUBLE)
    first = by_loops(model, model.dense[0](x), True)
    second = by_loops(model, model.dense[1](first), True, layer=1)
    torch.testing.assert_close(model(x), model.outer(second), rtol=1e-12, atol=1e-12)
    for layer, hidden in ((0, model.dense[0](x)), (1, model.dense[1](first)), (-1, model.dense[1](first))):
        torch.testing.assert_close(
            model.coupling(x, layer).queries.transpose(1, 2).flatten(2), hidden @ model.attention[layer].query.weight.T
        )


@pytest.mark.parametrize("causal", [False, True])
def test_coupling(causal):
    model = build(num_heads=2, is_causal=causal)
    logits, weights, queries, keys = model.coupling(torch.rand(3, 7, 2, dtype=DOUBLE))
    assert logits.shape == weights.shape == (3, 2, 7, 7) and queries.shape == keys.shape == (3, 2, 7, 3)
    torch.testing.assert_close(logits, torch.einsum("bhtm,bhsm->bhts", queries, keys))
    assert logits.triu(1).any()  # unmasked
    assert torch.linalg.matrix_rank(logits).max() <= 3
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 7, dtype=DOUBLE))
    assert bool(weights.triu(1).any()) != causal


def test_a_causal_model_does_not_look_ahead():
    model, x = build(is_causal=True, num_layers=2), torch.rand(1, 7, 2, dtype=DOUBLE)
    changed = x.clone()
    changed[:, 4:] += 1
    difference = (model(x) - model(changed)).abs()[0]
    assert difference[:4].max() == 0 and difference[4:].min() > 0


def test_permutations():
    order = torch.tensor([3, 0, 4, 1, 2])
    x = torch.rand(2, 5, 2, dtype=DOUBLE)
    model = build(positions="none")
    torch.testing.assert_close(model(x[:, order]), model(x)[:, order])
    spectra = [torch.linalg.svdvals(model.coupling(each).logits) for each in (x, x[:, order])]
    torch.testing.assert_close(*spectra)

    # Another order needs no other sizes: only the codes move (proposition 6.2).
    model = build(positions="learned", max_length=5)
    before = model(x)
    model.position_codes.data = model.position_codes.data[order]
    torch.testing.assert_close(model(x[:, order]), before[:, order])


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
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
        (lambda: build(positions="rotary"), "positions is 'rotary'; give one of learned, sinusoidal, shift, none"),
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
