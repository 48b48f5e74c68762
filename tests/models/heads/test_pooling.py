"""One vector for a sequence."""

import pytest
import torch
from torch.nn import functional as F

from hf_seqmix.models.heads.pooling import pool
from hf_seqmix.ops import batch_invariant


@pytest.mark.parametrize("pooling", ["mean", "last", "first"])
def test_pooling_sees_real_tokens_only(pooling):
    hidden = torch.randn(3, 5, 4, dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0]])
    pooled = pool(hidden, mask, pooling)
    for row in range(3):
        real = hidden[row][mask[row].bool()]
        expected = {"mean": real.mean(0), "last": real[-1], "first": real[0]}[pooling]
        torch.testing.assert_close(pooled[row], expected)
    torch.testing.assert_close(pool(hidden, None, pooling), pool(hidden, torch.ones(3, 5), pooling))
    nothing = torch.zeros(3, 4) if pooling == "mean" else hidden[:, -1]
    torch.testing.assert_close(pool(hidden, torch.zeros(3, 5), pooling), nothing.to(hidden.dtype))


@pytest.mark.parametrize("pooling", ["mean", "last", "first"])
def test_a_mask_that_begins_with_what_a_cache_holds(pooling):
    hidden = torch.randn(2, 4, 3)
    mask = torch.tensor([[1, 1, 0, 1, 1, 0], [0, 0, 1, 1, 0, 1]])
    assert torch.equal(pool(hidden, mask, pooling), pool(hidden, mask[:, 2:], pooling))


def test_the_mean_is_the_same_number_with_pads() -> None:
    hidden = torch.randn(2, 37, 16)
    mask = F.pad(torch.ones(2, 37), (4, 3))
    with batch_invariant():
        assert torch.equal(pool(F.pad(hidden, (0, 0, 4, 3)), mask, "mean"), pool(hidden, None, "mean"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_of_a_long_sequence_in_half_precision(dtype):
    hidden = torch.full((1, 20_000, 2), 6.0, dtype=dtype)
    mask = torch.ones(1, 20_000)
    mask[0, :5] = 0
    assert pool(hidden, mask, "mean").tolist() == [[6.0, 6.0]]
    assert pool(hidden, None, "mean").tolist() == [[6.0, 6.0]]


@pytest.mark.parametrize("pooling", ["mean", "last", "first"])
@pytest.mark.parametrize("mask", [None, torch.ones(2, 0)])
def test_rows_of_length_zero_are_refused(pooling, mask):
    with pytest.raises(ValueError, match="rows have length 0"):
        pool(torch.zeros(2, 0, 4), mask, pooling)
