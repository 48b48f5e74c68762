"""What bounds a product: bytes it must move, the bandwidth of this machine, and a model of what plain transforms move.

Bytes count every stream once for each time that it must be read or written, and kernels, which are in float32. A floor
is bytes over the bandwidth of copying a tensor too large for any cache; what fits a cache may go below it.
"""

import statistics
from collections.abc import Mapping
from typing import Any

import torch

from hf_seqmix.training.timing import Clock

from .forms import Form, Sizes

__all__ = ["copy_bandwidth", "fewest_bytes", "floor_ms", "kept_bytes", "model_rows", "rfft_model"]

_COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}

# Bytes an element that torch.fft moves forward, and forward and backward, for input and output of two bytes: cast 6,
# pad 12, transform 16, multiply 16, copy before the inverse 16, inverse 16, scaling 16, cut and cast 6; and so on
# backward. Beyond 16384 samples the transform takes a second pass.
_RFFT_BYTES = (104, 335)
_RFFT_BYTES_LONG = (136, 430)
_ONE_PASS = 16384


def copy_bandwidth(device: torch.device, size: int | None = None, rounds: int = 9) -> float:
    """Measure bytes a second, read and written, of copying a large tensor: the median of some rounds after two.

    Args:
        device: where.
        size: bytes of the tensor; 256 MiB on CPU and 2 GiB on a GPU by default.
        rounds: copies that count.
    """
    size = size or _COPY_BYTES.get(device.type, 2**28)
    source = torch.ones(size // 4, device=device)
    target = torch.zeros_like(source)
    clock = Clock(device)
    seconds = []
    for turn in range(rounds + 2):
        begin = clock.mark()
        target.copy_(source)
        end = clock.mark()
        if turn >= 2:
            seconds.append(clock.between(begin, end))
    return 2 * source.nbytes / statistics.median(seconds)


def fewest_bytes(sizes: Sizes, form: Form) -> tuple[int, int]:
    """Return the bytes that must be moved forward, and forward and backward.

    Forward reads the streams and writes one; backward reads the upstream gradient and the streams and writes a
    gradient for each. Kernels are read, and in backward read again and their gradients written.
    """
    stream = sizes.batch * sizes.channels * sizes.length * getattr(torch, sizes.dtype).itemsize
    kernel = _kernel_bytes(sizes, form)
    forward = (form.streams + 1) * stream + kernel
    return forward, forward + (2 * form.streams + 1) * stream + 2 * kernel


def kept_bytes(sizes: Sizes, form: Form) -> int:
    """Return the bytes of a form's inputs, which a product must keep for its gradients, and need keep alone."""
    stream = sizes.batch * sizes.channels * sizes.length * getattr(torch, sizes.dtype).itemsize
    return form.streams * stream + _kernel_bytes(sizes, form)


def floor_ms(sizes: Sizes, form: Form, bandwidth: float) -> tuple[float, float]:
    """Return the least time forward, and forward and backward, that memory allows, in milliseconds."""
    forward, both = fewest_bytes(sizes, form)
    return 1e3 * forward / bandwidth, 1e3 * both / bandwidth


def rfft_model(sizes: Sizes, bandwidth: float) -> tuple[float, float]:
    """Return the milliseconds of plain transforms on a GPU in half precision, forward and with backward."""
    elements = sizes.batch * sizes.channels * sizes.length
    forward, both = _RFFT_BYTES if 2 * sizes.length <= _ONE_PASS else _RFFT_BYTES_LONG
    return 1e3 * forward * elements / bandwidth, 1e3 * both * elements / bandwidth


def model_rows(
    rows: list[dict[str, Any]], sizes: Mapping[int, Sizes], bandwidth: float | None
) -> list[dict[str, Any]]:
    """Return how far the model is off the measured `rfft` of the causal product, at each length.

    Args:
        rows: of the benchmark; empty, or without a GPU, the model's rows have nothing measured.
        sizes: length -> sizes.
        bandwidth: bytes a second; None where there is no GPU.
    """
    found = []
    measured = {row["length"]: row for row in rows if row["op"] == "toeplitz" and row.get("rfft_ms") is not None}
    for length, problem in sizes.items():
        long = 2 * length > _ONE_PASS
        for place, part in enumerate(("forward", "forward and backward")):
            entry: dict[str, Any] = {
                "part": part,
                "length": length,
                "bytes_an_element": (_RFFT_BYTES_LONG if long else _RFFT_BYTES)[place],
                "model_ms": None,
                "measured_ms": None,
                "off_percent": None,
            }
            half = getattr(torch, problem.dtype).itemsize == 2
            if bandwidth is not None and half and length in measured:
                entry["model_ms"] = rfft_model(problem, bandwidth)[place]
                entry["measured_ms"] = measured[length]["rfft_forward_ms" if place == 0 else "rfft_ms"]
                entry["off_percent"] = 100 * (entry["measured_ms"] / entry["model_ms"] - 1)
            entry["measured_text"] = _text(entry["measured_ms"], ".3f")
            entry["off_text"] = _text(entry["off_percent"], "+.0f")
            found.append(entry)
    return found


def _text(value: float | None, spec: str) -> str:
    return "unmeasured" if value is None else format(value, spec)


def _kernel_bytes(sizes: Sizes, form: Form) -> int:
    total = 0
    for shape in form.kernels(sizes):
        entries = 1
        for size in shape:
            entries *= size
        total += 4 * entries
    return total
