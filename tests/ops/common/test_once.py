"""Gradients that refuse to be differentiated again, on every path to what they depend on."""

import pytest
import torch

from hf_seqmix.ops.common.once import once, ties

REFUSED = "second derivatives are not implemented"


class Square(torch.autograd.Function):
    """x**2, whose gradient is computed from a number that is no tensor of the graph."""

    @staticmethod
    def forward(ctx, x, y, *tied):
        ctx.save_for_backward(x.detach() * 2, *tied)
        return x**2 + y

    @staticmethod
    @once
    def backward(ctx, upstream):
        slope, *tied = ctx.saved_tensors
        return upstream * slope, upstream if ctx.needs_input_grad[1] else None, *[None] * len(tied)


def square(x, y):
    return Square.apply(x, y, *ties(x))


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


def test_ties_take_no_memory_and_none_without_gradients():
    x = torch.randn(4, 5, requires_grad=True)
    (tie,) = ties(x)
    assert tie.numel() == 0
    assert tie.untyped_storage().nbytes() == 0
    assert ties(x.detach()) == []
    with torch.no_grad():
        assert ties(x) == []
