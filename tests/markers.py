"""Conditions under which a test cannot run."""

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
