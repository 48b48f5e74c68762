"""The names of version 0.1 for modules of kernels, which repositories exported by it import.

Where Triton is missing, see `tests/test_core_install.py`.
"""

import importlib

import pytest

from hf_seqmix.ops import kernels

# Old name -> new name, and what exported code calls.
MOVED = {
    "causal_sum": ("polynomial.kernels.linear_attention", ["causal_sum", "causal_sum_pair"]),
    "monarch": ("toeplitz.kernels.monarch", ["monarch_gradients", "monarch_kernel_gradient", "monarch_product"]),
    "native": ("ski.native", ["build", "ready", "serves", "ski_backward", "ski_forward"]),
    "running_sums": ("polynomial.kernels.running_mean", ["running_product"]),
    "ski": ("ski.kernels.operator", ["MOST_POINTS", "MOST_TAPS", "ski_backward", "ski_forward"]),
    "toeplitz_tiles": ("toeplitz.kernels.tiles", ["toeplitz_tiles", "toeplitz_tiles_kernel_gradient"]),
    "trials": ("trials", ["fault"]),
}


def test_no_name_is_missing() -> None:
    assert set(kernels._MOVED) == set(MOVED)


@pytest.mark.parametrize("old", MOVED)
def test_old_names_are_the_modules_of_the_new_ones(old: str) -> None:
    new, names = MOVED[old]
    if "kernels" in new:
        pytest.importorskip("triton")
    module = importlib.import_module(f"hf_seqmix.ops.kernels.{old}")
    assert module is importlib.import_module(f"hf_seqmix.ops.{new}")
    assert all(hasattr(module, name) for name in names)
