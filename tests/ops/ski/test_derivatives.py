"""SKI through its kernels as users call it: derivatives of both orders, as an operator, and its trial."""

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops import InducingGrid, forced, ski_matmul_dense, trials
from hf_seqmix.ops.common.crossovers import implementation
from hf_seqmix.ops.short_convolution.product import short_conv_dense
from hf_seqmix.ops.ski.derivatives import fused_product, fused_takes
from hf_seqmix.ops.ski.product import sparse_low_rank_matmul
from tests.tolerances import assert_close

GRID = InducingGrid(40, 6)
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def make(length: int = 37, channels: int = 5) -> list[Tensor]:
    x = torch.randn(2, length, channels).transpose(1, 2)
    return [x, torch.randn(channels, 5), torch.randn(channels, 2 * GRID.points(length) - 1)]


def dense(x: Tensor, taps: Tensor, kernel: Tensor) -> Tensor:
    return short_conv_dense(x, taps) + ski_matmul_dense(x, kernel, GRID)


def values(function, inputs: list[Tensor], dtype: torch.dtype, second: bool = False) -> list[Tensor]:
    inputs = [t.to(dtype).detach().requires_grad_() for t in inputs]
    y = function(*inputs)
    upstream = torch.ones_like(y) + torch.arange(y.shape[-1], dtype=dtype)
    first = torch.autograd.grad(y, inputs, upstream, create_graph=second)
    if not second:
        return [y.detach(), *first]
    return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), inputs)]


def test_both_derivatives(poisoned_empty):
    inputs = make()
    for second in (False, True):
        with forced(ski="fused"):
            ours = values(lambda *t: sparse_low_rank_matmul(*t, GRID), inputs, torch.float32, second)
        exact = values(dense, inputs, torch.float64, second)
        for actual, expected in zip(ours, exact, strict=True):
            assert_close(actual.detach(), expected.detach())


# opcheck asks for it itself, and where warnings are errors torch 2.15 cannot hide it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
# What is traced knows nothing of the kernels, and is checked once.
@pytest.mark.parametrize(("name", "checks"), [("torch", CHECKS), ("fused", CHECKS[:3])])
def test_as_an_operator(name, checks, poisoned_empty):
    inputs = make()
    with forced(ski=name):
        ours = values(lambda *t: fused_product(True, *t, *GRID)[0], inputs, torch.float32)
        checked = [t.detach().requires_grad_() for t in inputs]
        torch.library.opcheck(fused_product.traced, (*checked, *GRID), test_utils=checks)
    for actual, expected in zip(ours, values(dense, inputs, torch.float64), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("names", [("torch", "fused"), ("fused", "torch")])
def test_each_pass_of_a_graph_chooses_its_implementation(names, poisoned_empty):
    inputs = [t.requires_grad_() for t in make()]
    with forced(ski=names[0]):
        y, collected = fused_product(True, *inputs, *GRID)
    with forced(ski=names[1]):
        gradients = torch.autograd.grad(y, inputs, torch.ones_like(y) + torch.arange(y.shape[-1]))
    exact = values(dense, [t.detach() for t in inputs], torch.float64)
    for actual, expected in zip((y.detach(), *gradients), exact, strict=True):
        assert_close(actual, expected)
    assert not collected.requires_grad


def test_one_gradient_alone():
    inputs = make()
    exact = values(dense, inputs, torch.float64)[1:]
    for which in range(3):
        alone = [t.detach().requires_grad_(k == which) for k, t in enumerate(inputs)]
        with forced(ski="fused"):
            y = sparse_low_rank_matmul(*alone, GRID)
        upstream = torch.ones_like(y) + torch.arange(y.shape[-1])
        assert_close(torch.autograd.grad(y, alone[which], upstream)[0], exact[which])


def test_more_points_or_taps_than_kernels_take_are_torchs():
    x = torch.randn(1, 2, 300)
    with forced(ski="fused"):
        assert implementation("ski", x, 300) == "fused"
        assert implementation("ski", x.double(), 300) == "torch"
    assert implementation("ski", x, 300) == "torch"
    assert fused_takes(torch.zeros(2, 33), torch.zeros(2, 255))
    assert not fused_takes(torch.zeros(2, 33), torch.zeros(2, 259))
    assert not fused_takes(torch.zeros(2, 201), torch.zeros(2, 255))
    taps, kernel = torch.randn(2, 101), torch.randn(2, 11)
    grid = InducingGrid(300, 6)
    with forced(ski="fused"):
        y = sparse_low_rank_matmul(x, taps, kernel, grid)
    assert_close(y, short_conv_dense(x, taps) + ski_matmul_dense(x, kernel, grid))


def test_its_trial_finds_nothing_wrong():
    assert trials.fault("ski", "fused", torch.device("cpu"), torch.float32, 64, lengths=(61,)) is None


def test_second_derivatives_where_inputs_share_their_weights():
    """The way from the taps through x is for the outer graph to follow, once."""
    x, taps, kernel = (t.double().requires_grad_() for t in make())

    def gradients(function, create_graph: bool):
        y = function(function(x, taps, kernel), taps, kernel).square().sum()
        return torch.autograd.grad(y, (x, taps, kernel), create_graph=create_graph)

    def ours(x, taps, kernel):
        return sparse_low_rank_matmul(x, taps, kernel, GRID)

    for actual, expected in zip(gradients(ours, True), gradients(ours, False), strict=True):
        assert_close(actual.detach(), expected)
