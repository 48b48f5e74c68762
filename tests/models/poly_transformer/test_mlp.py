"""Fully connected networks of products: degree, size, norms, wrong arguments."""

import math

import pytest
import torch

from hf_seqmix import PolynomialMLP
from hf_seqmix.modules import calibrate_static_norms
from tests.tolerances import assert_close


@pytest.mark.parametrize("degrees", [[2], [3, 3], [2, 4], [2, 2, 3]])
@pytest.mark.parametrize("num_heads", [1, 3])
def test_is_homogeneous_of_the_product_of_degrees(degrees, num_heads):
    net = PolynomialMLP(6, degrees, num_heads=num_heads).double()
    x = torch.randn(5, 6, dtype=torch.float64)
    assert net.degree == math.prod(degrees)
    assert_close(net(1.5 * x), 1.5**net.degree * net(x))


def test_is_the_product_of_linear_maps():
    net = PolynomialMLP(4, 3, 1).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    product = torch.ones((), dtype=torch.float64)
    for weight in net.layers[0].weight[:, 0]:
        product = product * (x @ weight.T)
    assert_close(net(x), product)
    affine = PolynomialMLP(4, 2, 1, bias=True).double()
    (first, second), (b, c) = affine.layers[0].weight[:, 0], affine.layers[0].bias[:, 0]
    assert_close(affine(x), (x @ first.T + b) * (x @ second.T + c))
    projected = PolynomialMLP(4, 2, 1, out_projection=True).double()
    first, second = projected.layers[0].weight[:, 0]
    assert_close(projected(x), ((x @ first.T) * (x @ second.T)) @ projected.layers[0].out_weight.T)
    assert projected.num_product_parameters() == 3 * 16
    heads = PolynomialMLP(4, 2, 1, num_heads=2).double()
    blocks = [torch.block_diag(*weight) for weight in heads.layers[0].weight]
    assert_close(heads(x), (x @ blocks[0].T) * (x @ blocks[1].T))


@pytest.mark.parametrize("degree", [2.4, math.e, 3.5])
def test_fractional_degree(degree):
    net = PolynomialMLP(20, degree, 1).double()
    whole = math.floor(degree)
    rank = round((degree - whole) * 10)
    assert net.num_product_parameters() == whole * 400 + 40 * rank
    assert net.num_product_parameters() == pytest.approx(degree * 400, rel=0.02)
    # Far above the rounded corner, and of either sign.
    x = 100 * torch.randn(50, 20, dtype=torch.float64)
    ratio = net(2 * x) / net(x)
    assert ratio.median().item() == pytest.approx(2**degree, rel=1e-3)


@pytest.mark.parametrize(("degree", "depth"), [(2, 6), (3, 4), (4, 3), (2.4, 5)])
def test_equal_budgets(degree, depth):
    net = PolynomialMLP(10, degree, depth, in_features=7, out_features=1, bias=True)
    assert net.num_product_parameters() == 1200


def test_residual_and_maps():
    net = PolynomialMLP(4, [2, 3], in_features=6, out_features=2, residual=True).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    hidden = net.in_proj(x)
    for layer in net.layers:
        hidden = hidden + layer(hidden)
    assert_close(net(x), net.out_proj(hidden))
    assert net(x).shape == (3, 2)


def test_norms():
    x = 3 * torch.randn(64, 8)
    static = PolynomialMLP(8, 3, 2, norm_type="static")
    calibrate_static_norms(static, x)
    assert_close(static(x).square().mean(dim=0), torch.ones(8))
    assert_close(static(2 * x), 2.0**9 * static(x))
    rms = PolynomialMLP(8, 3, 2, norm_type="rms")
    assert_close(rms(x).square().mean(dim=-1), torch.ones(64), factor=10)
    batch = PolynomialMLP(8, 2, 1, norm_type="batch").train()
    assert_close(batch(x).mean(dim=0), torch.zeros(8), factor=10)
    batch.eval()
    assert_close(batch(x[:1]), batch(x)[:1], factor=10)
    tanh = PolynomialMLP(8, 2, 1, activation="tanh")
    assert tanh(x).abs().max() <= 1
    assert_close(tanh(x), torch.tanh(_same(tanh, 8)(x)))


def _same(net, width):
    linear = PolynomialMLP(width, 2, 1)
    linear.load_state_dict(net.state_dict())
    return linear


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"degrees": 1, "num_layers": 2}, "degrees is"),
        ({"degrees": []}, "degrees is"),
        ({"degrees": 3}, "num_layers is None"),
        ({"degrees": [2, 2], "num_layers": 3}, "names 2 layers"),
        ({"degrees": [2], "num_heads": 3}, "must divide the width 8"),
        ({"degrees": [2], "activation": "relu"}, "activation is 'relu'"),
        ({"degrees": [2], "norm_type": "layer"}, "norm_type is 'layer'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        PolynomialMLP(8, **arguments)
