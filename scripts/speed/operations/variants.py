"""What `tune.py` times: implementations of an operation, the same with other constants, and further forms."""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from timing.protocol import Candidate
from torch import Tensor

from hf_seqmix.ops import linear_attention, toeplitz_matmul_dense
from hf_seqmix.ops.common.dispatch import real_valued
from hf_seqmix.ops.polynomial.linear_attention import causal_sum_vectorized

from . import products
from .candidates import candidate, usable
from .forms import OPS, Form, Sizes

__all__ = ["TUNED", "Variant", "active", "candidate_of", "variants_of"]

TUNED = {
    "toeplitz_causal": "toeplitz",
    "toeplitz_bidirectional": "toeplitz_bidirectional",
    "response": "response",
    "ski": "ski",
    "causal_sum": "linear_attention",
    "short_conv": "short_conv",
}
"""Entry of `crossovers.IMPLEMENTATIONS` -> the operation of `forms.OPS` by which it is timed."""

_FFT, _SUM = "hf_seqmix.ops.common.fft", "hf_seqmix.ops.polynomial.linear_attention"


class Variant(NamedTuple):
    """Something to time."""

    form: Form
    base: str | None = None
    """The implementation of which this is the same with another constant; None for an implementation or another
    form.
    """
    constant: tuple[str, str, int] | None = None
    """Module, name and value of that constant."""
    real: bool = False
    """Whether it is computed by ordinary operations on real numbers, as exporters have it."""
    encoded: bool = True
    """Whether a table of crossovers can name it."""
    longest: int | None = None
    """Greatest length at which it is tried."""
    slow: bool = False
    """Whether it is timed in a rotation of its own: what it leaves in caches and in the allocator would slow the
    others.
    """


@contextmanager
def active(variant: Variant) -> Iterator[None]:
    """Have a variant's constant and form in force; implementations are forced by its form."""
    with ExitStack() as stack:
        if variant.real:
            stack.enter_context(real_valued())
        if variant.constant is not None:
            path, name, value = variant.constant
            module = importlib.import_module(path)
            before = getattr(module, name)
            stack.callback(setattr, module, name, before)
            setattr(module, name, value)
        yield


def candidate_of(name: str, variant: Variant, sizes: Sizes) -> Candidate:
    """Return a variant as something to check and time; one that is wrong is left out."""
    by_form = candidate(name, variant.form, sizes)

    @contextmanager
    def both() -> Iterator[None]:
        with active(variant), by_form.active():
            yield

    return replace(by_form, active=both, optional=True)


def _vectorized(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return causal_sum_vectorized(q.float(), k.float(), v.float(), None).to(q.dtype)


def _parallel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linear_attention(q, k, v, form="parallel").to(q.dtype)


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 2**20 else f"{count >> 10} KiB"


def _constants(choice: str, on_gpu: bool) -> list[tuple[str, str, str, list[int]]]:
    """Return the constants that are worth trying: implementation, module, name, values."""
    if choice.startswith("toeplitz"):
        if on_gpu:
            return [("fft", _FFT, "_DEVICE_BYTES", [2**26, 2**28, 2**30])]
        return [("fft", _FFT, "_CPU_BYTES_PER_THREAD", [2**18, 2**19, 2**20, 2**21, 2**22, 2**24])]
    if choice == "causal_sum":
        name, values = ("VECTOR_CHUNK", [32, 64, 128, 256]) if on_gpu else ("LOOP_CHUNK", [16, 32, 64, 128])
        return [("torch", _SUM, name, values)]
    return []


def variants_of(choice: str, sizes: Sizes) -> dict[str, Variant]:
    """Return what is timed at these sizes: name -> variant, implementations first."""
    ours = OPS[TUNED[choice]].forms["ours"]
    on_gpu = torch.device(sizes.device).type != "cpu"

    def by(name: str) -> Form:
        return ours._replace(names=((choice, name),))

    names = usable(choice, sizes)
    found = {name: Variant(by(name)) for name in names}
    for name, path, constant, values in _constants(choice, on_gpu):
        if name not in names:
            continue
        in_force = getattr(importlib.import_module(path), constant)
        for value in values:
            text = _size(value) if "BYTES" in constant else str(value)
            if value != in_force:
                found[f"{name}, {text}"] = Variant(by(name), name, (path, constant, value), encoded=False)
    if choice.startswith("toeplitz"):
        dense = partial(toeplitz_matmul_dense, causal=choice == "toeplitz_causal")
        found["conv1d"] = Variant(ours, real=True, encoded=False, longest=1024, slow=True)
        found["dense"] = Variant(ours._replace(product=_casting(dense)), encoded=False, longest=512, slow=True)
    elif choice == "causal_sum":
        found["parallel"] = Variant(ours._replace(product=_parallel), encoded=False, longest=2048, slow=True)
        if not on_gpu:
            for value in (32, 64, 128):
                name = f"vectorized, {value}"
                form = ours._replace(product=_vectorized, oracle=products.linear_reference)
                found[name] = Variant(form, None, (_SUM, "VECTOR_CHUNK", value), encoded=False)
    return {
        name: variant for name, variant in found.items() if variant.longest is None or sizes.length <= variant.longest
    }


def _casting(product: Any) -> Any:
    """Return the product in the dtype of x, whatever that of the kernel."""

    def call(x: Tensor, kernel: Tensor) -> Tensor:
        return product(x, kernel).to(x.dtype)

    return call
