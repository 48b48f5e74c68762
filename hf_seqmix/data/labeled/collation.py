"""Batches that the collators of transformers do not make: texts read as separate segments, and images."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

__all__ = ["ImageCollator", "SegmentCollator"]


class SegmentCollator:
    """Pad all segments of a batch to the longest segment.

    A model with `num_segments` above 1 reads each text of a row separately, so a row holds one list of tokens a
    segment.

    Args:
        tokenizer: gives the pad token and the side on which segments are padded.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Make a batch.

        Args:
            rows: each input of a row, such as `input_ids`, is a list of `num_segments` lists. Rows may have `labels`.

        Returns:
            The inputs, (batch, num_segments, length) each, and `labels`, (batch,) or (batch, labels).

        Raises:
            ValueError: the rows have different numbers of segments.
        """
        names = [name for name in rows[0] if name != "labels"]
        counts = {len(row[names[0]]) for row in rows}
        if len(counts) != 1:
            raise ValueError(f"the rows of a batch must have equally many segments; these have {sorted(counts)}.")
        [count] = counts
        flat = [{name: row[name][index] for name in names} for row in rows for index in range(count)]
        padded = self.tokenizer.pad(flat, return_tensors="pt")
        batch = {name: values.unflatten(0, (len(rows), count)) for name, values in padded.items()}
        return batch | _labels(rows)


class ImageCollator:
    """Make `pixel_values` of the images of a batch.

    Args:
        processor: an image processor of transformers.
        column: the column that holds the images.
    """

    def __init__(self, processor: Any, column: str = "image") -> None:
        self.processor = processor
        self.column = column

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Make a batch.

        Args:
            rows: each with an image of any size. Rows may have `labels`.

        Returns:
            `pixel_values` (batch, channels, height, width), and `labels`, (batch,) or (batch, labels).
        """
        images = self.processor([row[self.column] for row in rows], return_tensors="pt")
        return {"pixel_values": images["pixel_values"], **_labels(rows)}


def _labels(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    return {"labels": torch.tensor([row["labels"] for row in rows])} if "labels" in rows[0] else {}
