"""The registry of timed operations: what computes each, its oracle, and what it takes."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from hf_seqmix import toeplitz_matmul

from . import products

__all__ = ["OPS", "Form", "Op", "Sizes"]

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
