"""Products along the sequence as modules without parameters, which the library `kernels` knows by their names.

`kernels.kernelize`, and so `from_pretrained(..., use_kernels=True)`, looks for the attribute `kernel_layer_name` of a
class and puts the forward of a kernel repository in place of the class's own. The decorator
`use_kernel_forward_from_hub` sets the same attribute. The decorator of transformers does nothing where its release
refuses the installed release of `kernels`, so the names stand here as they are.

These three products are what the package has Triton kernels for. Norms and gated linear units have no names: the
package has no kernels for them, and the layers on the Hub read weights that these modules do not have.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ..ops.polynomial.product import Product, polynomial_product
from ..ops.ski.interpolation import InducingGrid
from ..ops.ski.product import sparse_low_rank_matmul
from ..ops.toeplitz.product import toeplitz_matmul

__all__ = ["PRODUCTS", "PolynomialProduct", "SparseLowRankProduct", "ToeplitzProduct"]


class ToeplitzProduct(nn.Module):
    """`toeplitz_matmul` as a module."""

    kernel_layer_name = "SeqMixToeplitzProduct"

    def forward(self, x: Tensor, kernel: Tensor, causal: bool = True) -> Tensor:
        """Multiply each channel of (batch, channels, length) by its own Toeplitz matrix."""
        return toeplitz_matmul(x, kernel, causal)


class SparseLowRankProduct(nn.Module):
    """`sparse_low_rank_matmul` as a module."""

    kernel_layer_name = "SeqMixSparseLowRankProduct"

    def forward(self, x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
        """Apply a short convolution plus W A W^T to each channel of (batch, channels, length)."""
        return sparse_low_rank_matmul(x, taps, kernel, grid)


class PolynomialProduct(nn.Module):
    """`polynomial_product` as a module."""

    kernel_layer_name = "SeqMixPolynomialProduct"

    def forward(
        self,
        factors: Sequence[Tensor],
        degree_form: str = "cumsum",
        *,
        real: Tensor | None = None,
        causal: bool = True,
        sums: Sequence[Tensor] | None = None,
        recent: Sequence[tuple[Tensor, ...]] | None = None,
        held: Sequence[tuple[Tensor, ...]] | None = None,
        weights: Tensor | None = None,
    ) -> Product:
        """Multiply projections (batch, length, heads, width) into one of their number's degree."""
        return polynomial_product(
            factors, degree_form, real=real, causal=causal, sums=sums, recent=recent, held=held, weights=weights
        )


PRODUCTS = (ToeplitzProduct, SparseLowRankProduct, PolynomialProduct)
"""Every module of this file."""
