"""Draw Pathfinder scenes as gray pictures."""

import io

import numpy as np
from PIL import Image, ImageDraw

from .pathfinder_geometry import PathfinderScene

__all__ = ["draw_scene", "encode_png"]

_SCALE = 4  # edges are smoothed by drawing 4 times as large; published: 2


def draw_scene(scene: PathfinderScene) -> np.ndarray:
    """Draw a scene as the task shows it, white on black: paddles and two discs.

    Args:
        scene: the scene.

    Returns:
        (image_size, image_size) bytes.
    """
    settings = scene.settings
    size = (settings.image_size * _SCALE,) * 2
    paddles, markers = Image.new("L", size), Image.new("L", size)
    draw = ImageDraw.Draw(paddles)
    width = max(1, round(settings.paddle_thickness * _SCALE))
    for contour in range(len(scene.contours)):
        for paddle in scene.paddles(contour):
            draw.line(_canvas(paddle), fill=255, width=width)
    radius = settings.marker_radius * _SCALE
    for x, y in scene.markers * _SCALE - 0.5:
        ImageDraw.Draw(markers).ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    faint = np.asarray(paddles.reduce(_SCALE), dtype=float) * settings.contrast
    return np.maximum(np.minimum(np.rint(faint), 255).astype(np.uint8), np.asarray(markers.reduce(_SCALE)))


def _canvas(points: np.ndarray) -> list[tuple[float, float]]:
    """Return points of a picture in the coordinates of PIL, which count from the middle of the first pixel."""
    return [(float(x), float(y)) for x, y in points * _SCALE - 0.5]


def encode_png(picture: np.ndarray) -> bytes:
    """Encode a gray picture as a PNG file; on one machine the same picture gives the same bytes."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return buffer.getvalue()
