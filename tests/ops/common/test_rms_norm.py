"""Root-mean-square normalization."""

import pytest
import torch
from torch.autograd import forward_ad

from hf_seqmix.ops.common.rms_norm import rms_normalize
from tests.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def plain(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(2, 5, 7), (3, 1), (0, 3), (1, 67)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 30.0])
def test_value_and_gradient(dtype, sizes, scale):
    x = (scale * torch.randn(sizes, dtype=torch.float64)).to(dtype).requires_grad_()
    g = torch.randn(sizes).to(dtype)
    y = rms_normalize(x, 1e-6)
    assert y.dtype == dtype
    with torch.no_grad():
        assert torch.equal(rms_normalize(x, 1e-6), y)
        weight = torch.randn(x.shape[-1]).to(x.dtype)
        weighted = rms_normalize(x, 1e-6, weight)
    assert_close(weighted, rms_normalize(x, 1e-6, weight).double(), x.dtype)
    wide = x.detach().double().requires_grad_()
    expected = plain(wide)
    assert_close(y, expected, dtype)
    (found,) = torch.autograd.grad(y, x, g)
    if sizes[-1] > 1:  # of one channel the sign alone is left, and the gradient is a difference of equals
        assert_close(found, torch.autograd.grad(expected, wide, g.double())[0], dtype)


@pytest.mark.parametrize("eps", [1e-2, 1.0])
def test_derivatives_of_any_order(eps):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rms_normalize, (x, eps))
    assert torch.autograd.gradgradcheck(rms_normalize, (x, eps))


def test_third_derivative():
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def third(function):
        y = function(x, 1e-2).sin().sum()
        for _ in range(3):
            (y,) = torch.autograd.grad(y, x, torch.ones_like(y) if y.ndim else None, create_graph=True)
        return y

    assert_close(third(rms_normalize), third(plain))


def test_backward_keeps_the_output_and_a_number_a_row():
    x = torch.randn(2, 5, 64, requires_grad=True)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = rms_normalize(x, 1e-6)
    assert sum(t.numel() for t in kept) == y.numel() + 10
    assert y.data_ptr() in [t.data_ptr() for t in kept]


def test_function_transforms():
    x = torch.randn(5, 4, dtype=torch.float64)
    assert_close(torch.func.vmap(lambda x: rms_normalize(x, 1e-6))(x), plain(x))
    one, other = (torch.func.jacrev(f)(x) for f in (lambda x: rms_normalize(x, 1e-6), plain))
    assert_close(one, other)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x.flip(0))
        assert_close(*(forward_ad.unpack_dual(y).tangent for y in (rms_normalize(dual, 1e-6), plain(dual))))


def test_a_frozen_input_needs_no_graph():
    assert not rms_normalize(torch.randn(2, 3), 1e-6).requires_grad
