"""Sums and rows of the past that do not fit a product."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops import polynomial_product
from hf_seqmix.ops.polynomial.product import StageRows
from hf_seqmix.ops.polynomial.product_rows import sum_rows
from tests.ops.polynomial.test_product import make

LENGTH = 5


def past(degree: int) -> tuple[list[Tensor], list[Tensor], list[StageRows]]:
    """Factors, and the sums and rows of tokens before."""
    rows = polynomial_product(make(degree, LENGTH)).rows
    return make(degree, LENGTH), sum_rows(rows), rows


def refused(message: str, factors: list[Tensor], **fields: Any) -> None:
    with pytest.raises(ValueError, match=message):
        polynomial_product(factors, **fields)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("degree", [2, 3, 4, 5])
def test_sums_that_would_be_broadcast_are_refused(degree, causal):
    factors, sums, _ = past(degree)
    for place, total in enumerate(sums):
        for dimension in range(total.ndim):
            changed = [*sums[:place], total.narrow(dimension, 0, 1), *sums[place + 1 :]]
            refused("sums have the shapes .*; they must be", factors, sums=changed, causal=causal)
    for changed in ([], sums[:-1], [*sums, sums[-1]]):
        refused("sums have the shapes .*; they must be", factors, sums=changed, causal=causal)


@pytest.mark.parametrize("name", ["recent", "held"])
@pytest.mark.parametrize("degree", [2, 3, 4, 5])
def test_rows_that_do_not_fit_are_refused(degree, name):
    factors, _, rows = past(degree)
    twice = [tuple(torch.cat([x, x], dim=1) for x in stage) for stage in rows]
    for changed in (
        [],
        rows[:-1],
        [*rows, rows[-1]],
        [tuple(x[:1] for x in stage) for stage in rows],
        [twice[0], *rows[1:]],
        [*rows[:-1], twice[-1]],
    ):
        refused(
            f"{name} has the shapes .*; they must be .* of the same number of positions", factors, **{name: changed}
        )


@pytest.mark.parametrize("degree", [2, 3])
def test_held_rows_are_those_of_these_tokens_too(degree):
    factors, _, rows = past(degree)
    refused("held has the shapes .*, 5 or more", factors, held=[tuple(x[:, 1:] for x in stage) for stage in rows])
    refused("recent and held are given: leave recent out", factors, recent=rows, held=rows)


@pytest.mark.parametrize("dtype", [torch.long, torch.complex64])
@pytest.mark.parametrize("degree", [2, 3])
def test_numbers_that_are_not_real_are_refused(degree, dtype):
    refused(r"P1.* and P\d must be real floating-point tensors", [x.to(dtype) for x in make(degree, LENGTH)])
