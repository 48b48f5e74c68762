"""Draw Pathfinder scenes as gray pictures, and as rasters of what is connected."""

import io

import numpy as np
from PIL import Image, ImageDraw

from .pathfinder_geometry import PathfinderScene

__all__ = ["connectivity_raster", "draw_scene", "encode_png"]

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


def connectivity_raster(scene: PathfinderScene, scale: int = _SCALE) -> np.ndarray:
    """Draw a scene with the gaps of each contour bridged, so that each contour is one patch of set pixels.

    Args:
        scene: the scene.
        scale: pixels of the raster to a pixel of the picture; at 4, contours never touch.

    Returns:
        (image_size scale, image_size scale) truth values. A place (x, y) of the scene is in row floor(y scale) and
        column floor(x scale).

    Raises:
        ValueError: the scale is below 1.
    """
    if scale < 1:
        raise ValueError(f"scale is {scale}; it must be at least 1.")
    raster = Image.new("1", (scene.settings.image_size * scale,) * 2)
    draw = ImageDraw.Draw(raster)
    for contour, joints in enumerate(scene.contours):
        paddles = scene.paddles(contour)
        path = np.concatenate([paddles[:1, 0], joints[1:-1], paddles[-1:, 1]])
        draw.line(_canvas(path, scale), fill=1)
    return np.asarray(raster)


def _canvas(points: np.ndarray, scale: int = _SCALE) -> list[tuple[float, float]]:
    """Return points of a picture in the coordinates of PIL, which count from the middle of the first pixel."""
    return [(float(x), float(y)) for x, y in points * scale - 0.5]


def encode_png(picture: np.ndarray) -> bytes:
    """Encode a gray picture as a PNG file; on one machine the same picture gives the same bytes."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return buffer.getvalue()
