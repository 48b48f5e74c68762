"""Networks modulo a prime: the functions of the torch modules, and the separation ranks that follow."""

import numpy as np
import pytest
import torch

from hf_seqmix import PolynomialMLP
from hf_seqmix.analysis.degree.modular_nets import (
    AttentionLayer,
    attention_net,
    attention_separation_rank,
    mlp_separation_rank,
    polynomial_mlp,
    random_attention_layers,
)
from hf_seqmix.analysis.degree.modular_rank import PRIME
from hf_seqmix.analysis.degree.separation_rank import generic_separation_rank
from hf_seqmix.models.poly_transformer.mixer import PolynomialMixer
from tests.tolerances import assert_close

BUDGET_12 = {2: [2] * 6, 3: [3] * 4, 4: [4] * 3}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("degrees", [[2, 2], [3, 2], [4]])
def test_fully_connected_nets_are_the_torch_modules(degrees, bias, residual):
    rng = np.random.default_rng(0)
    net = PolynomialMLP(3, degrees, residual=residual, bias=bias).double()
    layers = [rng.integers(-3, 4, size=(degree, 3, 3)) for degree in degrees]
    biases = [rng.integers(-3, 4, size=(degree, 3)) for degree in degrees] if bias else None
    for number, (module, weights) in enumerate(zip(net.layers, layers, strict=True)):
        module.weight.data = torch.tensor(weights, dtype=torch.float64)[:, None]
        if biases:
            module.bias.data = torch.tensor(biases[number], dtype=torch.float64)[:, None]
    x = rng.integers(-4, 5, size=(6, 3))
    exact = net(torch.tensor(x, dtype=torch.float64)).detach().numpy()
    assert np.abs(exact).max() < 2**53
    assert (polynomial_mlp(x, layers, biases, residual=residual) == exact.astype(np.int64) % PRIME).all()
    assert (polynomial_mlp(x, layers, biases, residual=residual, prime=None) == exact).all()


@pytest.mark.parametrize(
    ("degrees", "rank"),
    [(BUDGET_12[2], 65), (BUDGET_12[3], 82), (BUDGET_12[4], 65), ([2, 2, 2, 3, 3], 73), ([6, 6], 37), ([12], 13)],
)
def test_fully_connected_ranks_of_a_budget_of_12_matrices(degrees, rank):
    found = mlp_separation_rank(degrees, 2)
    assert found.is_complete
    assert found.rank == rank == generic_separation_rank(int(np.prod(degrees)), 1, 1)


@pytest.mark.parametrize(
    ("degrees", "rank"), [([2] * 2, 9), ([2] * 3, 25), ([2] * 4, 81), ([3] * 2, 30), ([3] * 3, 210), ([4] * 2, 81)]
)
def test_fully_connected_ranks_of_four_inputs(degrees, rank):
    assert mlp_separation_rank(degrees, 4).rank == rank == generic_separation_rank(int(np.prod(degrees)), 2, 2)


def test_the_rank_does_not_depend_on_the_weights_drawn():
    assert {mlp_separation_rank([3, 2], 2, seed=seed).rank for seed in range(5)} == {7}


def test_few_inputs_or_an_affine_map_bound_the_rank():
    # Functions of one half twice, and the products of one linear form of each: two of them, or those of three
    # channels.
    assert mlp_separation_rank([2], 3, inputs=8, residual=True).rank == 4
    assert mlp_separation_rank([2], 3, inputs=8, linear_readout=True).rank == 5
    assert mlp_separation_rank([2], 9, inputs=8, linear_readout=True).rank == 6
    assert mlp_separation_rank([3], 1, bias=True, inputs=2).rank == 4
    with pytest.raises(ValueError, match="1 inputs"):
        mlp_separation_rank([2], 3, inputs=1)


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [({}, (64, 41, 64)), ({"residual": True, "output_bias": True}, (64, 78, 64))],
    ids=["plain", "residual, output bias"],
)
def test_attention_form_ranks_of_two_scalar_tokens(settings, ranks):
    assert tuple(attention_separation_rank(BUDGET_12[d], 1, **settings).rank for d in (2, 3, 4)) == ranks


