"""Conditions under which a test cannot run, and which of many cases run by default."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers

needs_no_torchvision = pytest.mark.skipif(
    getattr(transformers.AutoImageProcessor, "is_dummy", False),
    reason="this release of the library wants torchvision for any image processor",
)

try:
    from triton import __version__ as _triton
except ImportError:
    _triton = "0.0"

# Earlier interpreters fail with NumPy 2.4.
runs_kernels = torch.cuda.is_available() or tuple(map(int, _triton.split(".")[:2])) >= (3, 9)
needs_kernels = pytest.mark.skipif(
    not runs_kernels, reason=f"no GPU, and Triton {_triton} interprets nothing with a new NumPy: 3.9 is needed"
)
needs_tracer_of_lengths = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11),
    reason=f"torch {torch.__version__} proves less about lengths; ONNX export needs torch 2.11",
)


def one_in(number: int, *axes: Sequence[Any]) -> list[Any]:
    """Return all combinations of the axes' values, for `parametrize`; on a CPU all but one in `number` are slow ones.

    The default suite has those whose places sum to a multiple of `number`. So it has each pair of values of two axes
    where a third has as many values as `number`. On a GPU, where kernels are not interpreted, it has all.

    Args:
        number: 2 or more.
        axes: values of each parameter, in the order of their names.
    """
    cases = []
    for places in itertools.product(*(range(len(axis)) for axis in axes)):
        by_default = sum(places) % number == 0 or torch.cuda.is_available()
        values = [axis[place] for place, axis in zip(places, axes, strict=True)]
        cases.append(pytest.param(*values, marks=[] if by_default else pytest.mark.slow))
    return cases
