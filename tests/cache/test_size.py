"""Memory of a cache is counted once, and without modules."""

from types import SimpleNamespace
from typing import Any

import torch

from hf_seqmix.cache.size import cache_bytes


class Layer:
    def __init__(self) -> None:
        self.keys = torch.zeros(4, 8)
        self.view, self.parts = self.keys[:, 1:], {"of": [torch.zeros(3), None]}
        self.module, self.taps = torch.nn.Linear(2, 2), torch.zeros(5)
        self.own: Any = self


def test_memory_is_counted_once_and_without_modules() -> None:
    cache = SimpleNamespace(layers=[Layer(), Layer()])
    assert cache_bytes(cache) == 2 * 4 * (32 + 3 + 5)
    assert cache_bytes(None) == 0
