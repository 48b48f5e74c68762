"""Picks the route by which an operation is computed, call by call.

An operation has up to three forms of one result:

* "eager": the fast one, with its own backward pass.
* "operator": the same behind a `torch.library` operator, opaque to `torch.compile` and `torch.export`, so that one graph
  serves all lengths.
* "real": ordinary operations on real numbers (convolutions, matrix products, gathers; no transform and no operator of ours),
  which other runtimes know. Slower, since it does not use the structure, and differentiable any number of times.

`torch.onnx.export` gets the last by itself. Exporters that trace first and convert afterwards do not say so while they trace:
they are run inside `real_valued()`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Route", "real_valued", "route"]

Route = Literal["eager", "operator", "real"]

_real_valued = False


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
