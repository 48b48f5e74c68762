"""Operations in a fixed order: the same numbers, and rows that do not depend on their neighbors."""

import threading

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hf_seqmix.ops import batch_invariant, toeplitz_matmul
from hf_seqmix.ops.common.invariance import is_batch_invariant
from hf_seqmix.ops.ski.interpolation import InducingGrid
from hf_seqmix.ops.ski.product import sparse_low_rank_matmul
from tests.tolerances import TOLERANCE, relative_error

WEIGHT, BIAS = torch.randn(24, 16, dtype=torch.float64), torch.randn(24, dtype=torch.float64)

ROWWISE = {
    "linear": lambda x: F.linear(x, WEIGHT.to(x.dtype), BIAS.to(x.dtype)),
    "linear without bias": lambda x: F.linear(x, WEIGHT.to(x.dtype)),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "scores": lambda x: x @ x.transpose(-1, -2) @ x,
    "baddbmm": lambda x: torch.baddbmm(x, x @ x.transpose(1, 2), x, beta=2, alpha=3),
    "softmax": lambda x: x.softmax(dim=-1),
    "softmax over positions": lambda x: x.softmax(dim=1),
    "log_softmax over positions": lambda x: x.log_softmax(dim=1),
    "sum": lambda x: x.sum(dim=1, keepdim=True),
    "cumsum": lambda x: x.cumsum(dim=1),
    "mean": lambda x: x.transpose(1, 2).mean(dim=1),
    "silu": F.silu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "logsumexp": lambda x: x.logsumexp(dim=-1, keepdim=True),
    "logsumexp over positions": lambda x: x.logsumexp(dim=1),
    "logaddexp": lambda x: torch.logaddexp(x, x.roll(1, -1)),
    "power": lambda x: (x.square() + 0.1) ** 0.3,
    "in place": lambda x: x.clone().sigmoid_().mul_(x),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ROWWISE)
def test_rows_are_computed_as_each_alone(name, dtype):
    operation = ROWWISE[name]
    x = torch.randn(5, 13, 16, dtype=dtype)
    plain = operation(x.double())
    with batch_invariant():
        together = operation(x)
        alone = torch.cat([operation(row[None]) for row in x])
    assert torch.equal(together, alone)
    assert together.dtype == dtype
    assert relative_error(together, plain) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["linear", "silu", "sigmoid", "power"])
def test_positions_are_computed_as_each_alone(name):
    """As in decoding: one position of one row, or all of them."""
    operation = ROWWISE[name]
    x = torch.randn(3, 70, 16)
    with batch_invariant():
        together = operation(x)
        alone = torch.stack([torch.cat([operation(x[b : b + 1, t : t + 1])[0] for t in range(70)]) for b in range(3)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("causal", [True, False])
def test_toeplitz_products_are_computed_row_by_row(causal):
    """A transform of many rows may take another path than a transform of one."""
    x, kernel = torch.randn(8, 192, 150, dtype=torch.float64), torch.randn(192, 299, dtype=torch.float64)
    kernel = kernel[:, :150] if causal else kernel
    with batch_invariant():
        together = toeplitz_matmul(x, kernel, causal)
        alone = torch.cat([toeplitz_matmul(row, kernel, causal) for row in x.split(1)])
    assert torch.equal(together, alone)
    assert relative_error(together, toeplitz_matmul(x, kernel, causal)) < TOLERANCE[torch.float64]


def test_products_of_ski_are_computed_row_by_row():
    grid = InducingGrid(600, 150)
    x = torch.randn(8, 600, 192, dtype=torch.float64).mT
    taps, kernel = torch.randn(192, 5, dtype=torch.float64), torch.randn(192, 299, dtype=torch.float64)
    with batch_invariant():
        together = sparse_low_rank_matmul(x, taps, kernel, grid)
        alone = torch.cat([sparse_low_rank_matmul(row, taps, kernel, grid) for row in x.split(1)])
    assert torch.equal(together, alone)
    assert relative_error(together, sparse_low_rank_matmul(x, taps, kernel, grid)) < TOLERANCE[torch.float64]


def test_pads_of_zero_do_not_change_a_product_or_a_sum():
    left, right = torch.randn(2, 5, 30), torch.randn(2, 30, 7)

    def padded(x: Tensor, dim: int) -> Tensor:
        widths = (4, 9) if dim == 2 else (0, 0, 4, 9)
        return F.pad(x, widths)

    with batch_invariant():
        assert torch.equal(padded(left, 2) @ padded(right, 1), left @ right)
        assert torch.equal(padded(right, 1).sum(dim=1), right.sum(dim=1))
        assert torch.equal(padded(right, 1).cumsum(dim=1)[:, 4:34], right.cumsum(dim=1))
        hidden = F.pad(right, (0, 0, 4, 3), value=-torch.inf)
        assert torch.equal(hidden.logsumexp(dim=1), right.logsumexp(dim=1))
        assert hidden[:, :4].logsumexp(dim=1).eq(-torch.inf).all()


def test_a_query_that_may_attend_to_nothing_has_no_nan():
    x = torch.randn(1, 1, 4, 8)
    mask = torch.ones(4, 4, dtype=torch.bool).tril(-1)
    with batch_invariant():
        assert F.scaled_dot_product_attention(x, x, x, attn_mask=mask).isfinite().all()


def test_gradients_are_the_same_numbers():
    x = torch.randn(3, 13, 16, dtype=torch.float64, requires_grad=True)

    def gradient() -> Tensor:
        y = F.silu(F.linear(x, WEIGHT, BIAS))
        return torch.autograd.grad((y @ y.transpose(1, 2)).softmax(dim=-1).square().sum(), x)[0]

    expected = gradient()
    with batch_invariant():
        assert relative_error(gradient(), expected) < 1e-11


def test_the_order_is_fixed_within_the_context_and_in_one_thread():
    seen = []
    with batch_invariant():
        with batch_invariant():
            pass
        seen.append(is_batch_invariant())
        other = threading.Thread(target=lambda: seen.append(is_batch_invariant()))
        other.start()
        other.join()
    assert [*seen, is_batch_invariant()] == [True, False, False]


def test_a_traced_call_is_refused():
    def call(x: Tensor) -> Tensor:
        with batch_invariant():
            return x @ x

    with pytest.raises(RuntimeError):  # older compilers say it in words of their own
        torch.compile(call, backend="eager", fullgraph=True)(torch.randn(3, 3))


def test_products_ignore_what_they_are_told_to_ignore():
    """With beta 0: memory that nothing has written may hold anything."""
    start = torch.full((2, 3, 4), torch.nan)
    a, b = torch.randn(2, 3, 5), torch.randn(2, 5, 4)
    with batch_invariant():
        assert not torch.baddbmm(start, a, b, beta=0).isnan().any()
        assert not torch.addmm(start[0], a[0], b[0], beta=0).isnan().any()


def test_special_values_are_those_of_torch():
    infinite = torch.tensor([-torch.inf, torch.inf, 1.0])
    with batch_invariant():
        assert torch.logaddexp(infinite, infinite).tolist()[:2] == [-torch.inf, torch.inf]
        assert torch.ones(1000, dtype=torch.bfloat16).cumsum(0)[-1] == 1000
        assert torch.ones(1000, dtype=torch.bfloat16).sum(0) == 1000
        assert torch.tensor(3.0).sum(-1) == torch.tensor(3.0).cumsum(0) == 3
