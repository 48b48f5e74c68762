"""Mixing an image along its rows, then along its columns, each with a one-dimensional operator."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor, nn

from ...ops.layout import TokenLayout

__all__ = ["AxialOperator", "axis_lengths", "operator_of_axes"]


class AxialOperator(nn.Module):
    """Apply T_H T_W: each row of the grid is mixed by T_W, then each column by T_H, channel by channel.

    y[i, j] = sum_(p, q) h(i - p) w(j - q) x[p, q]. On the flattened grid this is the Kronecker product of T_H and T_W.
    Source: Qin et al. 2023 (arXiv 2305.04749), the Long Range Arena model. Departures: the published code computes
    T_H T_W + T_W T_H, twice the same product, since the two commute; and the grid need not be square.

    A mask sets absent patches to zero before each of the two products. Where the operators do not depend on the
    length, an image that is padded below and to the right gives what the image alone gives.

    Args:
        row_operator: mixes along a row, over the width of the grid: `operator(values, layout, past_key_values)` on
            (batch, length, channels), bidirectional.
        column_operator: the same along a column, over the height.
        grid_size: (height, width) of the grid where a call does not name another.
    """

    def __init__(self, row_operator: nn.Module, column_operator: nn.Module, grid_size: tuple[int, int]) -> None:
        super().__init__()
        self.row_operator = row_operator
        self.column_operator = column_operator
        self.grid_size = grid_size

    def forward(self, values: Tensor, layout: TokenLayout, past_key_values: Any = None) -> Tensor:
        """Mix the grid.

        Args:
            values: (batch, height x width, channels), row after row; pads of any value.
            layout: its `grid_size` is the (height, width) of these images, by default the one given at construction.
            past_key_values: must be None.

        Returns:
            (batch, height x width, channels); pad positions are undefined.

        Raises:
            ValueError: for a cache, for packed rows, and for a grid with another number of places than there are
            values.
        """
        batch, length, channels = values.shape
        height, width = self.grid_size if layout.grid_size is None else layout.grid_size
        if past_key_values is not None:
            raise ValueError("past_key_values is given, but mixing in two dimensions has no cache: pass None.")
        if layout.sequence_ids is not None:
            raise ValueError("packed sequences cannot be mixed in two dimensions: pass one image a row.")
        if height * width != length:
            raise ValueError(
                f"there are {length} positions, but a grid of {height} x {width} has {height * width}: pass "
                "grid_size=(height, width) of these images."
            )
        if values.numel() == 0:
            return values
        alone = TokenLayout()
        rows = layout.zero_pads(values).reshape(batch * height, width, channels)
        grid = self.row_operator(rows, alone).unflatten(0, (batch, height))  # (batch, height, width, channels)
        if layout.mask is not None:
            grid = grid.masked_fill(~layout.mask.view(batch, height, width, 1), 0)
        # The one copy between the two products: contiguous along the axis that is mixed next.
        columns = grid.permute(0, 2, 3, 1).reshape(batch * width, channels, height)
        mixed = self.column_operator(columns.transpose(1, 2), alone)  # (batch x width, height, channels)
        return mixed.unflatten(0, (batch, width)).transpose(1, 2).reshape(batch, length, channels)

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return f"grid_size={self.grid_size}"


def _check_grid(grid_size: Any) -> None:
    fits = isinstance(grid_size, Sequence) and len(grid_size) == 2
    if not fits or not all(isinstance(number, Integral) and int(number) >= 1 for number in grid_size):
        raise ValueError(f"grid_size is {grid_size}; it must be (height, width), each an integer of at least 1.")


def axis_lengths(grid_size: tuple[int, int] | None, max_length: int) -> int | tuple[int, int]:
    """Return `max_length` for sequences, or, with a grid, how long its rows and its columns are.

    Raises:
        ValueError: for a grid of anything but two numbers, each at least 1.
    """
    if grid_size is None:
        return max_length
    _check_grid(grid_size)
    return grid_size[1], grid_size[0]  # a row is as long as the grid is wide


def operator_of_axes(
    operator_for: Callable[..., nn.Module], grid_size: tuple[int, int] | None, is_causal: bool, *settings: Any
) -> nn.Module:
    """Build the operator of a sequence, or, with a grid, one along rows and one along columns.

    Args:
        operator_for: builds a one-dimensional operator from one value of each setting.
        grid_size: (height, width) of the grid, or None for sequences.
        is_causal: refused with a grid.
        *settings: each one value, or, with a grid, two: along rows and along columns.

    Raises:
        ValueError: for a causal grid, one of anything but two numbers, each at least 1, or two values without a grid.
    """
    if grid_size is None:
        for setting in settings:
            if isinstance(setting, Sequence):
                raise ValueError(f"{setting} gives one value for each axis of a grid: give grid_size, or one value.")
        return operator_for(*settings)
    if is_causal:
        raise ValueError(f"grid_size is {grid_size}, but is_causal is True: a grid has no past; set is_causal=False.")
    _check_grid(grid_size)
    pairs = [setting if isinstance(setting, Sequence) else (setting, setting) for setting in settings]
    along_rows, along_columns = zip(*pairs, strict=True)
    return AxialOperator(operator_for(*along_rows), operator_for(*along_columns), grid_size)
