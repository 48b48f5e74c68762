"""What can be timed of an operation at given sizes: its forms there, their calls, and the check of each."""

import importlib.util
from collections.abc import Callable, Sequence

import torch
from timing.protocol import Call, Candidate, Oracle, values
from torch import Tensor

from hf_seqmix.ops import forced
from hf_seqmix.ops.common.crossovers import IMPLEMENTATIONS, KERNELS, implementation

from .forms import OPS, Form, Sizes

__all__ = ["BOUNDS", "call_of", "candidate", "candidates_of", "chosen", "forms_of", "usable"]

BOUNDS = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-2}
"""Largest error of each dtype, relative to the norm of the exact result."""


def usable(choice: str, sizes: Sizes, interpreted: bool = False) -> list[str]:
    """Return the implementations of an entry of `IMPLEMENTATIONS` that compute on this device in this dtype.

    Args:
        choice: the entry.
        sizes: device and dtype count.
        interpreted: whether a CPU may interpret Triton, which says nothing about speed.
    """
    found = []
    no_triton = torch.device(sizes.device).type == "cpu" and not interpreted
    for name in IMPLEMENTATIONS[choice]:
        if no_triton and name in KERNELS:
            continue
        try:
            with forced(**{choice: name}):
                takes = chosen(choice, sizes) == name
        except RuntimeError:  # its package or its library is missing
            continue
        if takes:
            found.append(name)
    return found


def chosen(choice: str, sizes: Sizes) -> str:
    """Return the implementation that computes a call of these sizes."""
    x = torch.empty(1, 1, 1, dtype=getattr(torch, sizes.dtype), device=sizes.device)
    return implementation(choice, x, sizes.length)


def forms_of(op: str, sizes: Sizes) -> dict[str, Form]:
    """Return the forms of an operation that can be tried at these sizes, with every other implementation of ours.

    The implementation of ours that is chosen anyway is "ours" already and not given again.
    """
    entry = OPS[op]
    on_gpu = torch.device(sizes.device).type != "cpu"
    found = {}
    for name, form in entry.forms.items():
        package = form.needs is None or (on_gpu and importlib.util.find_spec(form.needs) is not None)
        if package and (form.longest is None or sizes.length <= form.longest):
            found[name] = form
    if entry.choice is not None:
        for name in usable(entry.choice, sizes):
            if name != chosen(entry.choice, sizes):
                found[name] = found["ours"]._replace(names=((entry.choice, name),))
    return found


def candidates_of(op: str, sizes: Sizes, names: Sequence[str] | None = None) -> dict[str, Candidate]:
    """Return the candidates of an operation at these sizes, or those of some names."""
    found = forms_of(op, sizes)
    return {name: candidate(name, found[name], sizes) for name in (found if names is None else names)}


def candidate(name: str, form: Form, sizes: Sizes) -> Candidate:
    """Return a form at some sizes as something to check and time.

    A package that may be missing, and an implementation of ours that the table does not choose, may be left out.
    """
    return Candidate(
        name,
        lambda: call_of(form, sizes),
        lambda: [oracle_of(form, sizes)],
        lambda: forced(**dict(form.names)),
        optional=bool(form.names) or form.needs is not None,
    )


def oracle_of(form: Form, sizes: Sizes) -> Oracle:
    """Return the check of a form: output and every gradient against float64."""
    call = call_of(form, sizes._replace(batch=1) if form.checked == "row" else sizes)

    def part(tensor: Tensor) -> Tensor:
        if form.checked != "head":
            return tensor
        heads = tensor.movedim(2, 1) if form.layout == "heads" else tensor
        ends = torch.cat([heads[:1, :1], heads[-1:, -1:]])
        return ends.movedim(1, 2) if form.layout == "heads" else ends

    def actual() -> tuple[Tensor, ...]:
        return tuple(map(part, values(call.function, call.inputs, call.upstream)))

    def expected() -> tuple[Tensor, ...]:
        exact = [part(tensor.detach()).double().requires_grad_() for tensor in call.inputs]
        return values(form.oracle, exact, part(call.upstream).double())

    return Oracle("its definition in float64", actual, expected, BOUNDS[sizes.dtype])


def call_of(form: Form, sizes: Sizes) -> Call:
    """Draw streams, kernels and upstream gradient, the same numbers in any layout, and return the call of a form."""
    device = torch.device(sizes.device)
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    def stream() -> Tensor:
        x = drawn(sizes.batch, sizes.channels, sizes.length)
        if form.layout == "transposed":
            x = x.mT.contiguous()
        elif form.layout == "channels last":
            x = x.mT.contiguous().mT
        elif form.layout == "heads":
            x = x.mT.contiguous().unflatten(-1, (sizes.heads, -1))
        elif form.layout == "heads first":
            x = x.unflatten(1, (sizes.heads, -1)).mT.contiguous()
        return x.to(getattr(torch, sizes.dtype))

    upstream, *streams = (stream() for _ in range(1 + form.streams))
    kernels = [drawn(*shape) / shape[-1] ** 0.5 for shape in form.kernels(sizes)]
    if form.layout == "transposed":
        kernels = [kernel.mT.contiguous() for kernel in kernels]
    return Call(_with_casts(form), [tensor.requires_grad_() for tensor in (*streams, *kernels)], upstream)


def _with_casts(form: Form) -> Callable[..., Tensor]:
    """Return the product with the casts of half precision that its users would write."""

    def product(*tensors: Tensor) -> Tensor:
        dtype = tensors[0].dtype
        if not form.takes_half and dtype not in (torch.float32, torch.float64):
            streams = [x.float() for x in tensors[: form.streams]]
            return form.product(*streams, *tensors[form.streams :]).to(dtype)
        return form.product(*tensors)

    return product
