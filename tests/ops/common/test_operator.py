"""Operators with two faces: one computation, one derivative, defined once a process."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops.common.operator import DifferentiableOperator, define_operator, differentiable_operator

SCHEMA = "(Tensor x, float factor) -> Tensor"


def _fake(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.factor = inputs
    ctx.save_for_backward(x)


def _cube(x: Tensor, factor: float) -> Tensor:
    return factor * x**3


def _slope(traced: bool, ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = ctx.saved_tensors
    return 3 * ctx.factor * g * x.square(), None


def cube(name: str, **options: bool) -> DifferentiableOperator:
    return differentiable_operator(name, SCHEMA, fake=_fake, save=_save, backward=_slope, **options)(_cube)


plain = cube("hf_seqmix_test::plain_v1")
batched = cube("hf_seqmix_test::batched_v1", batched=True)
once = cube("hf_seqmix_test::once_v1", once=True)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("operator", [plain, batched], ids=["plain", "batched"])
def test_both_faces_give_the_value_and_derivatives_of_any_order(operator, traced):
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.equal(operator(traced, x, 2.0), 2 * x**3)
    assert torch.autograd.gradcheck(lambda x: operator(traced, x, 2.0), x)
    assert torch.autograd.gradgradcheck(lambda x: operator(traced, x, 2.0), x)


# opcheck asks for it itself, and where warnings are errors torch 2.15 cannot hide it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_library_accepts_the_operator():
    for operator in (plain, batched, once):
        torch.library.opcheck(operator.traced, (torch.randn(3, 2, requires_grad=True), 2.0))


def test_without_gradients_nothing_is_saved():
    kept: list[Tensor] = []
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        with torch.no_grad():
            plain(False, x, 2.0)
        assert not kept
        plain(False, x, 2.0)
    assert [t.data_ptr() for t in kept] == [x.data_ptr()]


def test_transforms_of_functions_need_a_batch():
    x = torch.randn(4, 3, 2)
    for dim in (0, 1):
        assert torch.equal(torch.func.vmap(lambda x: batched(False, x, 2.0), dim, dim)(x), 2 * x**3)
    by_rows = torch.func.vmap(torch.func.grad(lambda x: batched(False, x, 2.0).sum()))(x)
    torch.testing.assert_close(by_rows, 6 * x**2)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: plain(False, x, 2.0).sum())(x)


def test_gradients_that_cannot_be_differentiated_again_refuse_it():
    x = torch.randn(3, requires_grad=True)
    (slope,) = torch.autograd.grad(once(False, x, 2.0).square().sum(), x, create_graph=True)
    torch.testing.assert_close(slope, 24 * x**5)
    with pytest.raises(RuntimeError, match="second derivatives are not implemented"):
        slope.sum().backward()


def test_an_operator_is_defined_once_a_process():
    """As when exported code is loaded again from another folder: those who hold the first go on."""
    first = define_operator("hf_seqmix_test::held_v1", SCHEMA, fake=_fake)(_cube)
    again = define_operator("hf_seqmix_test::held_v1", SCHEMA, fake=_fake)(lambda x, factor: x)
    assert again.traced is first.traced
    x = torch.ones(2)
    assert torch.equal(again(True, x, 2.0), 2 * x)
    assert torch.equal(cube("hf_seqmix_test::plain_v1")(True, x, 2.0), 2 * x)
