"""The gate silu(a) b."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

from hf_seqmix.ops.common.gating import silu_gate
from tests.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(a) * b


def pair(*sizes: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (3 * torch.randn(sizes, dtype=torch.float64) for _ in range(2))
    return a.to(dtype).requires_grad_(), b.to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(2, 5, 7), (1, 1, 1), (0, 3), (3, 67)], ids=str)
def test_value_and_gradients(dtype, sizes):
    a, b = pair(*sizes, dtype=dtype)
    g = torch.randn(sizes).to(dtype)
    y = silu_gate(a, b)
    assert torch.equal(y, plain(a, b))
    with torch.no_grad():
        assert torch.equal(silu_gate(a, b), y)
    wide = [t.detach().double().requires_grad_() for t in (a, b)]
    expected = torch.autograd.grad(plain(*wide), wide, g.double())
    for found, exact in zip(torch.autograd.grad(y, (a, b), g), expected, strict=True):
        assert found.dtype == dtype
        assert_close(found, exact, dtype)


def test_derivatives_of_any_order():
    a, b = pair(3, 4)
    assert torch.autograd.gradcheck(silu_gate, (a, b))
    assert torch.autograd.gradgradcheck(silu_gate, (a, b))


def test_layouts_and_expanded_gradients():
    a, b = pair(4, 6, 5)
    y = silu_gate(a.transpose(0, 2), b.transpose(0, 2))
    for found, exact in zip(
        torch.autograd.grad(y.sum(), (a, b)), torch.autograd.grad(plain(a, b).sum(), (a, b)), strict=True
    ):
        assert_close(found, exact)


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_argument_has_no_gradient(frozen):
    arguments = pair(3, 4)
    arguments[frozen].requires_grad_(False)
    free = arguments[1 - frozen]
    (found,) = torch.autograd.grad(silu_gate(*arguments).sum(), free)
    assert_close(found, torch.autograd.grad(plain(*arguments).sum(), free)[0])


def test_backward_keeps_the_arguments_alone():
    a, b = pair(3, 4)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        silu_gate(a, b)
    assert sorted(kept) == sorted([a.data_ptr(), b.data_ptr()])


def test_other_shapes_and_dtypes_are_ordinary_products():
    a, b = pair(3, 4)
    assert torch.equal(silu_gate(a, b[:1]), plain(a, b[:1]))
    mixed = silu_gate(a.bfloat16(), b.float())
    assert mixed.dtype == torch.float32 and torch.equal(mixed, plain(a.bfloat16(), b.float()))


def test_function_transforms():
    a, b = (t.detach() for t in pair(5, 4))
    assert_close(torch.func.vmap(silu_gate)(a, b), plain(a, b))
    assert_close(torch.func.grad(lambda a: silu_gate(a, b).sum())(a), torch.func.grad(lambda a: plain(a, b).sum())(a))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, b)
        assert_close(*(forward_ad.unpack_dual(f(dual, b)).tangent for f in (silu_gate, plain)))


def test_under_a_tracer_it_is_ordinary_operations():
    a, b = pair(5, 4, dtype=torch.float32)
    program = torch.export.export(Gate(), (a, b))
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert targets == {"aten.silu.default", "aten.mul.Tensor"}


class Gate(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return silu_gate(a, b)
