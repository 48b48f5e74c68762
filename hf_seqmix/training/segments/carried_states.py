"""The states that segments of a text leave to the next ones, in training."""

import math
import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import DynamicCache, PreTrainedConfig

from ...cache import CopyKeys, detach_cache
from ...cache.recent_inputs import RecentInputs

__all__ = ["CarriedStates", "StateSettings"]


@dataclass(frozen=True)
class StateSettings:
    """Which segments go on from the state of the one before.

    Attributes:
        segments: of a stream, at least 2; the first begins with an empty state.
        start: share of the run's updates after which states are handed on, at least 0 and below 1.

    Raises:
        ValueError: for a number or share outside these.
    """

    segments: int
    start: float = 0.0

    def __post_init__(self) -> None:
        if self.segments < 2:
            raise ValueError(
                f"--state-segments is {self.segments}; a stream has at least 2 segments, and 0 stands for no streams."
            )
        if not 0 <= self.start < 1:
            raise ValueError(f"--states-from is {self.start}; it is a share of the updates, from 0 to below 1.")

    def first(self, updates: int) -> int:
        """Return the first update that begins a stream, of so many: a multiple of `segments`, below `updates`."""
        wanted = math.ceil(self.start * updates / self.segments)
        return self.segments * min(wanted, max(updates - 1, 0) // self.segments)

    def segment(self, update: int, first: int) -> int | None:
        """Return which segment of its streams an update reads, from 0; None before the first stream."""
        return None if update < first else (update - first) % self.segments


class CarriedStates:
    """The caches of the rows of an update, one for each of its accumulation steps, from segment to segment.

    Args:
        config: of the model.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        self.config = config
        self._caches: list[DynamicCache] = []

    def clear(self) -> None:
        """Forget all states: the next segments are the first of their streams."""
        self._caches = []

    def cache(self, part: int) -> DynamicCache:
        """Return the cache of a part of an update, which its segments are to continue; parts come in order."""
        while len(self._caches) <= part:
            self._caches.append(DynamicCache(config=self.config))
        return self._caches[part]

    def detach(self, part: int) -> None:
        """Cut the states of a part from the graph of the segments just read."""
        detach_cache(self._caches[part])

    def save(self, path: Path, rows: list[int]) -> None:
        """Write all states.

        Args:
            path: a file of a checkpoint that has no seal yet.
            rows: what the states belong to: processes, accumulation steps, rows of each, segments.
        """
        torch.save({"rows": rows, "layers": [cache.layers for cache in self._caches]}, path)

    def load(self, path: Path, rows: list[int], device: torch.device) -> bool:
        """Read all states, bit for bit as they were saved, and return whether they are there and belong to `rows`."""
        self.clear()
        if not path.is_file():
            return False
        place = "cpu" if device.type == "cpu" else str(device)  # torch.load knows no processor by number
        kinds = {type(layer) for layer in DynamicCache(config=self.config).layers}
        with torch.serialization.safe_globals([*kinds, RecentInputs, CopyKeys]):
            try:
                saved = torch.load(path, map_location=place, weights_only=True)
            except pickle.UnpicklingError as error:
                raise ValueError(
                    f"{path} holds other things than states of this model ({error}). Continue from another checkpoint."
                ) from error
        if saved["rows"] != rows:
            return False
        for part, layers in enumerate(saved["layers"]):
            self.cache(part).layers[:] = layers
        return True
