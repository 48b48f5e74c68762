"""The registry of timed operations: what computes each, what it is checked against, and what it takes."""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import op_products as products
import torch
from torch import Tensor

from hf_seqmix import toeplitz_matmul
from hf_seqmix.ops import forced
from hf_seqmix.ops.common.crossovers import IMPLEMENTATIONS, KERNELS, implementation
from hf_seqmix.ops.toeplitz.response import response_matmul

__all__ = ["OPS", "Candidate", "Op", "Sizes", "candidates_of", "chosen", "make_inputs", "supported", "usable"]


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


Shapes = Callable[[Sizes], list[tuple[int, ...]]]


def no_kernels(sizes: Sizes) -> list[tuple[int, ...]]:
    """For products of streams alone."""
    return []


def causal_taps(sizes: Sizes) -> list[tuple[int, ...]]:
    """A causal kernel."""
    return [(sizes.channels, sizes.length)]


def circular_taps(sizes: Sizes) -> list[tuple[int, ...]]:
    """A bidirectional kernel in circular order."""
    return [(sizes.channels, 2 * sizes.length)]


def two_sided_taps(sizes: Sizes) -> list[tuple[int, ...]]:
    """A bidirectional kernel."""
    return [(sizes.channels, 2 * sizes.length - 1)]


def response_bins(sizes: Sizes) -> list[tuple[int, ...]]:
    """A frequency response, real and imaginary part."""
    return [(2, sizes.channels, sizes.length + 1)]


def ski_taps(sizes: Sizes) -> list[tuple[int, ...]]:
    """Taps of the short convolution, and the kernel between at most `length` inducing points."""
    return [(sizes.channels, sizes.taps), (sizes.channels, 2 * min(sizes.points, sizes.length) - 1)]


def relative_bias(sizes: Sizes) -> list[tuple[int, ...]]:
    """A bias of each head and offset."""
    return [(sizes.heads, sizes.length)]


class Candidate(NamedTuple):
    """A product, what it is checked against, and how it wants its inputs."""

    product: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    kernels: Shapes = no_kernels
    """Shapes of its parameters, which are in float32."""
    streams: int = 1
    """Tensors of the size of the output that it takes."""
    layout: str = "channels first"
    """ "channels first"; "channels last" in memory only; "transposed", channels last in shape, too; "heads", (batch, length,
    heads, width); or "heads first", (batch, heads, length, width)."""
    takes_half: bool = True
    """Whether it takes half precision; plain transforms do not, so that their users cast."""
    checked: str = "all"
    """ "all"; "head", the first row's first head, where heads are computed apart; or "row", a problem of one row."""
    names: tuple[tuple[str, str], ...] = ()
    """Implementations that are forced, (operation, name)."""
    longest: int | None = None
    """Greatest length at which it is tried."""
    needs: str | None = None
    """Package, which runs on a GPU only, without which it is left out."""


class Op(NamedTuple):
    """An operation: its title, its candidates, ours first, and its entry in `crossovers.IMPLEMENTATIONS`, if any."""

    title: str
    candidates: dict[str, Candidate]
    choice: str | None = None


def _attention(causal: bool) -> Candidate:
    product = products.causal_attention if causal else products.full_attention
    reference = products.causal_reference if causal else products.full_reference
    return Candidate(product, reference, streams=3, layout="heads first", checked="head")


def _transforms(product: Any, kernels: Shapes, streams: int = 1, layout: str = "channels first") -> Candidate:
    return Candidate(product, product, kernels, streams, layout, takes_half=False)


def _factors(product: Any, reference: Any, streams: int, needs: str | None = None) -> Candidate:
    return Candidate(product, reference, streams=streams, layout="heads", checked="head", needs=needs)


def _polynomial(degree: int) -> Candidate:
    return _factors(products.polynomial, products.polynomial_reference, degree)


