"""Arguments whose shapes do not fit are refused by name, where a sum would take any number of elements."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hf_seqmix.ops import linear_attention, piecewise_column, polynomial_product, power_attention, toeplitz_step
from hf_seqmix.ops.polynomial.power_attention import power_sums
from hf_seqmix.ops.ski.interpolation import InducingGrid
from hf_seqmix.ops.toeplitz.online import OnlineConvolution
from hf_seqmix.ops.toeplitz.online_kernel import OnlineKernel

Q, V = torch.randn(2, 40, 3, 4), torch.randn(2, 40, 3, 5)
CENTERS = torch.randn(2, 2, 6, 3)


def column(**options: Any) -> Any:
    return piecewise_column(CENTERS, CENTERS, CENTERS, **{"kernel_norm": "p", "causal": True, **options})


def product(count: int, **options: Any) -> Any:
    return polynomial_product([Q] * count, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear_attention(Q, Q, V, state=torch.zeros(2, 3, 5, 4)), r"state has shape \(2, 3, 5, 4\); it must"),
        (lambda: linear_attention(Q, Q, V, state=torch.zeros(3, 2, 4, 5)), r"state has shape \(3, 2, 4, 5\)"),
        (lambda: linear_attention(Q, Q, V, state=torch.zeros(2, 3, 4, 1), form="parallel"), "state has shape"),
        (
            lambda: linear_attention(Q[:, :1], Q, V, scale=torch.ones(2, 40)),
            r"scale has shape \(2, 40\); it must be \(batch, length\), \(2, 1\), where each may be 1",
        ),
        (lambda: linear_attention(Q[:1], Q[:1], V[:1], scale=torch.ones(3, 1)), r"scale has shape \(3, 1\)"),
        (lambda: linear_attention(Q, Q, V, scale=torch.ones(2, 3)), r"scale has shape \(2, 3\)"),
        (lambda: linear_attention(Q, Q, V, scale=torch.ones(2)), r"scale has shape \(2,\)"),
        (
            lambda: column(key_mask=torch.ones(2, 8, dtype=torch.bool)),
            r"key_mask has shape \(2, 8\); it must be \(2, 6\)",
        ),
        (lambda: column(key_mask=torch.ones(2, 6)), "key_mask is torch.float32; it must be bool"),
        (lambda: column(kernel_norm="mix", mix=torch.ones(6)), r"mix has shape \(6,\); it must be \(1,\)"),
        (
            lambda: column(
                visible=torch.ones(1, 7, 6, dtype=torch.bool),
                query_positions=torch.zeros(1, 6, dtype=torch.long),
                key_positions=torch.zeros(1, 6, dtype=torch.long),
            ),
            r"visible has shape \(1, 7, 6\); it must be \(2, 6, 6\) or one row",
        ),
        (
            lambda: piecewise_column(CENTERS[..., :0], CENTERS[..., :0], CENTERS, kernel_norm="p"),
            "r must be at least 1",
        ),
        (lambda: product(4, degree_form="cumsums"), "degree_form is 'cumsums'; it must be"),
        (lambda: product(1), "there are 1 factors: give two or more"),
        (lambda: product(4, degree_form="soft"), "'soft' of 4 factors: give four, and three weights"),
        (
            lambda: product(3, real=torch.ones(2, 1)),
            r"real has shape \(2, 1\); it must be \(batch, length\), \(2, 40\)",
        ),
        (lambda: power_attention(Q, Q, V, real=torch.ones(2, 44)), r"real has shape \(2, 44\); it must be"),
        (lambda: power_sums(Q, V, real=torch.ones(2, 1)), r"real has shape \(2, 1\); it must be"),
        (lambda: InducingGrid(20, 5, 2).check(), "degree of interpolation is 2; it must be 1 or 3"),
        (
            lambda: toeplitz_step(V[..., 0], torch.ones(3, 1)),
            r"kernel has shape \(3, 1\); a history of 40 tokens of 3",
        ),
        (lambda: toeplitz_step(V[..., 0], torch.ones(1, 40)), r"kernel has shape \(1, 40\)"),
        (lambda: toeplitz_step(V[..., 0], torch.ones(3, 40, 2)), r"expected history .*, got .*\(3, 40, 2\) and None"),
        (lambda: toeplitz_step(V[0, :, 0], torch.ones(3, 40)), r"expected history .*, got \(40, 5\)"),
        (
            lambda: toeplitz_step(V[..., 0], torch.ones(3, 40), torch.arange(2)),
            r"expected .* position \(1,\), got .* and \(2,\)",
        ),
        (
            lambda: toeplitz_step(V[..., 0].long(), torch.ones(3, 40)),
            "history and kernel must be real floating-point tensors, got torch.int64, torch.float32",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_no_token_is_a_step_of_nothing() -> None:
    state = OnlineConvolution(OnlineKernel(torch.ones(3, 5), block=4), 2)
    assert state.step(torch.zeros(2, 0, 3)).shape == (2, 0, 3) and state.position == 0
