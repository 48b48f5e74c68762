"""Products with gated sums, powers and denominators: their matrices, and going on from sums."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops import polynomial_product, power_attention_dense
from hf_seqmix.ops.polynomial.gated_product import fade, gated_product, gated_sum_shapes, sum_gated_rows
from hf_seqmix.ops.polynomial.power_attention import POWER_FORMS
from hf_seqmix.ops.polynomial.product import row_kinds
from tests.tolerances import assert_close

KINDS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "2": (2, "cumsum", {}),
    "3": (3, "cumsum", {}),
    "4": (4, "cumsum", {}),
    "4 gate": (4, "gate", {}),
    "5": (5, "cumsum", {}),
    "6 gate": (6, "gate", {}),
    "3 squared": (3, "cumsum", {"power": 2}),
    "3 cubed": (3, "cumsum", {"power": 3}),
    "3 divided": (3, "cumsum", {"power": 2, "denominator": True}),
}


def make(degree: int, length: int, gated: bool = True) -> tuple[list[Tensor], Tensor | None]:
    factors = [torch.randn(2, length, 3, 4, dtype=torch.float64) for _ in range(degree)]
    gates = torch.nn.functional.logsigmoid(torch.randn(2, length, 3, dtype=torch.float64) + 1)
    return factors, gates if gated else None


def by_matrices(factors: list[Tensor], gates: Tensor | None, degree_form: str, **fields: Any) -> Tensor:
    """The product with the matrix of each stage."""
    p, degree = factors, len(factors)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return power_attention_dense(q, k, v, gates, **fields)

    def mean(x: Tensor) -> Tensor:
        return power_attention_dense(torch.ones_like(x[..., :1]), torch.ones_like(x[..., :1]), x, gates)

    if degree == 2:
        return p[0] * mean(p[1])
    if degree == 3:
        return attend(*p)
    if degree == 4:
        return p[3] * attend(*p[:3]) if degree_form == "gate" else attend(p[0] * mean(p[3]), p[1], p[2])
    y = attend(p[0], p[1], attend(p[3], p[4], p[2]))
    return y if degree == 5 else p[5] * y


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("length", [1, 2, 13, 67])
def test_every_form_equals_the_matrices(length, name, gated):
    degree, degree_form, fields = KINDS[name]
    factors, gates = make(degree, length, gated)
    expected = by_matrices(factors, gates, degree_form, **fields)
    for form in POWER_FORMS:
        assert_close(gated_product(factors, gates, degree_form, **fields, form=form).y, expected)
    if not gated and not fields:
        assert_close(polynomial_product(factors, degree_form).y, expected)


@pytest.mark.parametrize("name", KINDS)
def test_gradients_of_the_forms_agree(name):
    degree, degree_form, fields = KINDS[name]
    factors, gates = make(degree, 67)
    assert gates is not None
    leaves = [x.requires_grad_() for x in (*factors, gates)]
    upstream = torch.randn(2, 67, 3, 4, dtype=torch.float64)
    expected = torch.autograd.grad(by_matrices(factors, gates, degree_form, **fields), leaves, upstream)
    for form in POWER_FORMS:
        y = gated_product(factors, gates, degree_form, **fields, form=form).y
        for actual, right in zip(torch.autograd.grad(y, leaves, upstream), expected, strict=True):
            assert_close(actual, right)


@pytest.mark.parametrize("power", [1, 2, 3])
def test_the_degree_is_exact(power):
    factors, gates = make(3, 67)
    y = gated_product(factors, gates, power=power).y
    assert torch.equal(gated_product([2 * x for x in factors], gates, power=power).y, 2 ** (2 * power + 1) * y)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_going_on_from_sums_and_recent_rows(name, gated):
    degree, degree_form, fields = KINDS[name]
    factors, gates = make(degree, 83, gated)
    real = torch.ones(2, 83)
    real[0, :5] = real[1, 50:60] = 0
    factors = [x * real[:, :, None, None] for x in factors]
    gates = None if gates is None else gates * real.unsqueeze(-1)
    whole = gated_product(factors, gates, degree_form, **fields, real=real)
    for summed, seen in ((40, 40), (0, 6), (31, 45), (80, 82)):
        first = sum_gated_rows([tuple(x[:, : summed // 2] for x in stage) for stage in whole.rows], **fields)
        then = [tuple(x[:, summed // 2 : summed] for x in stage) for stage in whole.rows]
        first = fade(first, then[0][1]) if gated else first
        sums = [a + b for a, b in zip(first, sum_gated_rows(then, **fields), strict=True)]
        shapes = gated_sum_shapes(row_kinds(degree, degree_form), 4, **fields)
        assert [list(x.shape) for x in sums] == [[2, 3, *shape] for shape in shapes]
        recent = [tuple(x[:, summed:seen] for x in stage) for stage in whole.rows]
        for form in POWER_FORMS:
            after = gated_product(
                [f[:, seen:] for f in factors],
                None if gates is None else gates[:, seen:],
                degree_form,
                **fields,
                real=real[:, seen:],
                form=form,
                sums=sums,
                recent=recent,
            )
            assert_close(after.y[real[:, seen:] > 0], whole.y[:, seen:][real[:, seen:] > 0])


@pytest.mark.parametrize("name", ["3 squared", "3 divided"])
def test_without_a_direction(name):
    fields = KINDS[name][2]
    factors, _ = make(3, 13)
    expected = power_attention_dense(*factors, **fields, causal=False)
    assert_close(gated_product(factors, **fields, causal=False).y, expected)


def test_what_does_not_fit_is_refused():
    factors, gates = make(4, 5)
    with pytest.raises(ValueError, match="power is 2 and denominator False, but there are 4 factors: give three"):
        gated_product(factors, gates, power=2)
