"""The registry of timed operations: what computes each, its oracle, and what it takes."""

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import op_products as products
import torch
from protocol import Call, Candidate, Oracle, values
from torch import Tensor

from hf_seqmix import toeplitz_matmul
from hf_seqmix.ops import forced
from hf_seqmix.ops.common.crossovers import IMPLEMENTATIONS, KERNELS, implementation
from hf_seqmix.training.command import device_name, positive

__all__ = ["BOUNDS", "OPS", "Form", "Op", "Sizes", "add_size_arguments", "call_of", "candidate", "candidates_of"]
__all__ += ["check_size_arguments", "chosen", "forms_of", "sizes_of", "usable"]

BOUNDS = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-2}
"""Largest error of each dtype, relative to the norm of the exact result."""


FEW_TAPS = 4
"""Of a short convolution that stands by itself."""


class Sizes(NamedTuple):
    """Sizes of a problem, its dtype and its device."""

    batch: int
    channels: int
    length: int
    head_width: int = 64
    points: int = 64
    taps: int = 33
    dtype: str = "float32"
    device: str = "cpu"

    @property
    def heads(self) -> int:
        """Heads that share the channels."""
        return self.channels // self.head_width


_KERNELS: dict[str, Callable[[Sizes], list[tuple[int, ...]]]] = {
    "none": lambda sizes: [],
    "causal taps": lambda sizes: [(sizes.channels, sizes.length)],
    "circular taps": lambda sizes: [(sizes.channels, 2 * sizes.length)],  # two-sided, in circular order
    "two-sided taps": lambda sizes: [(sizes.channels, 2 * sizes.length - 1)],
    "response": lambda sizes: [(2, sizes.channels, sizes.length + 1)],  # real and imaginary part
    "few taps": lambda sizes: [(sizes.channels, FEW_TAPS)],
    "ski": lambda sizes: [(sizes.channels, sizes.taps), (sizes.channels, 2 * min(sizes.points, sizes.length) - 1)],
    "relative bias": lambda sizes: [(sizes.heads, sizes.length)],
}
"""What the parameters of a product are -> their shapes."""


class Form(NamedTuple):
    """A product, its oracle, and how it wants its inputs."""

    product: Callable[..., Tensor]
    oracle: Callable[..., Tensor]
    """The exact result, from inputs in float64."""
    parameters: str = "none"
    """What its parameters, which are in float32, are: a key of `_KERNELS`."""
    streams: int = 1
    """Tensors of the size of the output that it takes."""
    layout: str = "channels first"
    """ "channels first"; "channels last" in memory only; "transposed", channels last in shape, too; "heads", (batch,
    length, heads, width); or "heads first", (batch, heads, length, width)."""
    takes_half: bool = True
    """Whether it takes half precision; plain transforms do not, so that their users cast."""
    checked: str = "all"
    """ "all"; "head", the first row's first head and the last row's last, where heads are computed apart; or "row", a
    problem of one row."""
    names: tuple[tuple[str, str], ...] = ()
    """Implementations that are forced, (operation, name)."""
    longest: int | None = None
    """Greatest length at which it is tried."""
    needs: str | None = None
    """Package, which runs on a GPU only, without which it is left out."""

    def kernels(self, sizes: Sizes) -> list[tuple[int, ...]]:
        """Return the shapes of the parameters."""
        return _KERNELS[self.parameters](sizes)


class Op(NamedTuple):
    """An operation: its title, its forms, ours first, and its entry in `crossovers.IMPLEMENTATIONS`, if any."""

    title: str
    forms: dict[str, Form]
    choice: str | None = None


def _attention(causal: bool) -> Form:
    product = products.causal_attention if causal else products.full_attention
    reference = products.causal_reference if causal else products.full_reference
    return Form(product, reference, streams=3, layout="heads first", checked="head")


def _transforms(product: Any, parameters: str, streams: int = 1, layout: str = "channels first") -> Form:
    return Form(product, product, parameters, streams, layout, takes_half=False)


def _factors(product: Any, reference: Any, streams: int, needs: str | None = None) -> Form:
    return Form(product, reference, streams=streams, layout="heads", checked="head", needs=needs)


def _polynomial(degree: int) -> Form:
    return _factors(products.polynomial, products.polynomial_reference, degree)


