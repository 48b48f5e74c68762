"""Products of projections: their degree, their masks, and going on from sums."""

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops import polynomial_product
from hf_seqmix.ops.polynomial.gated_product import gated_product
from hf_seqmix.ops.polynomial.product import row_factors, row_kinds, sum_rows
from hf_seqmix.ops.polynomial.stages import FORMS
from tests.tolerances import assert_close

KINDS = [
    (2, "cumsum"),
    (3, "cumsum"),
    (4, "cumsum"),
    (4, "gate"),
    (5, "cumsum"),
    (6, "gate"),
    (7, "cumsum"),
    (4, "soft"),
]
WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def make(degree: int, length: int, width: int = 4) -> list[Tensor]:
    return [torch.randn(2, length, 3, width, dtype=torch.float64) for _ in range(degree)]


def by_matrices(factors: list[Tensor], degree_form: str, causal: bool = True, mask_each: bool = True) -> Tensor:
    """The products as matrices over positions, each divided by the number of visible positions and masked.

    With `mask_each` false only the last product of matrices is masked: the mistake that lets the future in.
    """
    p = [factor.transpose(1, 2) for factor in factors]  # (batch, heads, length, width)
    length, width = p[0].shape[2:]
    visible = torch.ones(length, length, dtype=torch.float64)
    visible = visible.tril() if causal else visible
    count = visible.sum(dim=1, keepdim=True)
    mean = visible / count

    def scores(q: Tensor, k: Tensor) -> Tensor:
        product = q @ k.transpose(-1, -2) / (width**0.5 * count)
        return product * visible if mask_each else product

    degree = len(p)
    if degree_form == "soft":
        parts = [by_matrices(factors[:2], "cumsum", causal), by_matrices(factors[:3], "cumsum", causal)]
        parts.append(by_matrices(factors, "cumsum", causal))
        return sum(w * y for w, y in zip(WEIGHTS, parts, strict=True))
    if degree == 2:
        y = p[0] * (mean @ p[1])
    elif degree == 3:
        y = scores(p[0], p[1]) @ p[2]
    elif degree == 4 and degree_form == "cumsum":
        y = scores(p[0] * (mean @ p[3]), p[1]) @ p[2]
    elif degree == 4:
        y = p[3] * (scores(p[0], p[1]) @ p[2])
    elif degree == 5:
        matrix = scores(p[0], p[1]) @ scores(p[3], p[4])
        y = (matrix if mask_each else matrix * visible) @ p[2]
    elif degree == 6 and degree_form == "gate":
        y = p[5] * (scores(p[0], p[1]) @ scores(p[3], p[4]) @ p[2])
    else:
        y = scores(p[0], p[1]) @ scores(p[3], p[4]) @ scores(p[5], p[6]) @ p[2]
    return y.transpose(1, 2)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("degree", "degree_form"), KINDS)
@pytest.mark.parametrize("length", [1, 2, 13, 67])
def test_every_form_equals_the_matrices(degree, degree_form, length, causal):
    factors = make(degree, length)
    expected = by_matrices(factors, degree_form, causal)
    for form in FORMS:
        product = polynomial_product(factors, degree_form, form=form, causal=causal, weights=WEIGHTS)
        assert (product.y - expected).abs().max() < 1e-12 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize(("degree", "degree_form"), KINDS[:-1])
def test_the_degree_is_exact(degree, degree_form):
    factors = make(degree, 67)
    y = polynomial_product(factors, degree_form).y
    doubled = polynomial_product([2 * factor for factor in factors], degree_form).y
    assert torch.equal(doubled, 2**degree * y)  # bit for bit: a factor of 2 is exact


def test_each_matrix_is_masked_before_it_is_multiplied():
    factors = make(5, 11)
    y = polynomial_product(factors).y
    leaky = by_matrices(factors, "cumsum", mask_each=False)
    assert_close(y, by_matrices(factors, "cumsum"))
    assert (y - leaky).abs().max() > 0.01
    changed = [factor.clone() for factor in factors]
    for factor in changed:
        factor[:, 7] += 1
    assert torch.equal(polynomial_product(changed).y[:, :7], y[:, :7])
    assert (by_matrices(changed, "cumsum", mask_each=False) - leaky)[:, :7].abs().max() > 0.01


@pytest.mark.parametrize(("degree", "degree_form"), KINDS)
def test_the_past_is_bit_unchanged_by_the_future(degree, degree_form):
    factors = make(degree, 100)
    y = polynomial_product(factors, degree_form, weights=WEIGHTS).y
    for factor in factors:
        factor[:, 70:] = torch.randn_like(factor[:, 70:])
    assert torch.equal(polynomial_product(factors, degree_form, weights=WEIGHTS).y[:, :70], y[:, :70])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("degree", "degree_form"), KINDS)
