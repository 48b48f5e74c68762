"""Gradients that refuse to be differentiated again, on every path to what they depend on."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from hf_seqmix.ops.common.once import once, tie

REFUSED = "second derivatives are not implemented"


class Square(torch.autograd.Function):
    """x**2, whose gradient is computed from a number that is no tensor of the graph."""

    @staticmethod
    def forward(ctx, x, y, tied):
        ctx.save_for_backward(x.detach() * 2, tied)
        return x**2 + y

    @staticmethod
    @once
    def backward(ctx, upstream):
        slope, _ = ctx.saved_tensors
        return upstream * slope, upstream if ctx.needs_input_grad[1] else None, None


def square(x, y):
    return Square.apply(x, y, tie(x))


def test_the_first_derivative_is_as_before_with_and_without_a_graph():
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    for create_graph in (False, True):
        gradients = torch.autograd.grad(square(x, y).sum(), (x, y), create_graph=create_graph)
        assert torch.equal(gradients[0], 2 * x)
        assert torch.equal(gradients[1], torch.ones(3))
        assert gradients[0].requires_grad == create_graph


@pytest.mark.parametrize("way", ["backward", "grad"])
def test_a_second_derivative_is_refused(way):
    x = torch.randn(3, requires_grad=True)
    start = x * 2  # not a leaf: the path to x leads through this node
    (slope,) = torch.autograd.grad(square(start, torch.zeros(3)).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=REFUSED):
        if way == "backward":
            slope.sum().backward()
        else:
            torch.autograd.grad(slope.sum(), x)


def test_other_terms_of_the_sum_are_differentiated():
    """What does not depend on the gradients has its second derivative."""
    x, z = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    (_, slope) = torch.autograd.grad((square(x, torch.zeros(3)) + z**3).sum(), (x, z), create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), z)
    torch.testing.assert_close(second, 6 * z)


def test_gradients_may_be_changed_in_place():
    x = torch.randn(3, requires_grad=True)
    (slope,) = torch.autograd.grad(square(x, torch.zeros(3)).sum(), x, create_graph=True)
    assert torch.equal(slope.mul_(2), 4 * x)


def test_saved_tensors_are_read_once():
    """Checkpoints recompute what was saved, and hand it out a single time."""
    x = torch.randn(3, requires_grad=True)
    out = checkpoint(lambda x: square(x, torch.zeros(3)), x, use_reentrant=False)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert torch.equal(slope, 2 * x)
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.autograd.grad(slope.sum(), x)


def test_a_tie_takes_no_memory_and_has_no_gradient():
    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(3)
    tied = tie(x, y)
    assert tied.numel() == 0
    assert tied.untyped_storage().nbytes() == 0
    assert torch.autograd.grad(tied.sum(), x, allow_unused=True) == (None,)
    assert not tie(x.detach(), y).requires_grad
