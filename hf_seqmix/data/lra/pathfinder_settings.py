"""Settings of Pathfinder pictures, published settings and your own."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

__all__ = ["PathfinderSettings"]

# In pixels: the published masks, paddles widened by m, have smooth edges and may overlap by about this much.
_OVERLAP = 0.75

# By image size, from the builders of the Long Range Arena (lra_benchmarks/data/pathfinder.py) and, where these say
# nothing, the defaults of snakes2_wrapper.py in drewlinsley/pathfinder. The contrast is the product of the contrasts
# of contours and of paddles. All distractors together have `distractor_paddles` paddles.
_PUBLISHED: dict[int, dict[str, Any]] = {
    32: {
        "paddle_length": 2,
        "paddle_thickness": 0.5,
        "paddle_margins": (1,),
        "continuity": 1.0,
        "seed_distance": 7,
        "marker_radius": 1.5,
        "padding": 1,
        "contrast": 1.5,
        "distractor_paddles": 20,
    },
    64: {
        "paddle_length": 5,
        "paddle_thickness": 1.0,
        "paddle_margins": (1,),
        "continuity": 1.8,
        "seed_distance": 12,
        "marker_radius": 2.5,
        "padding": 1,
        "contrast": 0.8,
        "distractor_paddles": 22,
    },
    128: {
        "paddle_length": 5,
        "paddle_thickness": 1.5,
        "paddle_margins": (2, 3),
        "continuity": 1.8,
        "seed_distance": 20,
        "marker_radius": 3,
        "padding": 1,
        "contrast": 0.9,
        "distractor_paddles": 35,
    },
    256: {
        "paddle_length": 5,
        "paddle_thickness": 2.0,
        "paddle_margins": (3,),
        "continuity": 1.8,
        "seed_distance": 27,
        "marker_radius": 5,
        "padding": 22,
        "contrast": 1.0,
        "distractor_paddles": 30,
    },
}


@dataclass(frozen=True, kw_only=True)
class PathfinderSettings:
    r"""What a picture looks like; lengths are in pixels.

    A contour is a chain of steps of length $\ell + 2m$. The middle $\ell$ of each step is drawn as a paddle, so that
    gaps of $2m$ lie between paddles. From step to step the contour turns by an angle of density $\propto
    \cos^2(c\,\delta)$ for $|\delta| < \pi / (2c)$.

    Attributes:
        image_size: height and width.
        contour_length: paddles of each marked contour.
        paddle_length: $\ell$.
        paddle_thickness: width of a paddle.
        paddle_margins: values of m; each picture draws one value.
        continuity: c; the larger, the straighter.
        distractor_length: paddles of each distractor.
        num_distractors: distractors for which a place is sought; a distractor without a place is left out.
        seed_distance: distance between the first paddles of the two marked contours.
        marker_radius: radius of the discs.
        padding: width of the free frame, besides m.
        contrast: brightness of a paddle; 1 is white. More than 1 brightens edges and is cut off at 1.
    """

    image_size: int
    contour_length: int
    paddle_length: float
    paddle_thickness: float
    paddle_margins: tuple[float, ...]
    continuity: float
    distractor_length: int
    num_distractors: int
    seed_distance: float
    marker_radius: float
    padding: float
    contrast: float

    @classmethod
    def published(cls, image_size: int = 32, contour_length: int = 14) -> Self:
        """Return the settings of the Long Range Arena for a size.

        Args:
            image_size: 32 (Pathfinder), 64, 128 (Path-X) or 256.
            contour_length: 14 in the benchmark ("hard"); 9 and 6 are its easier sets.

        Raises:
            ValueError: there are no published settings of that size, or the contour has fewer than 3 paddles.
        """
        if image_size not in _PUBLISHED:
            raise ValueError(
                f"there are no published settings for pictures of {image_size} pixels; there are settings for"
                f" {sorted(_PUBLISHED)}. Give PathfinderSettings of your own."
            )
        if contour_length < 3:
            raise ValueError(f"contour_length is {contour_length}; it must be at least 3 (14, 9 and 6 are published).")
        values = dict(_PUBLISHED[image_size])
        distractor_length = contour_length // 3
        return cls(
            image_size=image_size,
            contour_length=contour_length,
            distractor_length=distractor_length,
            num_distractors=values.pop("distractor_paddles") // distractor_length,
            **values,
        )

    def __post_init__(self) -> None:
        lows = {"image_size": 8, "contour_length": 2, "distractor_length": 1, "num_distractors": 0, "padding": 0}
        for name, low in lows.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}.")
        for name in ("paddle_length", "paddle_thickness", "continuity", "seed_distance", "marker_radius", "contrast"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0.")
        if not self.paddle_margins or min(self.paddle_margins) <= 0:
            raise ValueError(f"paddle_margins is {self.paddle_margins}; give one or more numbers above 0.")
        if self.continuity < 0.5:
            raise ValueError(
                f"continuity is {self.continuity}; below 0.5, contours would turn by more than 180 degrees."
            )

    def clearance(self, margin: np.ndarray) -> np.ndarray:
        """Return the least distance between lines of steps that do not follow each other; markers touch no contour."""
        paddles = 2 * margin + self.paddle_thickness - _OVERLAP
        return np.maximum(paddles, self.marker_radius + self.paddle_thickness / 2 + 0.25)

    def frame(self, margin: np.ndarray) -> np.ndarray:
        """Return the least distance of the line of a paddle from the border; a marker is not cut off."""
        return np.maximum(self.padding + margin + self.paddle_thickness / 2 - _OVERLAP, self.marker_radius)
