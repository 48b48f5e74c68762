"""Mixing along the sequence by a short convolution and a structured kernel interpolation."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...modules.products import SparseLowRankProduct
from ...modules.sharding import own_values
from ...ops.layout import TokenLayout
from ...ops.rows import RowOperation
from ...ops.ski.interpolation import InducingGrid
from ...ops.ski.product import sparse_low_rank_matmul
from ..mixers import layout_of_call
from .kernel import InverseTimeWarpKernel

__all__ = ["SKIOperator"]


class SKIOperator(nn.Module):
    """Apply T x = conv(x) + W A W^T x to each channel, over the real tokens of each sequence; bidirectional.

    W holds the interpolation weights of the tokens, A the kernel between inducing points. Source: Moreno, Mei, Walters
    2023 (arXiv 2305.09028), algorithm 1. 2 r c + m c parameters. Departures:

    * The spacing h of the inducing points is fixed by the configured length; shorter inputs meet fewer points. The
      paper lays r points over the actual length, so that its kernel changes with the length of a batch.
    * The inducing points are counted from the first real token: the padding around a row does not matter.
    * W interpolates exactly; the weights of the published code do not (see `InducingGrid`).
    * The taps of the convolution begin as N(0, s^2) instead of N(0, 1), with s in proportion to 1 / (1 + distance) and
      squares that sum to 1 over the m taps. Outputs keep the size of inputs, and begin near their own token.

    Args:
        kernel: A[i, j] = kernel(h (i - j)).
        grid: the inducing points.
        conv_kernel_size: m, odd: taps of the convolution.

    Attributes:
        tap_falloff: a, where taps begin in proportion to (1 + distance)^-a.
    """

    tap_falloff: float = 1.0

    def __init__(self, kernel: InverseTimeWarpKernel, grid: InducingGrid, conv_kernel_size: int) -> None:
        super().__init__()
        if conv_kernel_size < 1 or conv_kernel_size % 2 == 0:
            raise ValueError(f"conv_kernel_size is {conv_kernel_size}; it must be odd, so that it has a center.")
        self.kernel = kernel
        self.product = SparseLowRankProduct()
        self.grid = grid
        self.spacing = grid.spacing
        channels = kernel.past_knots.shape[0]
        self.conv_weight = nn.Parameter(torch.empty(channels, conv_kernel_size))
        self.init_weights()

    def init_weights(self, config: Any = None) -> None:
        """Draw the taps of the convolution; `config` does not matter to them."""
        taps = self.conv_weight.shape[1]
        distances = (torch.arange(taps, device=self.conv_weight.device) - taps // 2).abs()
        scale = nn.functional.normalize((1.0 + distances) ** -self.tap_falloff, dim=0)
        init.copy_(self.conv_weight, torch.randn_like(self.conv_weight) * scale)

    def forward(
        self, values: Tensor, layout: TokenLayout | Tensor | None = None, past_key_values: Any = None
    ) -> Tensor:
        """Mix positions.

        Args:
            values: (batch, length, channels), pads of any value.
            layout: where the real tokens lie, or a mask as mixers take it; None where all are real.
            past_key_values: must be None; a bidirectional mixer has no cache.

        Returns:
            (batch, length, channels); pad positions are undefined.

        Raises:
            TypeError: for a layout of another type.
            ValueError: for a cache.
        """
        if past_key_values is not None:
            raise ValueError("past_key_values is given, but a bidirectional mixer has no cache: pass None.")
        layout = layout_of_call(layout, values, None, 0)
        if values.shape[1] == 0:
            return values
        longest = layout.longest(values.shape[1])
        most = self.grid.points(longest)
        lags = torch.arange(1 - most, most, device=values.device, dtype=self.kernel.dtype) * self.spacing
        taps = self.kernel(lags)  # (channels, 2 most - 1)
        given = [own_values(self.conv_weight), taps], list(self.grid), self.product
        return layout.mix(_ON_ROWS, values, *given, align=True)

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return f"conv_kernel_size={self.conv_weight.shape[1]}, {self.grid}"


def _multiply(
    rows: Tensor,
    tensors: Sequence[Tensor],
    settings: Sequence[int],
    product: Callable[..., Tensor] = sparse_low_rank_matmul,
) -> Tensor:
    """Mix rows: tensors are the taps of the convolution and of the kernel, settings the arguments of the grid."""
    conv_weight, taps = tensors
    grid = InducingGrid(*settings)
    points, most = grid.points(rows.shape[1]), (taps.shape[1] + 1) // 2
    if points != most:
        taps = taps[:, most - points : most + points - 1]
    x = rows.transpose(1, 2)  # (rows, channels, length), channels contiguous as the products want them
    return product(x, conv_weight, taps, grid).transpose(1, 2)


_ON_ROWS = RowOperation("hf_seqmix::packed_ski_v1", _multiply)
