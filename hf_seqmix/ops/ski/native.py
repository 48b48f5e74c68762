"""The operator of SKI on a CPU in C, `ski.c`, for those who ask for it.

Nothing is compiled unasked: call `build()`, or set the environment variable HF_SEQMIX_NATIVE=1, which builds it when
it is first needed. Before a library is used, its results on small problems are compared with the definition.
"""

import ctypes
import os
import threading
import warnings
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..short_convolution.product import short_conv_dense
from .c_library import ADVICE, compiled
from .interpolation import InducingGrid
from .product import ski_matmul_dense

__all__ = ["build", "ready", "serves", "ski_backward", "ski_forward"]

_SOURCE = Path(__file__).with_name("ski.c")
_VERSION = 1  # of the functions' arguments, as in the source
# The product between inducing points takes points^2 multiplications a channel: transforms won at 2048, not at 1024.
_MOST_POINTS = 1536
_TYPES = (Tensor, nn.Parameter)  # others, as those without data, do not have what the kernel reads
_BOUND = 1e-5  # largest error of a trial, relative to the root mean square
_LANES = 16  # the widest vector of any processor: channels of a task at most
_TASKS = 64  # of a backward pass at least, if the batch allows it, whatever the number of threads

_lock = threading.RLock()
_library: ctypes.CDLL | None = None
_trusted: Path | None = None
_failed = False


class _Problem(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "channels", "length", "points", "taps", "width")),
        *((name, ctypes.c_void_p) for name in ("first", "weights", "kernel", "filter")),
        *((name, ctypes.c_int64) for name in ("mirrored", "groups", "threads")),
    ]


def build() -> Path:
    """Compile the kernel, if that was not done before, and use it from now on in this process.

    The compiler is CC, cc, gcc or clang, and the target this machine's processor. The library is kept in the user's
    cache folder: below XDG_CACHE_HOME, ~/.cache, ~/Library/Caches or LOCALAPPDATA.

    Returns:
        Path of the library.

    Raises:
        RuntimeError: if it cannot be compiled or loaded, or gives wrong results; says what failed and what to do.
    """
    global _library, _trusted
    with _lock:
        if _trusted is None:
            path = compiled(_SOURCE)
            try:
                _library = _load(path)
            except OSError:
                # Whole, but not to be loaded here, as what another system left behind: made anew, once.
                path.unlink(missing_ok=True)
                path = compiled(_SOURCE)
                try:
                    _library = _load(path)
                except OSError as error:
                    raise RuntimeError(f"the compiled library {path} cannot be loaded: {error}. {ADVICE}") from error
            error_found = max(_trial_error(degree) for degree in (1, 3))
            if not error_found < _BOUND:
                raise RuntimeError(
                    f"the compiled library {path} gives wrong results (relative error {error_found:.2g}, allowed "
                    f"{_BOUND}): try another compiler, named in CC, or do without, and torch computes."
                )
            _trusted = path
        return _trusted


def ready() -> bool:
    """Return whether the kernel may be used, building it first if HF_SEQMIX_NATIVE=1 asks for it.

    If that fails, one warning says why.
    """
    global _failed
    if _trusted is not None:
        return True
    if _failed or os.environ.get("HF_SEQMIX_NATIVE") != "1":
        return False
    with _lock:
        try:
            build()
        except RuntimeError as error:
            if not _failed:
                _failed = True
                warnings.warn(f"HF_SEQMIX_NATIVE=1 is set, but torch computes instead: {error}", stacklevel=2)
            return False
    return True


def serves(*tensors: Tensor, points: int) -> bool:
    """Return whether a call has a size and tensors that the functions below take once they are in float32."""
    return points <= _MOST_POINTS and all(
        type(t) in (Tensor, nn.Parameter)
        and t.device.type == "cpu"
        and t.is_floating_point()
        and t.dtype != torch.float64
        for t in tensors
    )


def ski_forward(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid, transposed: bool = False) -> Tensor:
    """Compute y = T x, or T^T x.

    Args:
        x: (batch, channels, length) float32 on the CPU, not empty; copied unless channels are contiguous in memory.
        taps: (channels, m) float32, m odd, of the convolution.
        kernel: (channels, 2 points - 1) float32 with points = grid.points(length).
        grid: where the inducing points lie.
        transposed: whether the transpose is meant.

    Returns:
        (batch, channels, length), channels contiguous.
    """
    x, taps, kernel = _rows(x), taps.contiguous(), kernel.contiguous()
    out = _like(x)
    weights = _weights(grid, x.shape[2])
    _call("forward", _problem(x, taps, kernel, weights, transposed, 1), *_tokens(x), *_tokens(out))
    return out


