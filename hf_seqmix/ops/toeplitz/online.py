"""Causal Toeplitz products whose inputs come one at a time: y[t] = sum_j k[t - j] x[j], exact, O(log^2 n) a token.

Positions are in blocks. Pairs of inputs and outputs of the same block or of neighboring ones are multiplied directly,
when the input comes. All other pairs are the far part (`online_far.py`), which the kernel makes: squares that are
multiplied by transforms (`online_tiles.py`), or another form of the same sums.

A state is a function of the inputs so far, up to rounding. A cache layer has to keep `inputs()` alone: `load` makes
everything else of these.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .online_far import FarPart
from .online_history import BlockHistory, allocate
from .online_kernel import OnlineKernel
from .online_tiles import PIECE
from .product import toeplitz_matmul

__all__ = ["OnlineConvolution"]


class OnlineConvolution:
    """A causal convolution of each channel, a step at a time; without derivatives, not for `torch.compile`.

    All rows share one clock. A row of fewer tokens than others has pads before its tokens, whose inputs are zeros: a
    convolution does not depend on where the row begins.

    Args:
        kernel: that is convolved with.
        batch: number of rows.
        dtype: that of inputs, which are kept, and of outputs; sums are in float32 (float64 for float64).
        piece: samples in a piece of the far part, unless one channel of all rows has more. Smaller pieces spread the
            work more evenly over the steps, and larger ones take less time in all.

    Attributes:
        kernel: the kernel.
        position: number of positions so far, pads included.

    Raises:
        ValueError: for a kernel in the wrong dtype.
    """

    def __init__(
        self, kernel: OnlineKernel, batch: int, dtype: torch.dtype = torch.float32, piece: int = PIECE
    ) -> None:
        if torch.promote_types(dtype, torch.float32) != kernel.dtype:
            raise ValueError(f"inputs are {dtype} but the kernel is {kernel.dtype}: make the kernel for that dtype.")
        self.kernel, self.dtype, self._piece = kernel, dtype, piece
        self._clear(batch)

    def _clear(self, batch: int) -> None:
        block, channels = self.kernel.block, self.kernel.channels
        shape = (batch, channels, block)
        self._history = BlockHistory(shape, self.kernel.near[0].device, self.dtype, self.kernel.blocks_held)
        self._far = self.kernel.far_part(self._history, self._piece)
        self._recent = allocate((block, batch, channels), self.kernel.near[0], self.dtype)
        self._sums = allocate((2 * block, batch, channels), self.kernel.near[0]).zero_()
        self._block = self._place = 0  # the next input is at this place of this block
        self._pieces: list[Any] = []  # work of the far part during this block
        self._done = 0  # how many of these pieces are computed
        self._mark: tuple[int, Tensor] | None = None  # a position of this block, and the sums there
        self._view()

    def _view(self) -> None:
        # Views take as long as the arithmetic of a step: made once. A token is (batch, 1, channels).
        self._recent_rows = list(self._recent.unsqueeze(2))
        self._open_sums = [self._sums.unsqueeze(2)[place:] for place in range(self.kernel.block)]
        self._sum_rows = [sums[0] for sums in self._open_sums]

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self._recent.shape[1]

    @property
    def position(self) -> int:
        """Number of positions so far."""
        return self._block * self.kernel.block + self._place

    @property
    def memory(self) -> int:
        """Bytes of the state, without those of the kernel, which states share."""
        tensors = (self._recent, self._sums, *self._history.segments)
        return self._far.memory + sum(tensor.nbytes for tensor in tensors)

    def step(self, x: Tensor) -> Tensor:
        """Add inputs and return the outputs at their positions.

        Args:
            x: (batch, tokens, channels), zeros at pads. Many tokens at a time go the way of `prefill`.

        Returns:
            (batch, tokens, channels), in the dtype of the state.

        Raises:
            ValueError: for a wrong shape or dtype, and for inputs that want derivatives.
        """
        if torch.is_grad_enabled():
            if x.requires_grad:
                raise ValueError("x wants derivatives, which a step has not: detach it, or use toeplitz_matmul.")
            with torch.no_grad():
                return self.step(x)
        batch, tokens, channels = x.shape
        if (batch, channels) != self._sums.shape[1:] or x.dtype != self.dtype:
            raise ValueError(
                f"x is {x.dtype} of shape {tuple(x.shape)}, but ({self._sums.shape[1]}, tokens, "
                f"{self.kernel.channels}) of {self.dtype} is needed."
            )
        if tokens == 0:
            return x.clone()
        if tokens == 1:
            return self._step(x)
        if tokens > 2 * self.kernel.block:
            return self.prefill(x)
        # Those who guess several tokens take some back.
        if self._place == self.kernel.block:
            self._next_block()
        self._mark = (self.position, self._sums.clone())
        return torch.cat([self._step(column) for column in x.split(1, dim=1)], dim=1)

    def _step(self, x: Tensor) -> Tensor:
        block, place = self.kernel.block, self._place
        if place == block:
            self._next_block()
            place = 0
        self._recent_rows[place].copy_(x)
        # Conversions that convert nothing take as long as a sum.
        x = x if self.dtype == self.kernel.dtype else x.to(self.kernel.dtype)
        self._open_sums[place].addcmul_(x, self.kernel.near[place])
        y = self._sum_rows[place]
        y = y.clone() if self.dtype == self.kernel.dtype else y.to(self.dtype)
        self._place = place + 1
        if self._done < len(self._pieces):
            self._work()
        return y

    def _work(self) -> None:
        """Compute the pieces whose turn it is, an even share of them at each place of a block."""
        due = len(self._pieces) * self._place // self.kernel.block
        for piece in self._pieces[self._done : due]:
            self._far.compute(piece)
        self._done = max(due, self._done)

    def prefill(self, x: Tensor) -> Tensor:
        """Add many inputs and return the outputs at their positions, O(n log n).

        Args:
            x: (batch, tokens, channels), zeros at pads; may follow earlier inputs.

        Returns:
            (batch, tokens, channels), in the dtype of the state.
        """
        with torch.no_grad():
            first = self._history.oldest
            inputs = torch.cat([self.inputs(), x], dim=1) if self.position else x
            length = inputs.shape[1]
            y = toeplitz_matmul(inputs.transpose(1, 2), self.kernel.first(length)).transpose(1, 2)
            self._load(inputs, first)
            return y[:, length - x.shape[1] :]

    def inputs(self) -> Tensor:
        """Return the inputs that later outputs depend on, (batch, held, channels): all, or some more than the taps."""
        blocks = [self._history.at(index) for index in range(self._history.oldest, self._block)]
        recent = self._recent[: self._place].transpose(0, 1)
        return torch.cat([*(part.transpose(1, 2) for part in blocks), recent], dim=1)

    def load(self, inputs: Tensor) -> None:
        """Make the state after these inputs, (batch, tokens, channels), zeros at pads: for rows that were joined."""
        with torch.no_grad():
            self._load(inputs, 0)

    def _load(self, inputs: Tensor, first: int, like: FarPart | None = None) -> None:
        """Make the state after inputs that begin with block `first`, with a far part like another."""
        batch, tokens, _ = inputs.shape
        block = self.kernel.block
        self._clear(batch)
        if like is not None:
            self._far = like.alike(self._history)
        blocks = max(0, tokens - 1) // block
        self._block, self._place = first + blocks, tokens - blocks * block
        self._recent[: self._place] = inputs[:, blocks * block :].transpose(0, 1)
        complete = inputs[:, : blocks * block]
        self._history.fill(first, complete)
        self._far.load(first, complete)
        self._plan()
        self._refresh()

    def crop(self, length: int) -> None:
        """Forget the inputs from position `length` on.

        What saw none of these inputs stays. The time depends on the number of inputs that are forgotten, but the far
        part of a large span that began with them is computed again.

        Raises:
            ValueError: if inputs before that position, which are needed, are no longer held.
        """
        block = max(0, length - 1) // self.kernel.block
        if not 0 <= length <= self.position or max(0, self._far.oldest(block)) < self._history.oldest:
            raise ValueError(
                f"{self.position} positions cannot be cropped to {length}: what is older than "
                f"{self._history.oldest * self.kernel.block} is forgotten."
            )
        before, self._place = self._block, length - block * self.kernel.block
        with torch.no_grad():
            if block != before:
                self._recent.copy_(self._history.at(block).permute(2, 0, 1))
                self._block = block
                self._far.crop(block, before)
                self._plan()
            if self._mark is None or not block * self.kernel.block <= self._mark[0] <= length or block != before:
                self._mark = None
                self._refresh()
                return
            first, sums = self._mark
            self._sums.copy_(sums)
            for place in range(first - block * self.kernel.block, self._place):
                inputs = self._recent_rows[place].to(self.kernel.dtype)
                self._open_sums[place].addcmul_(inputs, self.kernel.near[place])

    def reorder(self, rows: Tensor) -> None:
        """Keep rows of the batch, (kept,) long, in that order; a row may be kept more than once."""
        self._mark = None
        with torch.no_grad(), torch.inference_mode(False):
            rows = rows.clone()
            self._recent, self._sums = (tensor.index_select(1, rows) for tensor in (self._recent, self._sums))
            self._history.reorder(rows)
            self._far.reorder(rows)
        self._view()

    def join(self, inputs: Tensor) -> None:
        """Add rows whose last inputs are these, (rows, tokens, channels); zeros stand before them.

        The time depends on the number of rows that are added, but what is held is copied.

        Raises:
            ValueError: for more tokens than there are positions.
        """
        tokens = inputs.shape[1]
        if tokens > self.position:
            raise ValueError(f"rows of {tokens} tokens cannot join {self.position} positions: load all rows together.")
        with torch.no_grad(), torch.inference_mode(False):
            # Only what is held of other rows counts.
            first = self._history.oldest
            inputs = F.pad(inputs.clone(), (0, 0, self.position - tokens, 0))[:, first * self.kernel.block :]
            other = OnlineConvolution(self.kernel, len(inputs), self.dtype, self._piece)
            other._load(inputs.to(self.dtype), first, self._far)
            self._mark = None
            self._recent = torch.cat([self._recent, other._recent], dim=1)
            self._sums = torch.cat([self._sums, other._sums], dim=1)
            self._history.join(other._history)
            self._far.join(other._far)
        self._view()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "OnlineConvolution":
        """Move the state, without the kernel, to a device, and return the state: for a cache that is kept elsewhere.

        Steps need the state on the device of the kernel.

        Args:
            device: to move to.
            non_blocking: do not wait for copies; as in `torch.Tensor.to`.
        """
        device, self._mark = torch.device(device), None
        with torch.no_grad(), torch.inference_mode(False):
            self._recent = self._recent.to(device, non_blocking=non_blocking)
            self._sums = self._sums.to(device, non_blocking=non_blocking)
            self._history.to(device, non_blocking)
            self._far.to(device, non_blocking)
        self._view()
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "OnlineConvolution":
        """Return a state of its own that shares the kernel."""
        memo[id(self.kernel)] = self.kernel
        copied = copy.copy(self)
        memo[id(self)] = copied
        for name, value in vars(self).items():
            setattr(copied, name, copy.deepcopy(value, memo))
        copied._view()
        return copied

    def _next_block(self) -> None:
        block = self.kernel.block
        inputs = self._recent.permute(1, 2, 0)
        self._history.put(self._block, inputs)
        self._far.put(self._block, inputs)
        self._block += 1
        self._place = 0
        far = self._far_outputs()
        if far is None:
            self._sums[:block] = self._sums[block:]
        else:
            torch.add(self._sums[block:], far, out=self._sums[:block])
        self._sums[block:] = 0
        self._plan()

    def _far_outputs(self) -> Tensor | None:
        """Return what far inputs add to the outputs of this block, (block, batch, channels)."""
        far = self._far.outputs(self._block)
        return None if far is None else far.permute(2, 0, 1)

    def _plan(self) -> None:
        """Begin the work of the far part during this block, and do what is due."""
        self._pieces, self._done = self._far.pieces(self._block), 0
        self._work()

    def _refresh(self) -> None:
        """Make the sums of this block and the next from the inputs held."""
        block = self.kernel.block
        near = allocate((1 + min(1, self._block), *self._sums.shape[1:], 2 * block), self._sums).zero_()
        near[0, ..., : self._place] = self._recent[: self._place].permute(1, 2, 0)
        if self._block:
            near[1, ..., :block] = self._history.at(self._block - 1)
        y = toeplitz_matmul(near.flatten(0, 1), self.kernel.first(2 * block)).view(near.shape)
        if self._block:
            y[0, ..., :block] += y[1, ..., block:]
        self._sums.copy_(y[0].permute(2, 0, 1))
        far = self._far_outputs()
        if far is not None:
            self._sums[:block] += far
