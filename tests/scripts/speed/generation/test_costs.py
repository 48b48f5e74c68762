"""Operations and bytes are those that the kernels have, and memory is counted once."""

from types import SimpleNamespace

import pytest
import torch
from generation.costs import CostCounter, kernel_bytes
from torch.nn import functional as F

X, Y = torch.randn(2, 6, 16), torch.randn(16, 5)


@pytest.mark.parametrize(
    ("call", "flops", "moved"),
    [
        (lambda: X[0] @ Y, 2 * 6 * 16 * 5, 4 * (96 + 80 + 30)),
        (lambda: X + X[:1], 192, 4 * (192 + 96 + 192)),
        (lambda: X.transpose(1, 2)[..., :3].unsqueeze(0), 0, 0),
        (lambda: X.expand(3, 2, 6, 16).sum(), 3 * 192, 4 * (192 + 1)),
        (lambda: torch.empty(9), 0, 0),
        (lambda: X.clone(), 0, 4 * 2 * 192),
        (lambda: X.new_empty(2, 6, 16).copy_(X), 0, 4 * 2 * 192),
        (lambda: X[0].index_select(0, torch.tensor([1])), 0, 4 * 2 * 16 + 8),
        (lambda: torch.fft.rfft(X), 12 * 2.5 * 16 * 4, 4 * 192 + 8 * 12 * 9),
        (lambda: torch.arange(7) + 1, 0, 3 * 7 * 8),
        (lambda: torch.add(X[0], X[1], out=X.new_empty(6, 16)), 96, 4 * 3 * 96),
    ],
)
def test_operations_and_bytes(call, flops, moved):
    with torch.no_grad(), CostCounter() as counter:
        call()
    assert (counter.flops, counter.bytes) == (flops, moved)


def test_attention_counts_both_products():
    query, keys = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 50, 8)
    with torch.no_grad(), CostCounter() as counter:
        F.scaled_dot_product_attention(query, keys, keys)
    assert counter.flops >= 4 * 2 * 50 * 8


def test_kernels_are_counted_alone():
    layer = SimpleNamespace(keys=torch.zeros(4, 8), taps=torch.zeros(5))
    cache = SimpleNamespace(layers=[layer, SimpleNamespace(taps=torch.zeros(5))])
    assert kernel_bytes(cache) == 2 * 4 * 5 and kernel_bytes(None) == 0
