"""Taps of a causal kernel for `online.py`, made a few lags at a time, in memory that grows without copies."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .online_history import allocate

__all__ = ["GrowingTaps"]

FIRST = 256
"""Lags of the first segment."""


class GrowingTaps:
    """The first taps of a kernel; more of them when they are asked for.

    Args:
        build: makes the taps of lags first to last - 1, (channels, last - first), when called with (first, last). Or
            all taps, (channels, length).
        dtype: that taps are kept in.
        length: taps that count; the kernel is zero beyond. None for a kernel without an end.

    Attributes:
        known: number of taps that have been made.
        length: number of taps that count; None for a kernel without an end.
    """

    def __init__(
        self, build: Callable[[int, int], Tensor] | Tensor, dtype: torch.dtype, length: int | None = None
    ) -> None:
        self._whole = build.detach().to(dtype) if isinstance(build, Tensor) else None
        self.known, self.length = (0, length) if self._whole is None else (self._whole.shape[1],) * 2
        self._build, self._dtype = build, dtype
        self._segments: list[Tensor] = []  # (channels, lags), of 256, 256, 512, 1024 and so on lags

    @property
    def memory(self) -> int:
        """Bytes of the taps that have been made."""
        if self._whole is not None:
            return self._whole.nbytes
        return self.known * sum(segment[:, :1].nbytes for segment in self._segments[:1])

    def prepare(self, length: int) -> None:
        """Make taps up to a number, as far as the kernel goes."""
        length = length if self.length is None else min(length, self.length)
        if length <= self.known or isinstance(self._build, Tensor):
            return
        taps = self._build(self.known, length).detach().to(self._dtype)
        for segment, place, count in self._parts(self.known, length):
            while len(self._segments) <= segment:
                size = max(FIRST, (FIRST << len(self._segments)) >> 1)
                self._segments.append(allocate((len(taps), size), taps))
            self._segments[segment][:, place : place + count] = taps[:, :count]
            taps = taps[:, count:]
        self.known = length

    def read(self, first: int, last: int, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the taps of lags first to last - 1 for a range of channels, zeros where the kernel has ended."""
        self.prepare(last)
        end = max(first, min(last, self.known))
        if self._whole is not None:
            taps = self._whole[start:stop, first:end]
        else:
            places = self._parts(first, end) or [(0, 0, 0)]
            parts = [self._segments[segment][start:stop, place : place + count] for segment, place, count in places]
            taps = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return F.pad(taps, (0, last - end)) if end < last else taps

    def _parts(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return where lags are: the number of the segment, the place in the segment, and how many."""
        parts = []
        while first < last:
            segment = (first // FIRST).bit_length()
            begin = (FIRST << segment) >> 1 if segment else 0
            count = min(last - first, (begin or FIRST) - (first - begin))
            parts.append((segment, first - begin, count))
            first += count
        return parts