OPS: dict[str, Op] = {
    "toeplitz": Op(
        "Causal Toeplitz product",
        {
            "ours": Form(toeplitz_matmul, products.rfft_product, "causal taps"),
            "rfft": _transforms(products.rfft_product, "causal taps"),
            "strided": _transforms(products.strided_product, "causal taps", layout="transposed"),
            "attention": _attention(True),
        },
        "toeplitz_causal",
    ),
    "toeplitz_bidirectional": Op(
        "Bidirectional Toeplitz product",
        {
            "ours": Form(products.two_sided_product, products.two_sided_reference, "two-sided taps"),
            "rfft": _transforms(products.rfft_product, "circular taps"),
            "strided": _transforms(products.strided_product, "circular taps", layout="transposed"),
            "attention": _attention(False),
        },
        "toeplitz_bidirectional",
    ),
    "response": Op(
        "Product with a frequency response",
        {
            "ours": Form(products.response_product, products.response_rfft, "response"),
            "rfft": _transforms(products.response_rfft, "response"),
            "strided": _transforms(products.strided_product, "circular taps", layout="transposed"),
            "attention": _attention(False),
        },
        "response",
    ),
    "ski": Op(
        "SKI product",
        {
            "ours": Form(products.ski_product, products.ski_reference, "ski", layout="channels last"),
            "rfft": _transforms(products.rfft_product, "circular taps"),
            "toeplitz": Form(products.two_sided_product, products.two_sided_reference, "two-sided taps"),
            "attention": _attention(False),
        },
        "ski",
    ),
    "short_conv": Op(
        "Causal short convolution",
        {
            "ours": Form(products.short_product, products.short_reference, "few taps", layout="channels last"),
            "conv1d": Form(products.depthwise_product, products.short_reference, "few taps"),
            "attention": _attention(True),
        },
        "short_conv",
    ),
    "linear_attention": Op(
        "Causal linear attention",
        {
            "ours": _factors(products.linear, products.linear_reference, 3),
            "fla": _factors(products.chunked_of_fla, products.linear_reference, 3, needs="fla"),
            "attention": _attention(True),
        },
        "causal_sum",
    ),
    "degree_2": Op("Product of degree 2", {"ours": _polynomial(2), "attention": _attention(True)}),
    "degree_3": Op(
        "Product of degree 3",
        {
            "ours": _polynomial(3),
            "fla": _factors(products.cubic_of_fla, products.polynomial_reference, 3, needs="fla"),
            "attention": _attention(True),
        },
        "causal_sum",
    ),
    "degree_4": Op("Product of degree 4", {"ours": _polynomial(4), "attention": _attention(True)}, "causal_sum"),
    "column": Op(
        "IPA's column operation",
        {
            "ours": Form(products.column, products.column_reference, "relative bias", 3, "heads first", checked="row"),
            "eager": _attention(True)._replace(product=products.eager_attention, longest=2048),
            "attention": _attention(True),
        },
    ),
}
"""Name -> operation."""


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


def add_size_arguments(
    parser: argparse.ArgumentParser, cpu_lengths: Sequence[int], gpu_lengths: Sequence[int]
) -> None:
    """Add the arguments that give sizes, device and rounds."""
    parser.set_defaults(default_lengths={"cpu": list(cpu_lengths), "gpu": list(gpu_lengths)})
    either = " and on a GPU ".join(f"{found[0]} to {found[-1]}" for found in (cpu_lengths, gpu_lengths))
    parser.add_argument("--lengths", type=int, nargs="+", help=f"by default {either}")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--elements", type=positive, help="instead: as many rows as make that many elements")
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--points", type=int, default=64, help="inducing points of ski, at most one a token")
    parser.add_argument("--taps", type=int, default=33, help="taps of the short convolution of ski, odd")
    parser.add_argument("--device", type=device_name, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument("--minutes", type=float, help="after which no further measurement begins")
    parser.add_argument("--fast", action="store_true", help="small and short, to see that it works")


def check_size_arguments(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Fill in the lengths, and end with a message where a size makes no sense."""
    defaults = arguments.default_lengths["cpu" if torch.device(arguments.device).type == "cpu" else "gpu"]
    del arguments.default_lengths
    if arguments.fast:
        arguments.lengths, arguments.rounds = arguments.lengths or [64, 200], 1
        arguments.batch, arguments.channels, arguments.head_width, arguments.points = 2, 16, 8, 16
    arguments.lengths = sorted(set(arguments.lengths or defaults))
    if min(*arguments.lengths, arguments.rounds, arguments.batch, arguments.channels, arguments.head_width) < 1:
        parser.error("lengths, rounds, batch, channels and head width must be at least 1.")
    if "ski" in arguments.ops and (arguments.lengths[0] < 2 or arguments.points < 2 or arguments.taps % 2 == 0):
        parser.error("ski needs lengths and points of at least 2, and an odd number of taps.")
    if arguments.channels % min(arguments.head_width, arguments.channels):
        parser.error(f"--head-width {arguments.head_width} must divide --channels {arguments.channels}.")


def sizes_of(arguments: argparse.Namespace, length: int, dtype: str) -> Sizes:
    """Return the sizes at one length."""
    batch = arguments.batch
    if arguments.elements:
        batch = max(1, arguments.elements // (arguments.channels * length))
    width = min(arguments.head_width, arguments.channels)
    return Sizes(batch, arguments.channels, length, width, arguments.points, arguments.taps, dtype, arguments.device)