AFFINE = {"residual": True, "output_bias": True, "projection_bias": True}


@pytest.mark.parametrize(
    ("degree", "settings", "rank"),
    [
        (3, {}, 770),
        pytest.param(3, {"residual": True, "output_bias": True}, 1442, marks=pytest.mark.slow),
        pytest.param(3, AFFINE, 1499, marks=pytest.mark.slow),
        pytest.param(2, {}, 1088, marks=pytest.mark.slow),
        pytest.param(4, {}, 1088, marks=pytest.mark.slow),
        pytest.param(2, AFFINE, 1089, marks=pytest.mark.slow),
        pytest.param(4, {"residual": True, "output_bias": True}, 1089, marks=pytest.mark.slow),
    ],
)
def test_attention_form_ranks_of_two_tokens_of_two_numbers(degree, settings, rank):
    found = attention_separation_rank(BUDGET_12[degree], 2, **settings)
    assert found.is_complete
    assert found.rank == rank


@pytest.mark.parametrize(
    ("degree", "settings", "rank"),
    [
        (3, {"mean": False}, 297),
        (3, {"mean": False, **AFFINE}, 418),
        (3, {}, 315),  # with the division by the number of tokens, which is no constant over positions
        pytest.param(2, {"mean": False}, 949, marks=pytest.mark.slow),
        pytest.param(4, {"mean": False}, 924, marks=pytest.mark.slow),
        pytest.param(2, {"mean": False, **AFFINE}, 1064, marks=pytest.mark.slow),
        pytest.param(4, {"mean": False, **AFFINE}, 1077, marks=pytest.mark.slow),
        pytest.param(2, {}, 1010, marks=pytest.mark.slow),
        pytest.param(4, {}, 1010, marks=pytest.mark.slow),
    ],
)
def test_attention_form_ranks_of_four_scalar_tokens(degree, settings, rank):
    assert attention_separation_rank(BUDGET_12[degree], 1, 4, **settings).rank == rank


def test_flipping_the_sign_of_a_past_token_changes_nothing_in_pure_degree_three():
    layers = random_attention_layers([3, 3], 2)
    rng = np.random.default_rng(4)
    past, last = rng.integers(PRIME, size=(2, 5, 2))
    outputs = [attention_net([sign * past % PRIME, last], layers)[-1] for sign in (1, -1)]
    assert (outputs[0] == outputs[1]).all()
    affine = random_attention_layers([3, 3], 2, output_bias=True)
    outputs = [attention_net([sign * past % PRIME, last], affine, residual=True)[-1] for sign in (1, -1)]
    assert (outputs[0] != outputs[1]).any()


@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize("num_heads", [1, 2])
def test_residues_are_those_of_the_integers(degree, num_heads):
    rng = np.random.default_rng(5)
    layers = random_attention_layers([degree] * 2, 2, projection_bias=True, output_bias=True, prime=3)
    tokens = [rng.integers(-2, 3, size=(4, 2)) for _ in range(3)]
    settings = {"num_heads": num_heads, "residual": True, "mean": False}
    exact = attention_net([token.astype(object) for token in tokens], layers, prime=None, **settings)
    for actual, expected in zip(attention_net(tokens, layers, **settings), exact, strict=True):
        assert (actual == (expected % PRIME).astype(np.int64)).all()


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_means_are_inverses_modulo_the_prime(degree):
    layers = random_attention_layers([degree], 2, prime=5)
    rng = np.random.default_rng(6)
    tokens = [rng.integers(-2, 3, size=(4, 2)) for _ in range(3)]
    real = attention_net([token.astype(float) for token in tokens], layers, prime=None)[-1]
    whole = np.rint(9 * real).astype(np.int64)
    assert np.abs(9 * real - whole).max() < 1e-6
    assert (attention_net(tokens, layers)[-1] * 9 % PRIME == whole % PRIME).all()