OPS: dict[str, Op] = {
    "toeplitz": Op(
        "Causal Toeplitz product",
        {
            "ours": Candidate(toeplitz_matmul, products.rfft_product, causal_taps),
            "rfft": _transforms(products.rfft_product, causal_taps),
            "strided": _transforms(products.strided_product, causal_taps, layout="transposed"),
            "attention": _attention(True),
        },
        "toeplitz_causal",
    ),
    "toeplitz_bidirectional": Op(
        "Bidirectional Toeplitz product",
        {
            "ours": Candidate(products.two_sided_product, products.two_sided_reference, two_sided_taps),
            "rfft": _transforms(products.rfft_product, circular_taps),
            "strided": _transforms(products.strided_product, circular_taps, layout="transposed"),
            "attention": _attention(False),
        },
        "toeplitz_bidirectional",
    ),
    "gated": Op(
        "Gated causal Toeplitz product",
        {
            "ours": Candidate(products.gated_product, products.gated_rfft, causal_taps, streams=2),
            "rfft": _transforms(products.gated_rfft, causal_taps, 2),
            "strided": _transforms(products.gated_strided, causal_taps, 2, "transposed"),
            "attention": _attention(True),
        },
        "toeplitz_causal",
    ),
    "response": Op(
        "Product with a frequency response",
        {
            "ours": Candidate(response_matmul, products.response_rfft, response_bins),
            "rfft": _transforms(products.response_rfft, response_bins),
            "taps": Candidate(products.response_taps, products.response_rfft, response_bins),
            "strided": _transforms(products.strided_product, circular_taps, layout="transposed"),
            "attention": _attention(False),
        },
    ),
    "ski": Op(
        "SKI product",
        {
            "ours": Candidate(products.ski_product, products.ski_reference, ski_taps, layout="channels last"),
            "rfft": _transforms(products.rfft_product, circular_taps),
            "toeplitz": Candidate(products.two_sided_product, products.two_sided_reference, two_sided_taps),
            "attention": _attention(False),
        },
        "ski",
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
            "ours": Candidate(
                products.column, products.column_reference, relative_bias, 3, "heads first", checked="row"
            ),
            "eager": _attention(True)._replace(product=products.eager_attention, longest=2048),
            "attention": _attention(True),
        },
    ),
}
"""Name -> operation."""


def usable(choice: str, sizes: Sizes) -> list[str]:
    """Return the implementations of an entry of `IMPLEMENTATIONS` that compute on this device in this dtype."""
    found = []
    on_cpu = torch.device(sizes.device).type == "cpu"
    for name in IMPLEMENTATIONS[choice]:
        if on_cpu and name in KERNELS:  # in Triton, which a CPU can only interpret
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


def candidates_of(op: str, sizes: Sizes, implementations: bool = True) -> dict[str, Candidate]:
    """Return the candidates of an operation that can be tried at these sizes, those of ours apart among them.

    An implementation of ours that is chosen anyway is "ours" already and not given again.
    """
    entry = OPS[op]
    on_gpu = torch.device(sizes.device).type != "cpu"
    found = {}
    for name, candidate in entry.candidates.items():
        package = candidate.needs is None or (on_gpu and importlib.util.find_spec(candidate.needs) is not None)
        if package and (candidate.longest is None or sizes.length <= candidate.longest):
            found[name] = candidate
    if implementations and entry.choice is not None:
        for name in usable(entry.choice, sizes):
            if name != chosen(entry.choice, sizes):
                found[name] = found["ours"]._replace(names=((entry.choice, name),))
    return found


def make_inputs(sizes: Sizes, candidate: Candidate) -> list[Tensor]:
    """Draw the streams, the kernels and the upstream gradient, the same numbers in any layout."""
    device = torch.device(sizes.device)
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    def stream() -> Tensor:
        x = drawn(sizes.batch, sizes.channels, sizes.length)
        if candidate.layout == "transposed":
            x = x.mT.contiguous()
        elif candidate.layout == "channels last":
            x = x.mT.contiguous().mT
        elif candidate.layout == "heads":
            x = x.mT.contiguous().unflatten(-1, (sizes.heads, -1))
        elif candidate.layout == "heads first":
            x = x.unflatten(1, (sizes.heads, -1)).mT.contiguous()
        return x.to(getattr(torch, sizes.dtype))

    upstream, *streams = (stream() for _ in range(1 + candidate.streams))
    kernels = [drawn(*shape) / shape[-1] ** 0.5 for shape in candidate.kernels(sizes)]
    if candidate.layout == "transposed":
        kernels = [kernel.mT.contiguous() for kernel in kernels]
    return [*(tensor.requires_grad_() for tensor in (*streams, *kernels)), upstream]


def supported(candidate: Candidate) -> Callable[..., Tensor]:
    """The product, with the casts of half precision that its users would write, by the implementations it names."""

    def product(*tensors: Tensor) -> Tensor:
        dtype = tensors[0].dtype
        if not candidate.takes_half and dtype not in (torch.float32, torch.float64):
            streams = [x.float() for x in tensors[: candidate.streams]]
            return candidate.product(*streams, *tensors[candidate.streams :]).to(dtype)
        return candidate.product(*tensors)

    return product
