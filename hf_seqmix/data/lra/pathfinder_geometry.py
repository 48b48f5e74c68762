"""Geometry of Pathfinder pictures: dashed contours that bend, keep clear of one another, and carry two markers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .pathfinder_settings import PathfinderSettings
from .pathfinder_walks import FAR_AWAY, Walks, direction, uniform

__all__ = ["PathfinderScene", "pathfinder_scenes"]

_WALKS = 512  # pictures begun together, at most
_ROUNDS = 12  # turns drawn for each step before a picture is given up
_DISTRACTOR_ROUNDS = 12  # turns drawn for each step before a distractor is given up
_FRUITLESS = 1000  # pictures begun for each complete picture before there is an error


@dataclass(frozen=True)
class PathfinderScene:
    """What one picture shows. Places are (x, y) in pixels from the upper left corner of the picture.

    Attributes:
        settings: settings of the picture.
        margin: the value of m in this picture.
        contours: (paddles + 1, 2) joints of each contour; the first two contours are marked.
        markers: (2, 2) centers of the discs.
        label: 1 if both markers are on one contour, else 0.
    """

    settings: PathfinderSettings
    margin: float
    contours: Sequence[np.ndarray]
    markers: np.ndarray
    label: int

    def paddles(self, contour: int) -> np.ndarray:
        """Return where each paddle of a contour begins and ends, (paddles, 2, 2)."""
        joints = self.contours[contour]
        inset = self.margin / (self.settings.paddle_length + 2 * self.margin) * np.diff(joints, axis=0)
        return np.stack([joints[:-1] + inset, joints[1:] - inset], axis=1)


def _marked_contours(settings: PathfinderSettings, rng: np.random.Generator, count: int) -> Walks:
    """Draw at most `count` pictures with their two marked contours; incomplete pictures are left out."""
    walks = Walks(settings, rng, rng.choice(np.array(settings.paddle_margins, dtype=float), size=count))
    # The first contour begins in the middle of the picture, the second beside it.
    low = min(2 * settings.seed_distance, settings.image_size / 2)
    first = uniform(rng, low, settings.image_size - low, count)
    around = rng.uniform(-np.pi, np.pi, size=count)
    second = first + settings.seed_distance * direction(around)
    for contour, tails in enumerate((first, second)):
        rows = np.arange(len(walks.margin))
        slot = np.full(len(rows), contour)
        free = walks.add(rows, slot, slot, tails, rng.uniform(-np.pi, np.pi, size=len(rows)))
        walks.keep(rows[free])
        second = second[free]
    steps = 2 * settings.contour_length
    walks.keep(walks.grow(2, steps, 2, rounds=_ROUNDS * steps))
    tips = _tips(walks)
    # The markers are apart, whichever ends are marked.
    between = np.abs(tips[:, :, None, 0] - tips[:, None, :, 1]).min(axis=(1, 2))
    walks.keep(np.flatnonzero(between >= 2 * settings.marker_radius + 1))
    return walks


def _tips(walks: Walks) -> np.ndarray:
    """Return where the first paddle of each marked contour begins and the last paddle ends, (pictures, 2, 2)."""
    last = 2 * walks.settings.contour_length - 2
    along = direction(walks.angles) * walks.margin[:, None]
    begins = walks.steps[:, :2, 0] + along[:, :2]
    ends = walks.steps[:, last : last + 2, 1] - along[:, last : last + 2]
    return np.stack([begins, ends], axis=2)


def _add_distractors(walks: Walks) -> None:
    """Add one distractor after the other, each where there is room."""
    length, start = walks.settings.distractor_length, 2 * walks.settings.contour_length
    for number in range(walks.settings.num_distractors):
        first = start + number * length
        walks.grow(first, first + length, 1, rounds=_DISTRACTOR_ROUNDS * length)


def _points(places: np.ndarray) -> np.ndarray:
    return np.stack([places.real, places.imag], axis=-1)


def _scenes(walks: Walks, labels: Sequence[int]) -> list[PathfinderScene]:
    settings = walks.settings
    marked, length = 2 * settings.contour_length, settings.distractor_length
    tips, scenes = _tips(walks), []
    for steps, margin, ends, label in zip(walks.steps, walks.margin, tips, labels, strict=True):
        chains = [steps[0:marked:2], steps[1:marked:2]]
        chains += [steps[slot : slot + length] for slot in range(marked, len(steps), length)]
        contours = [
            _points(np.concatenate([chain[:1, 0], chain[:, 1]])) for chain in chains if chain[0, 0] != FAR_AWAY[0]
        ]
        begin = walks.rng.integers(2)
        end = begin if label else 1 - begin
        markers = _points(np.stack([ends[begin, 0], ends[end, 1]]))
        scenes.append(PathfinderScene(settings, float(margin), contours, markers, label))
    return scenes


def pathfinder_scenes(
    settings: PathfinderSettings, labels: Sequence[int], rng: np.random.Generator
) -> list[PathfinderScene]:
    """Draw random scenes with given labels; the contours do not depend on the labels.

    A positive marks both ends of one of the two contours, a negative the beginning of one contour and the end of the
    other.

    Args:
        settings: what the scenes look like.
        labels: the label of each scene, 1 or 0.
        rng: the source of randomness.

    Returns:
        A scene for each label. Any two steps that do not follow each other are at least `settings.clearance(margin)`
        apart.

    Raises:
        ValueError: a label is neither 0 nor 1, or the pictures have no room for the contours.
    """
    if not set(labels) <= {0, 1}:
        raise ValueError(f"the labels are {sorted(set(labels))}; give 1 for connected, 0 for not.")
    scenes: list[PathfinderScene] = []
    begun, done = 3, 1  # of pictures begun so far, how many came to an end; at first a guess
    while len(scenes) < len(labels):
        missing = len(labels) - len(scenes)
        begin = min(_WALKS, math.ceil(1.1 * missing * begun / done))
        walks = _marked_contours(settings, rng, begin)
        begun, done = begun + begin, done + len(walks.margin)
        if begun > _FRUITLESS * done:
            raise ValueError(
                f"pictures of {settings.image_size} pixels have no room for two contours of {settings.contour_length} "
                f"paddles of length {settings.paddle_length} ({done - 1} of {begun - 3} tries); give larger pictures, "
                "or fewer or shorter paddles."
            )
        chosen = labels[len(scenes) : len(scenes) + len(walks.margin)]
        walks.keep(np.arange(len(chosen)))
        _add_distractors(walks)
        scenes += _scenes(walks, chosen)
    return scenes
