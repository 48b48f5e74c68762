"""A causal kernel prepared for `online.py`: taps, spectra of segments of the taps, and which lags matter."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.dispatch import compute_dtype
from ..common.fft import step_sizes, stepped_spectrum
from .online_far import FarPart
from .online_history import BlockHistory, allocate
from .online_taps import GrowingTaps
from .online_tiles import Tiles

__all__ = ["OnlineKernel", "lags_that_matter"]

BLOCK = 64
"""Positions of a block. Measured on a CPU (256 channels, one row): blocks of 32 to 128 differ by about a tenth."""

RUN = 64
"""Lags whose weights are summed first, where the weight of all later lags is wanted."""


class OnlineKernel:
    """Taps of a causal kernel, and spectra of segments of them, made when they are first needed.

    One kernel serves any number of `OnlineConvolution`s; weights must not change meanwhile.

    A span is U = block 4^level positions long. The outputs of a span see inputs at a distance of 2 to 7 spans by a
    segment of 2U taps each: see `online_tiles.py`.

    Args:
        taps: (channels, taps), lags from 0; the kernel is zero beyond. Or a function that makes the taps of lags first
            to last - 1, (channels, last - first), when called with (first, last). The function is asked for each lag
            once, up to about three times the tokens so far.
        block: positions of a block, a power of two.
        dtype: that of inputs; the kernel is kept in float64 for float64, else in float32.
        length: taps of a function that count; the kernel is zero beyond. None for a kernel without an end.

    Attributes:
        block: positions of a block.
        channels: number of channels.
        length: number of taps; None for a kernel without an end.
        near: for each place in a block, (taps, 1, 1, channels), the taps that reach from there to the end of the next.
    """

    def __init__(
        self,
        taps: Tensor | Callable[[int, int], Tensor],
        block: int = BLOCK,
        dtype: torch.dtype = torch.float32,
        length: int | None = None,
    ) -> None:
        if block < 1 or block & (block - 1):
            raise ValueError(
                f"block is {block}, but spans grow by powers of two: give a power of two, such as {BLOCK}."
            )
        self.block = block
        self.dtype = compute_dtype(dtype)
        given = taps if isinstance(taps, Tensor) else taps(0, 1)
        if given.ndim != 2 or given.shape[1] < 1 or not given.is_floating_point():
            raise ValueError(f"taps are {given.dtype} of shape {tuple(given.shape)}: give real (channels, taps).")
        self.taps = GrowingTaps(taps, self.dtype, length)
        self.channels, self.length = given.shape[0], self.taps.length
        near = self.first(2 * block).t().contiguous()[:, None, None]  # (2 block, 1, 1, channels)
        self.near = [near[: 2 * block - place] for place in range(block)]
        self._spectra: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # by level and distance; channels made
        self._views: dict[tuple[int, int, int, int], Tensor] = {}  # of these, by range of channels

    @property
    def levels(self) -> int | None:
        """Number of sizes of spans that have taps that are not zero; None for a kernel without an end."""
        if self.length is None:
            return None
        # The nearest lag of spans of U positions is U + 1.
        return (max(0, (self.length - 2) // self.block).bit_length() + 1) // 2

    @staticmethod
    def blocks(level: int) -> int:
        """Return the number of blocks of a span."""
        return 4**level

    def segments(self, level: int) -> int:
        """Return the number of segments of taps for spans of a size: one each for distances of 2 to 7 spans."""
        if self.length is None:
            return 6
        return min(6, (self.length - 2) // (self.block * self.blocks(level)))

    @property
    def blocks_held(self) -> int | None:
        """Number of blocks of inputs that a state holds, a power of two; None for all."""
        levels = self.levels
        if not levels:
            return None if levels is None else 4
        # Those that the largest spans read, and one span more, so that what follows can be cropped.
        return 1 << ((self.segments(levels - 1) + 3) * self.blocks(levels - 1) - 1).bit_length()

    def far_part(self, history: BlockHistory, piece: int) -> FarPart:
        """Return what makes the far part of a new state: see `online_far.py`.

        Args:
            history: of the state.
            piece: samples in a piece of work.
        """
        return Tiles(self, history, piece)

    @property
    def memory(self) -> int:
        """Bytes of taps and spectra."""
        spectra = (spectrum for spectrum, _ in self._spectra.values())
        return self.taps.memory + sum(tensor.nbytes for tensor in (*self.near[:1], *spectra))

    def first(self, length: int) -> Tensor:
        """Return the taps of lags 0 to length - 1, (channels, length), zeros where the kernel has ended."""
        return self.taps.read(0, length)

    def spectrum(self, level: int, distance: int, start: int, stop: int) -> Tensor:
        """Return the spectrum of the segment of taps between spans at a distance, for a range of channels.

        The taps are those of lags (distance - 1) U to (distance + 1) U - 1. Only the channels asked for are
        transformed, when they are first asked for, so that the work of a large size is shared out over many steps.

        Args:
            level: U = block 4^level.
            distance: 2 to 7, in spans.
            start: first channel.
            stop: the channel after the last.

        Returns:
            (stop - start, rows / 2 + 1, columns), complex, scaled: see `stepped_spectrum`.
        """
        key = (level, distance, start, stop)
        if key not in self._views:
            self._views[key] = self._spectrum(level, distance, start, stop)
        return self._views[key]

    def _spectrum(self, level: int, distance: int, start: int, stop: int) -> Tensor:
        size = self.block * self.blocks(level)
        rows, columns = step_sizes(2 * size)
        if (level, distance) not in self._spectra:
            dtype = torch.promote_types(self.dtype, torch.complex64)
            whole = allocate((self.channels, rows // 2 + 1, columns), self.near[0], dtype)
            self._spectra[level, distance] = (whole, torch.zeros(self.channels, dtype=torch.bool))
        whole, known = self._spectra[level, distance]
        if not bool(known[start:stop].all()):
            lag = (distance - 1) * size
            taps = self.taps.read(lag, lag + 2 * size, start, stop)
            whole[start:stop] = stepped_spectrum(taps.unflatten(-1, (rows, columns)), scaled=True)
            known[start:stop] = True
        return whole[start:stop]


def lags_that_matter(taps: Tensor, resolution: float | None = None) -> int:
    """Return how many taps are to be kept, so that dropping the rest cannot be seen in the resolution of the sum.

    For |x| <= 1, the outputs of a channel change by at most r = sum_(lag >= kept) |k[lag]|. A sum of the products of
    k and x is known to about e s, s = sum_lag |k[lag]| and e the spacing of floating-point numbers at 1. The smallest
    number of taps with r <= e s in every channel is returned.

    Args:
        taps: (channels, taps), lags from 0; the kernel is zero beyond.
        resolution: e; by default that of float32, and of float64 for float64 taps.

    Returns:
        A number from 1 to the number of taps.
    """
    resolution = torch.finfo(compute_dtype(taps.dtype)).eps if resolution is None else resolution
    taps = taps.detach()
    weights = (taps.cpu() if taps.device.type == "mps" else taps).abs()  # MPS has no float64
    weights = F.pad(weights, (0, -weights.shape[1] % RUN)).unflatten(1, (-1, RUN))  # (channels, runs, RUN)
    rest = weights.sum(dim=2, dtype=torch.float64)
    rest = F.pad(rest.flip(1).cumsum(dim=1).flip(1), (0, 1))  # from each run on
    allowed = resolution * rest[:, :1]
    whole = ((rest > allowed).sum(dim=1, keepdim=True) - 1).clamp(min=0)  # runs of which all lags are kept
    last = weights.gather(1, whole.unsqueeze(2).expand(-1, -1, RUN))[:, 0].double()
    last = last.flip(1).cumsum(dim=1).flip(1) + rest.gather(1, whole + 1)
    kept = whole * RUN + (last > allowed).sum(dim=1, keepdim=True)
    return max(1, int(kept.max()))
