"""Decides the route and the dtype of a call.

An operation has up to three forms of one result:

* with a backward pass of its own, as a function of autograd: the fast form.
* as an operator of `torch.library`, opaque to `torch.compile` and `torch.export`, so that one graph serves all
  lengths.
* by ordinary operations on real numbers (convolutions, matrix products, gathers), which other runtimes know. This form
  uses no transform and no operator of the package, is slower, and can be differentiated any number of times.

A public function calls `dispatch` once and hands the route and the dtype down. `torch.onnx.export` gets the last form
by itself, and so do the exporters of transformers to other runtimes, which put `real_route` in the place of
`traced_route` (`models/family.py`). Other tools that trace first and convert afterwards do not say so while they
trace: run them inside `real_valued()`.

Within the first two forms an operation may have several implementations, in torch, in Triton and in C. `crossovers.py`
chooses among them when the operation runs.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

__all__ = [
    "ORDINARY",
    "Route",
    "autocasts",
    "can_be_read",
    "cast",
    "check_real",
    "compute_dtype",
    "dispatch",
    "has_numbers",
    "real_route",
    "real_valued",
    "traced_route",
    "without_autocast",
]

Route = Literal["eager", "functorch", "forward_mode", "operator", "real"]
"""How a call is computed.

* "eager": by a function of autograd with its own backward pass.
* "functorch": the same while a transform of `torch.func` is active, which not every such function supports.
* "forward_mode": forward-mode differentiation is active, which neither such functions nor operators support.
* "operator": by an operator of `torch.library`, since a graph is made.
* "real": by ordinary operations on real numbers.
"""

ORDINARY: tuple[Route, ...] = ("real", "functorch", "forward_mode")
"""Routes of ordinary operations, where a function of autograd has no rules for transforms."""

_real_valued = False

_AUTOCAST = frozenset(filter(torch.amp.is_autocast_available, ("cpu", "cuda", "hpu", "mps", "mtia", "xla", "xpu")))
"""Types of devices that have autocast; asked before a graph is traced, where torch 2.9 cannot ask."""


def check_real(**tensors: Tensor) -> None:
    """Raise a ValueError, by the names that are given, unless all tensors hold real floating-point numbers."""
    if not all(tensor.is_floating_point() for tensor in tensors.values()):
        *first, last = tensors
        dtypes = ", ".join(str(tensor.dtype) for tensor in tensors.values())
        raise ValueError(f"{', '.join(first)} and {last} must be real floating-point tensors, got {dtypes}.")


def has_numbers(x: Tensor) -> bool:
    """Return whether numbers can be waited for and looked at.

    Not while a graph is traced or recorded, nor on "meta", nor of what a transform of `torch.func` maps over.
    """
    if torch.compiler.is_compiling() or type(x) not in (Tensor, Parameter) or x.is_meta:
        return False
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)


def can_be_read(x: Tensor) -> bool:
    """Return whether a check may look at numbers: not on an accelerator, which is waited for, nor in a trace."""
    if x.device.type != "cpu" or not has_numbers(x):
        return False
    return not torch._C._are_functorch_transforms_active() and _get_current_dispatch_mode() is None


def dispatch(*tensors: Tensor) -> tuple[Route, torch.dtype]:
    """Return the route of a call and the dtype in which it is computed.

    Args:
        *tensors: arguments whose dtypes count, and whose sizes a tracer may have made symbolic.

    Returns:
        The route, and float64 where one of the tensors has that dtype, else float32.
    """
    dtype = torch.float32
    for x in tensors:
        if x.dtype == torch.float64:
            dtype = torch.float64
    if _real_valued:
        return "real", dtype
    # First of all: a tracer follows nothing of the rest.
    if torch.compiler.is_compiling():
        return traced_route(), dtype
    for x in tensors:
        if torch.SymInt in map(type, x.shape):  # no loop, which costs as much as a small sum
            return traced_route(), dtype
    if forward_ad._current_level >= 0:
        return "forward_mode", dtype
    return "functorch" if torch._C._are_functorch_transforms_active() else "eager", dtype


def traced_route() -> Route:
    """Return the route of a call of which a graph is made."""
    if torch.onnx.is_in_onnx_export():
        return "real"
    return "forward_mode" if forward_ad._current_level >= 0 else "operator"


def real_route() -> Route:
    """Return the route whose graphs other runtimes compute."""
    return "real"


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which numbers of `dtype` are computed: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in a dtype; `to` alone costs as much as a small sum where it changes nothing."""
    return x if x.dtype == dtype else x.to(dtype)


def autocasts(device_type: str) -> bool:
    """Return whether autocast is on for devices of a type; never where there is none, such as for "meta"."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Return a context in which autocast is off; a graph always holds it, an eager call where autocast is on."""
    held = device_type in _AUTOCAST if torch.compiler.is_compiling() else autocasts(device_type)
    return torch.autocast(device_type, enabled=False) if held else nullcontext()


@contextmanager
def real_valued() -> Iterator[None]:
    """Compute by ordinary operations on real numbers while the context lasts, in all threads of the process.

    The context is for tools that trace a model before they convert it, other than the exporters of transformers. And
    it is for programs of `torch.export` that are to run where this package is not installed:

        with real_valued():
            program = torch.export.export(model, ...)
    """
    global _real_valued
    before, _real_valued = _real_valued, True
    try:
        yield
    finally:
        _real_valued = before
