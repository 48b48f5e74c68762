"""The one table of tolerances: largest error allowed, relative to the root mean square of the exact result."""

import torch
from torch import Tensor

# Rounding of inputs and outputs for half precision; of float32 transforms and sums for float32.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}

# Two routes through a whole model in float32: rounding of many layers adds up. float64 says whether they are the same.
MODEL_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 8e-2, torch.float16: 2e-2}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference over the root mean square of `expected` (1 where that is 0)."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if expected.numel() == 0:
        return 0.0
    scale = expected.double().square().mean().sqrt().item() or 1.0
    return (actual.double() - expected.double()).abs().max().item() / scale


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype | None = None, factor: float = 1.0) -> None:
    """Assert that two tensors agree within the table's tolerance for `dtype`, that of `actual` by default."""
    error = relative_error(actual, expected)
    bound = factor * TOLERANCE[dtype or actual.dtype]
    assert error <= bound, f"relative error {error:.3g} exceeds {bound:.3g}"
