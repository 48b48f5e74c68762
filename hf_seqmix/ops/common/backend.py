"""Which kernels in Triton and in C are installed and may be trusted."""

import importlib
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

__all__ = ["kernel_module", "native_serves", "triton_serves"]

_modules: dict[str, Any] = {}
_tried: dict[tuple[str, str, torch.device, torch.dtype, int], bool] = {}
_trying = threading.RLock()
"""A trial forces its kernel in all threads, so that there is one at a time."""


def kernel_module(name: str) -> Any:
    """Return a module of kernels, or None where Triton is not installed.

    The module is imported by its absolute name: exported model code, which has no kernels beside it, uses those of an
    installed package.

    Args:
        name: of the module, from `hf_seqmix.ops` on, as "toeplitz.kernels.tiles".
    """
    if name not in _modules:
        try:
            _modules[name] = importlib.import_module(f"hf_seqmix.ops.{name}")
        except ImportError:
            _modules[name] = None
    return _modules[name]


def triton_serves(op: str, name: str, module: str, x: Tensor, length: int, wanted: bool) -> bool:
    """Return whether a kernel in Triton may compute a call.

    Args:
        op: a key of `crossovers.IMPLEMENTATIONS`.
        name: of the implementation.
        module: that holds the implementation, as `kernel_module` takes it.
        x: first tensor of the call.
        length: positions.
        wanted: whether the kernel is forced, and so needs no trial.

    Raises:
        RuntimeError: for a kernel that is forced where Triton is not installed.
    """
    if x.dtype == torch.float64 or (x.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"):
        return False
    if isinstance(x, FakeTensor):  # holds no numbers
        return False
    if kernel_module(module) is None:
        if wanted:
            raise RuntimeError(f"{op}={name!r} is forced, but needs the package triton: pip install triton.")
        return False
    return wanted or _agrees(op, name, x.device, x.dtype, length)


def native_serves(x: Tensor, wanted: bool) -> bool:
    """Return whether the kernel in C, which a user has to ask for, may compute a call.

    Args:
        x: first tensor of the call.
        wanted: whether the kernel is forced.

    Raises:
        RuntimeError: for a kernel that is forced and not built.
    """
    if x.device.type != "cpu" or x.dtype == torch.float64:
        return False
    native = kernel_module("ski.native")
    if native is not None and native.ready():
        return True
    if wanted:
        raise RuntimeError(
            "'native' is forced, but its library is not built: call hf_seqmix.ops.ski.native.build(), or set the "
            "environment variable HF_SEQMIX_NATIVE=1."
        )
    return False


def _agrees(op: str, name: str, device: torch.device, dtype: torch.dtype, length: int) -> bool:
    """Try a kernel on a small problem, once for each device and dtype; Toeplitz products for each power of two, too.

    Their tiles depend on the length.
    """
    size = max(128, 1 << (length - 1).bit_length()) if op.startswith("toeplitz") else 0
    key = (op, name, device, dtype, size)
    if key in _tried:
        return _tried[key]
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False  # a trial allocates and compares, which a graph cannot hold
    with _trying:
        if key not in _tried:
            try:
                # In a thread of its own: hooks of checkpoints, modes and transforms of the caller do not reach there.
                with ThreadPoolExecutor(1) as thread:
                    fault = thread.submit(kernel_module("trials").fault, op, name, device, dtype, size).result()
            except Exception as error:  # whatever a compiler or driver raises: torch computes the same
                fault = f"{type(error).__name__}: {error}"
            if fault:
                lengths = f" at lengths to {size}" if size else ""
                warnings.warn(
                    f"the Triton kernel {name!r} of {op!r} is not used on {device} in {dtype}{lengths}, torch "
                    f"computes instead: {fault}",
                    stacklevel=2,
                )
            _tried[key] = not fault
    return _tried[key]
