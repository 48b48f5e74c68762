"""How matrices are multiplied on the device that kernels are compiled for."""

import triton

__all__ = ["dot_precision", "multiplies_shared_memory"]


def dot_precision() -> str:
    """Return the `input_precision` of `tl.dot` for float32.

    On NVIDIA a product is three products of tf32, whose sum has the digits of float32.
    """
    if triton.knobs.runtime.interpret:
        return "ieee"
    return "tf32x3" if triton.runtime.driver.active.get_current_target().backend == "cuda" else "ieee"


def multiplies_shared_memory() -> bool:
    """Return whether matrix products take operands out of shared memory, not registers: NVIDIA's sm_90 to sm_110."""
    if triton.knobs.runtime.interpret:
        return True
    target = triton.runtime.driver.active.get_current_target()
    return target.backend == "cuda" and 90 <= target.arch < 120
