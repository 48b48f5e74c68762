"""Picks the route by which an operation is computed, call by call.

An operation has up to three forms of one result:

* "eager": the fast one, with its own backward pass.
* "operator": the same behind a `torch.library` operator, opaque to `torch.compile` and `torch.export`, so that one graph
  serves all lengths.
* "real": ordinary operations on real numbers (convolutions, matrix products, gathers; no transform and no operator of ours),
  which other runtimes know. Slower, since it does not use the structure, and differentiable any number of times.

`torch.onnx.export` gets the last by itself. Exporters that trace first and convert afterwards do not say so while they trace:
they are run inside `real_valued()`.

Within the first two, an operation may have several implementations, of torch, of Triton and in C: `implementation` says which.
"""

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from .crossovers import IMPLEMENTATIONS, KERNELS, chosen_by_table

__all__ = ["Route", "forced", "implementation", "kernel_module", "real_valued", "route"]

Route = Literal["eager", "operator", "real"]

_real_valued = False
_forced: dict[str, str | None] = {}
_modules: dict[str, Any] = {}
_tried: dict[tuple[str, str, torch.device, torch.dtype, int], bool] = {}


def route(*tensors: Tensor) -> Route:
    """Return the route of a call.

    Args:
        *tensors: arguments whose sizes a tracer may have made symbolic.
    """
    if _real_valued:
        return "real"
    traced = torch.compiler.is_compiling() or any(isinstance(size, torch.SymInt) for x in tensors for size in x.shape)
    if not traced:
        return "eager"
    return "real" if torch.onnx.is_in_onnx_export() else "operator"


@contextmanager
def real_valued() -> Iterator[None]:
    """Compute by ordinary operations on real numbers while the context lasts, in all threads of the process.

    For exporters that trace a model before they convert it, as the library's `OnnxExporter`, and for programs of
    `torch.export` that are to run where this package is not installed:

        with real_valued():
            program = torch.export.export(model, ...)
    """
    global _real_valued
    before, _real_valued = _real_valued, True
    try:
        yield
    finally:
        _real_valued = before


@contextmanager
def forced(**names: str | None) -> Iterator[None]:
    """Compute operations by the named implementations while the context lasts, in all threads of the process.

        with forced(toeplitz_causal="tiles", ski="torch"):
            ...

    Where Triton is named, torch computes float64 all the same, and what is on a CPU unless Triton interprets
    (`TRITON_INTERPRET=1`).

    Args:
        **names: implementation of each operation, see `crossovers.IMPLEMENTATIONS`; None for the table's choice.

    Raises:
        ValueError: for an operation or an implementation that there is not.
    """
    global _forced
    for op, name in names.items():
        if op not in IMPLEMENTATIONS or name not in (None, *IMPLEMENTATIONS[op]):
            known = "; ".join(f"{op}: {', '.join(of_it)}" for op, of_it in IMPLEMENTATIONS.items())
            raise ValueError(f"{op}={name!r} names no implementation of an operation; there are {known}.")
    before, _forced = _forced, {**_forced, **names}
    try:
        yield
    finally:
        _forced = before


def implementation(op: str, x: Tensor, length: int) -> str:
    """Return the name of the implementation that computes a call.

    What a context forces, else what the table of `crossovers.py` says for the device, dtype and length. A Triton kernel is
    chosen only where Triton is installed and the kernel, tried once a process on a small problem, gave torch's result; if
    it did not, or did not compile, a warning says so and torch computes. Not to be called while tracing: operators call it
    when they run.

    Args:
        op: a key of `IMPLEMENTATIONS`.
        x: the call's first tensor.
        length: positions.
    """
    wanted = _forced.get(op)
    name = wanted or chosen_by_table(op, x.device.type, x.dtype, length)
    if name in KERNELS and not _triton_serves(op, name, x, length, wanted is not None):
        name = chosen_by_table(op, x.device.type, x.dtype, length, triton=False)
    if name == "native" and not _native_serves(x, wanted == "native"):
        name = IMPLEMENTATIONS[op][0]
    return name


def _triton_serves(op: str, name: str, x: Tensor, length: int, wanted: bool) -> bool:
    """Say whether a kernel in Triton may compute a call."""
    if x.dtype == torch.float64 or (x.device.type == "cpu" and not _interpreted()):
        return False
    if kernel_module(KERNELS[name]) is None:
        if wanted:
            raise RuntimeError(f"{op}={name!r} is forced, but needs the package triton: pip install triton.")
        return False
    return wanted or _agrees(op, name, x.device, x.dtype, length)


def kernel_module(name: str) -> Any:
    """Return the module of Triton kernels of that name, or None where Triton is not installed.

    By its absolute name: exported model code, which has no kernels beside it, uses those of an installed package.
    """
    if name not in _modules:
        try:
            _modules[name] = importlib.import_module(f"hf_seqmix.ops.{name}")
        except ImportError:
            _modules[name] = None
    return _modules[name]


def _native_serves(x: Tensor, wanted: bool) -> bool:
    """Say whether the kernel in C, which has to be asked for, is there for a tensor on the CPU."""
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


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _agrees(op: str, name: str, device: torch.device, dtype: torch.dtype, length: int) -> bool:
    """Try a kernel on a small problem, once for each device, dtype and power of two of the length."""
    size = max(128, 1 << (length - 1).bit_length())
    key = (op, name, device, dtype, size)
    if key not in _tried:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False  # a trial allocates and compares, which a graph cannot hold
        try:
            fault = kernel_module("trials").fault(op, name, device, dtype, size)
        except Exception as error:  # whatever a compiler or driver raises: torch computes the same
            fault = f"{type(error).__name__}: {error}"
        if fault:
            warnings.warn(
                f"the Triton kernel {name!r} of {op!r} is not used on {device} in {dtype} at lengths to {size}, torch computes "
                f"instead: {fault}",
                stacklevel=2,
            )
        _tried[key] = not fault
    return _tried[key]