def test_going_on_from_sums_and_recent_rows(degree, degree_form, form):
    factors = make(degree, 83)
    whole = polynomial_product(factors, degree_form, weights=WEIGHTS)
    assert [len(stage) for stage in whole.rows] == [2 if k == "pair" else 1 for k in row_kinds(degree, degree_form)]
    for summed, seen in ((40, 40), (0, 6), (31, 45), (80, 82)):
        before = polynomial_product([f[:, :seen] for f in factors], degree_form, weights=WEIGHTS, form=form).rows
        sums = sum_rows([tuple(x[:, :summed] for x in stage) for stage in before])
        recent = [tuple(x[:, summed:] for x in stage) for stage in before]
        after = polynomial_product(
            [f[:, seen:] for f in factors], degree_form, weights=WEIGHTS, form=form, sums=sums, recent=recent
        )
        assert_close(after.y, whole.y[:, seen:])
        held = [tuple(x[:, summed:] for x in stage) for stage in whole.rows]
        after = polynomial_product(
            [f[:, seen:] for f in factors], degree_form, weights=WEIGHTS, form=form, sums=sums, held=held
        )
        assert_close(after.y, whole.y[:, seen:])


@pytest.mark.parametrize(("degree", "degree_form"), KINDS)
def test_rows_that_are_factors_are_named(degree, degree_form):
    factors = make(degree, 3)
    named = row_factors(degree, degree_form)
    assert (named is None) == (degree > 4)
    parts = [part for stage in polynomial_product(factors, degree_form, weights=WEIGHTS).rows[1:] for part in stage]
    for part, index in zip(parts, named or [], strict=named is not None):
        assert torch.equal(part, factors[index])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("degree", "degree_form"), KINDS)
def test_counts_are_of_real_tokens(degree, degree_form, causal):
    real = torch.tensor([[0, 0, 1, 0, 1, 1, 1], [1, 1, 0, 1, 1, 0, 0]])
    factors = [factor * real[:, :, None, None] for factor in make(degree, 7)]
    y = polynomial_product(factors, degree_form, real=real, causal=causal, weights=WEIGHTS).y
    for row in range(2):
        kept = real[row].bool()
        alone = polynomial_product([f[row][kept][None] for f in factors], degree_form, causal=causal, weights=WEIGHTS)
        assert_close(y[row][kept], alone.y[0])


def test_degree_three_is_linear_attention_with_the_identity_as_feature_map():
    q, k, v = make(3, 9)
    y = polynomial_product([q, k, v]).y
    for t in range(9):
        state = torch.einsum("bshc,bshd->bhcd", k[:, : t + 1], v[:, : t + 1])
        expected = torch.einsum("bhc,bhcd->bhd", q[:, t], state) / ((t + 1) * 4**0.5)
        assert_close(y[:, t], expected)


def test_degree_three_is_even_in_every_token_but_its_own():
    """Why projections are affine by default: flipping the sign of a past token changes nothing."""
    x, weights = torch.randn(1, 6, 1, 4, dtype=torch.float64), torch.randn(3, 4, 4, dtype=torch.float64)
    flipped = x.clone()
    flipped[:, 2] *= -1
    y, other = (polynomial_product([z @ w for w in weights]).y for z in (x, flipped))
    assert_close(other[:, 3:], y[:, 3:])
    assert_close(other[:, 2], -y[:, 2])


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_what_does_not_fit_is_refused(degree):
    factors = make(degree, 5)
    swapped = [*factors[:-1], factors[-1].transpose(2, 3)]
    flat = [factor.flatten(2) for factor in factors]
    for given, fields, message in (
        (swapped, {}, r"factors have the shapes \(2, 5, 3, 4\), .*\(2, 5, 4, 3\); all must be"),
        (flat, {}, r"must be \(batch, length, heads, width\)"),
        (factors[:1], {}, "there are 1 factors: give two or more"),
        ([], {}, "there are 0 factors: give two or more"),
        (factors, {"form": "fast"}, "form is 'fast'; it must be one of 'chunked'"),
        (factors, {"weights": torch.ones(4)}, r"weights have shape \(4,\); they must be \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            polynomial_product(given, **fields)


@pytest.mark.parametrize("degree", [2, 3, 5])
def test_a_gate_is_refused_where_no_even_degree_has_one(degree):
    message = f"'gate', which only even degrees from 4 on have, but there are {degree} factors: leave degree_form out"
    with pytest.raises(ValueError, match=message):
        polynomial_product(make(degree, 5), "gate")
    with pytest.raises(ValueError, match=message):
        gated_product(make(degree, 5), None, "gate")