def _definition(x: torch.Tensor, degree: int, weights: list[torch.Tensor], heads: int) -> torch.Tensor:
    """One layer by loops over positions, (length, width)."""
    parts = [(x @ weight.T).unflatten(-1, (heads, -1)) for weight in weights]
    rows = []
    for t in range(len(x)):
        means = [part[: t + 1].mean(dim=0) for part in parts]
        if degree == 2:
            rows.append(parts[0][t] * means[1])
            continue
        query = parts[0][t] * (means[3] if degree == 4 else 1)
        scores = torch.stack([(query * parts[1][s]).sum(dim=-1, keepdim=True) * parts[2][s] for s in range(t + 1)])
        rows.append(scores.mean(dim=0))
    return torch.stack(rows).flatten(1)


@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize("heads", [1, 2])
def test_layers_are_their_definition(degree, heads):
    layer = random_attention_layers([degree], 4, prime=100)[0]
    x = torch.randn(5, 4, dtype=torch.float64)
    weights = [torch.tensor(weight / 100) for weight in layer.weights]
    scaled = [type(layer)(layer.weights / 100, None, None, None)]
    actual = attention_net(list(x.numpy()), scaled, num_heads=heads, prime=None)
    assert_close(torch.tensor(np.stack(actual)), _definition(x, degree, weights, heads))


@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_layers_are_the_polynomial_mixer(degree, heads, residual, bias):
    rng = np.random.default_rng(7)
    mixer = PolynomialMixer(4, degree, heads, use_bias=bias, normalization="none").double()
    for parameter in mixer.parameters():
        parameter.data = torch.tensor(rng.integers(-3, 4, size=parameter.shape), dtype=torch.float64)
    factors = mixer.groups[0].factors
    layer = AttentionLayer(
        np.stack([factor.weight.detach().numpy() for factor in factors]).astype(np.int64),
        np.stack([factor.bias.detach().numpy() for factor in factors]).astype(np.int64) if bias else None,
        mixer.o_proj.weight.detach().numpy().astype(np.int64),
        mixer.o_proj.bias.detach().numpy().astype(np.int64) if bias else None,
    )
    tokens = list(rng.integers(-3, 4, size=(2, 5, 4)))
    x = torch.tensor(np.stack(tokens, axis=1), dtype=torch.float64)
    y = (x + mixer(x) if residual else mixer(x)).detach()
    root = 2 if heads == 1 else 1  # of the channels of a head
    real = attention_net(
        [token.astype(float) for token in tokens],
        [layer],
        num_heads=heads,
        residual=residual,
        scale=1 / root,
        prime=None,
    )
    assert_close(torch.tensor(np.stack(real, axis=1)), y)
    # Two tokens and two halves at most are divided by two each: 8 times the output is whole.
    whole = (8 * y).round().long()
    assert torch.equal(whole.double(), 8 * y)
    residues = attention_net(tokens, [layer], num_heads=heads, residual=residual, scale=pow(root, -1, PRIME))
    assert (np.stack(residues, axis=1) * 8 % PRIME == whole.numpy() % PRIME).all()


def test_deep_nets_are_polynomial_mixers():
    mixers = [PolynomialMixer(4, degree, 2, normalization="none").double() for degree in (2, 4, 3)]
    for mixer in mixers:
        for parameter in mixer.parameters():
            parameter.data = torch.randn_like(parameter) * 0.6
    layers = [
        AttentionLayer(
            np.stack([factor.weight.detach().numpy() for factor in mixer.groups[0].factors]),
            np.stack([factor.bias.detach().numpy() for factor in mixer.groups[0].factors]),
            mixer.o_proj.weight.detach().numpy(),
            mixer.o_proj.bias.detach().numpy(),
        )
        for mixer in mixers
    ]
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    y = x
    for mixer in mixers:
        y = y + mixer(y)
    tokens = list(x.numpy().transpose(1, 0, 2))
    actual = attention_net(tokens, layers, num_heads=2, residual=True, scale=2**-0.5, prime=None)
    assert_close(torch.tensor(np.stack(actual, axis=1)), y.detach())


def test_wrong_arguments():
    with pytest.raises(ValueError, match="num_tokens is 3"):
        attention_separation_rank([2], 2, 3)
    with pytest.raises(ValueError, match="num_heads 3 does not divide"):
        attention_separation_rank([2], 2, num_heads=3)
    with pytest.raises(ValueError, match="5 projections"):
        attention_separation_rank([5], 2)
