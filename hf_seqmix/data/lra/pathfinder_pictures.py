"""Pathfinder and Path-X of the Long Range Arena: are two discs on one dashed contour, or on two?"""

import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import datasets
import numpy as np

from .pathfinder_drawing import draw_scene, encode_png
from .pathfinder_geometry import pathfinder_scenes
from .pathfinder_settings import PathfinderSettings

__all__ = ["pathfinder"]

_TOGETHER = 128  # pictures drawn from one random stream


def pathfinder(
    num_rows: Mapping[str, int],
    *,
    image_size: int = 32,
    contour_length: int = 14,
    settings: PathfinderSettings | None = None,
    seed: int = 0,
    num_proc: int | None = None,
) -> datasets.DatasetDict:
    r"""Draw gray pictures of two long dashed contours, with a disc at one end of each or at both ends of one.

    Shorter contours distract. In a positive the discs are at both ends of one contour. In a negative they are at the
    beginning of one contour and the end of the other. Both contours begin in the middle of the picture,
    `seed_distance` apart. The label is drawn when all contours are complete: but for the discs, pictures of both
    classes are alike.

    Source: Linsley et al. 2018 (arXiv 1805.08315) and its generator drewlinsley/pathfinder, snakes2.py. Sizes and
    numbers are those of the Long Range Arena (Tay et al. 2021, arXiv 2011.04006; see `PathfinderSettings`). The
    benchmark has `contour_length` 14 and 200,000 pictures a task: Pathfinder at 32 pixels, Path-X at 128.

    The pictures are not the published pictures. Departures from the generator:
    - Places are real numbers; in the generator, pixels. Distances between lines decide which directions have room; in
      the generator, masks of widened paddles.
    - A contour without a way on goes back by some steps, and looks ahead for room to turn before the frame. The
      generator begins the picture anew.
    - Neither disc overlaps the other, another contour, or the border.
    - Edges are smoothed by drawing 4 times as large and averaging; in the generator, 2 times as large with a Lanczos
      filter.
    - Brightness is not stretched to the range of each picture.
    - There are no single paddles besides the distractors, as in the script of the generator.

    Args:
        num_rows: split -> number of its rows. No picture occurs twice, within a split or in two splits. The first
            pictures of a split do not depend on its length nor, unless a picture occurs twice, on the other splits.
        image_size: 32, 64, 128 or 256. Contours of 14 have so little room at 64 pixels that drawing takes long.
        contour_length: paddles of each of the two contours; 9 and 6 are the published easier tasks.
        settings: a design of your own, which replaces `image_size` and `contour_length`.
        seed: one seed for all splits together.
        num_proc: processes that draw; the pictures do not depend on their number.

    Returns:
        Rows of `image`, an encoded PNG of one gray channel, and `label`, 1 for connected and 0 for not. In each split,
        the numbers of both labels differ by one at most.

    Raises:
        ValueError: no split is named, a number is too small, there are no settings for a size, or too little room.
    """
    if not num_rows:
        raise ValueError("num_rows names no split; give, for example, {'train': 1000, 'test': 100}.")
    for split, count in num_rows.items():
        if count < 1:
            raise ValueError(f"num_rows[{split!r}] is {count}; it must be at least 1.")
    settings = settings or PathfinderSettings.published(image_size, contour_length)
    seen: set[bytes] = set()
    return datasets.DatasetDict(
        {split: _split(split, count, settings, seed, num_proc, seen) for split, count in num_rows.items()}
    )


def _split(
    name: str, count: int, settings: PathfinderSettings, seed: int, num_proc: int | None, seen: set[bytes]
) -> datasets.Dataset:
    """Draw the first pictures of a split that are not yet in `seen`, in equal numbers of each class."""
    label = datasets.ClassLabel(names=["unconnected", "connected"])
    features = datasets.Features({"image": datasets.Image(), "label": label})
    wanted = [count - count // 2, count - count // 2]
    drawn, kept = list[datasets.Dataset](), list[int]()
    begun = offset = 0
    while len(kept) < count:
        missing = -(-(count - len(kept)) // _TOGETHER)
        numbers = datasets.Dataset.from_dict({"batch": list(range(begun, begun + missing))})
        part = numbers.map(
            partial(_draw, name=name, settings=settings, seed=seed),
            batched=True,
            batch_size=1,
            remove_columns="batch",
            features=features,
            num_proc=num_proc if missing > 1 else None,
            load_from_cache_file=False,
            desc=f"Drawing {name}, {_TOGETHER} pictures at a time",
        )
        begun += missing
        table = part.data.table
        files = (file for chunk in table["image"].chunks for file in chunk.field("bytes"))
        for row, (file, value) in enumerate(zip(files, table["label"].to_pylist(), strict=True)):
            if len(kept) == count:
                break
            picture = file.as_py()
            if wanted[value] and picture not in seen:
                seen.add(picture)
                kept.append(offset + row)
                wanted[value] -= 1
        drawn.append(part)
        offset += len(part)
    return datasets.concatenate_datasets(drawn).select(kept).flatten_indices()


def _draw(batch: dict[str, list[int]], *, name: str, settings: PathfinderSettings, seed: int) -> dict[str, list[Any]]:
    """Draw the pictures of one random stream; of each two in a row, one is connected."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), batch["batch"][0]])
    labels = rng.permuted(np.tile([0, 1], (_TOGETHER // 2, 1)), axis=1).ravel()
    scenes = pathfinder_scenes(settings, labels.tolist(), rng)
    images = [{"bytes": encode_png(draw_scene(scene)), "path": None} for scene in scenes]
    return {"image": images, "label": labels.tolist()}