def ski_backward(
    g: Tensor, x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of sum g y.

    Args:
        g: (batch, channels, length) float32, of the output.
        x: as `ski_forward` took it, and so taps, kernel and grid.
        taps: see there.
        kernel: see there.
        grid: see there.

    Returns:
        dx: as `x`, channels contiguous; dtaps: as `taps`; dkernel: as `kernel`.
    """
    g, x, taps, kernel = _rows(g), _rows(x), taps.contiguous(), kernel.contiguous()
    dx = _like(x)
    # From the shape alone, so that the order of sums does not depend on the number of threads.
    groups = min(x.shape[0], -(-_TASKS // -(-x.shape[1] // _LANES)))
    dtaps, dkernel = taps.new_empty((groups, *taps.shape)), kernel.new_empty((groups, *kernel.shape))
    weights = _weights(grid, x.shape[2])
    problem = _problem(x, taps, kernel, weights, False, groups)
    _call("backward", problem, *_tokens(g), *_tokens(x), *_tokens(dx), dtaps.data_ptr(), dkernel.data_ptr())
    return dx, _sum(dtaps), _sum(dkernel)


def _rows(x: Tensor) -> Tensor:
    """Return x (batch, channels, length) with channels next to each other in memory."""
    if x.is_neg() or (x.stride(1) != 1 and x.shape[1] > 1):
        return x.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
    return x


def _like(x: Tensor) -> Tensor:
    batch, channels, length = x.shape
    return x.new_empty((batch, length, channels)).transpose(1, 2)


class _Weights(NamedTuple):
    """W, as the kernel takes it: the points that tokens of some length meet, and the entries."""

    points: int
    first: Tensor
    weights: Tensor


@lru_cache(maxsize=8)
def _weights(grid: InducingGrid, length: int) -> _Weights:
    """Return what all layers of a model share."""
    with torch.inference_mode(False):
        first, weights = grid.weights(length, torch.float32, torch.device("cpu"))
    return _Weights(grid.points(length), first.contiguous(), weights.contiguous())


def _problem(x: Tensor, taps: Tensor, kernel: Tensor, weights: _Weights, transposed: bool, groups: int) -> _Problem:
    """Describe a call; the tensors must live as long as the description."""
    return _Problem(
        *x.shape,
        weights.points,
        taps.shape[1],
        weights.weights.shape[1],
        weights.first.data_ptr(),
        weights.weights.data_ptr(),
        kernel.data_ptr(),
        taps.data_ptr(),
        transposed,
        groups,
        torch.get_num_threads(),
    )


def _tokens(x: Tensor) -> tuple[int, int, int]:
    """Return where the first number stands, and the strides of sequences and tokens."""
    batch, _, token = x.stride()
    return x.data_ptr(), batch, token


def _sum(parts: Tensor) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


def _call(name: str, problem: _Problem, *arguments: int) -> None:
    if getattr(_library, f"hf_seqmix_ski_{name}")(ctypes.byref(problem), *arguments) != 0:
        raise MemoryError("the native kernel found no memory for its buffers.")


def _load(path: Path) -> ctypes.CDLL:
    """Load a library.

    Raises:
        OSError: if it is no library, or one of another version.
    """
    library = ctypes.CDLL(str(path))
    try:
        found = library.hf_seqmix_ski_version()
        tokens = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        library.hf_seqmix_ski_forward.argtypes = [ctypes.POINTER(_Problem), *tokens * 2]
        library.hf_seqmix_ski_backward.argtypes = [
            ctypes.POINTER(_Problem),
            *tokens * 3,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
    except AttributeError as error:
        raise OSError(f"a function is missing: {error}") from error
    if found != _VERSION:
        raise OSError(f"it has version {found}, and {_VERSION} is needed")
    return library


def _trial_error(degree: int) -> float:
    """Return the largest error of results and gradients on a small problem, relative to the root mean square."""
    grid = InducingGrid(37, 6, degree)
    generator = torch.Generator("cpu").manual_seed(0)
    shapes = [(2, _LANES + 3, 31), (_LANES + 3, 5), (_LANES + 3, 2 * grid.points(31) - 1), (2, _LANES + 3, 31)]
    with torch.inference_mode(False), torch.enable_grad():
        x, taps, kernel, g = (
            torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu") for shape in shapes
        )
        exact = [t.double().requires_grad_() for t in (x, taps, kernel)]
        y = short_conv_dense(exact[0], exact[1]) + ski_matmul_dense(exact[0], exact[2], grid)
        expected = [y.detach(), *torch.autograd.grad(y, exact, g.double())]
        dx, dtaps, dkernel = ski_backward(g, x, taps, kernel, grid)
        found = [ski_forward(x, taps, kernel, grid), dx, dtaps, dkernel]
    errors = [(a.double() - e).abs().max() / e.square().mean().sqrt() for a, e in zip(found, expected, strict=True)]
    return max(float(error) for error in errors)
