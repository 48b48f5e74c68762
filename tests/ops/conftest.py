"""Without a GPU, kernels run in Triton's interpreter, which `tests/conftest.py` chooses."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.markers import needs_kernels, runs_kernels

HERE = Path(__file__).parent
NEEDS_TRITON = ("test_trials.py", "ski/test_derivatives.py")

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["*/kernels/*", *NEEDS_TRITON]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the kernels out where nothing can run them."""
    for item in items:
        name = item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else ""
        if "/kernels/" in name or name in NEEDS_TRITON:
            item.add_marker(needs_kernels)


@pytest.fixture
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what `torch.empty` allocates with NaN, so that an entry never written is seen."""
    with torch.device("cpu"):
        empty = torch.empty
        empty(0)  # torch remembers, from the first time on, which functions take a device from a context

    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = empty(*args, **kwargs)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned)


if not torch.cuda.is_available() and runs_kernels:
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    _create_dot = InterpreterBuilder.create_dot

    def _widened(operand: TensorHandle) -> TensorHandle:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        return TensorHandle((operand.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def _create_dot_of_numbers(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *args: Any) -> TensorHandle:
        return _create_dot(self, _widened(a), _widened(b), *args)

    # The interpreter of Triton 3.9 keeps bfloat16 as integers of 16 bits and multiplies those.
    InterpreterBuilder.create_dot = _create_dot_of_numbers

    _cast = InterpreterBuilder.cast_impl

    def _cast_to_nearest(self: InterpreterBuilder, source: TensorHandle, to: Any) -> TensorHandle:
        if source.dtype.scalar == tl.float32 and to.scalar == tl.bfloat16:
            rounded = torch.from_numpy(np.array(source.data, dtype=np.float32)).bfloat16()
            return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)
        return _cast(self, source, to)

    # It also cuts float32 off to bfloat16, which devices round.
    InterpreterBuilder.cast_impl = _cast_to_nearest
