"""Batches of inputs that the library's own collators do not make: pairs read as two segments, and images."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

__all__ = ["ImageCollator", "SegmentCollator"]


class SegmentCollator:
    """Pads all segments of a batch to the longest of them.

    Args:
        tokenizer: pads as it says.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Make a batch.

        Args:
            rows: each with lists of `num_segments` lists, as many for every row, and perhaps `labels`.

        Returns:
            The inputs, (batch, num_segments, length), and `labels`, (batch,) or (batch, labels).
        """
        names = [name for name in rows[0] if name != "labels"]
        counts = {len(row[names[0]]) for row in rows}
        if len(counts) != 1:
            raise ValueError(f"The rows of a batch must have as many segments each; these have {sorted(counts)}.")
        [count] = counts
        flat = [{name: row[name][index] for name in names} for row in rows for index in range(count)]
        padded = self.tokenizer.pad(flat, return_tensors="pt")
        batch = {name: values.unflatten(0, (len(rows), count)) for name, values in padded.items()}
        return batch | _labels(rows)


class ImageCollator:
    """Makes `pixel_values` of the images of a batch.

    Args:
        processor: an image processor of transformers.
        column: which column holds the images.
    """

    def __init__(self, processor: Any, column: str = "image") -> None:
        self.processor = processor
        self.column = column

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Make a batch.

        Args:
            rows: each with an image of any size, and perhaps `labels`.

        Returns:
            `pixel_values` (batch, channels, height, width), and `labels`, (batch,) or (batch, labels).
        """
        images = self.processor([row[self.column] for row in rows], return_tensors="pt")
        return {"pixel_values": images["pixel_values"], **_labels(rows)}


def _labels(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    return {"labels": torch.tensor([row["labels"] for row in rows])} if "labels" in rows[0] else {}
