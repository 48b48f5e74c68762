"""Pictures show their scenes, and what is connected in the scenes agrees with the labels under a flood fill."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from hf_seqmix.data.lra.pathfinder_drawing import draw_scene, encode_png
from hf_seqmix.data.lra.pathfinder_geometry import PathfinderScene, pathfinder_scenes
from hf_seqmix.data.lra.pathfinder_settings import PathfinderSettings

SCALE = 4


@pytest.fixture(scope="module", params=[32, 128])
def scenes(request: pytest.FixtureRequest) -> list[PathfinderScene]:
    count = {32: 200, 128: 10}[request.param]
    settings = PathfinderSettings.published(request.param)
    return pathfinder_scenes(settings, [0, 1] * (count // 2), np.random.default_rng(1))


def components_at(raster: np.ndarray, scene: PathfinderScene) -> set[int]:
    patches, _ = ndimage.label(raster, structure=np.ones((3, 3)))
    found = set()
    for x, y in scene.markers * SCALE:
        near = patches[max(0, int(y) - 1) : int(y) + 2, max(0, int(x) - 1) : int(x) + 2]
        numbers = set(near[near > 0].tolist())
        assert len(numbers) == 1, "each marker is on one contour"
        found |= numbers
    return found


def test_flood_fill_of_paddles_and_the_gaps_between_them_agrees_with_the_labels(scenes: list[PathfinderScene]) -> None:
    # A raster of points, whose gaps are closed between neighbors of one contour only.
    for scene in scenes[:60]:
        raster = np.zeros((scene.settings.image_size * SCALE,) * 2, dtype=bool)
        for contour in range(len(scene.contours)):
            ends = scene.paddles(contour).reshape(-1, 2)  # paddle, gap, paddle, gap, ...
            for begin, end in itertools.pairwise(ends):
                points = (begin + np.linspace(0, 1, 100)[:, None] * (end - begin)) * SCALE
                raster[points[:, 1].astype(int), points[:, 0].astype(int)] = True
        assert len(components_at(raster, scene)) == (1 if scene.label else 2)
        assert ndimage.label(raster, structure=np.ones((3, 3)))[1] == len(scene.contours)


def test_pictures_show_every_paddle_and_both_discs_and_nothing_else(scenes: list[PathfinderScene]) -> None:
    for scene in scenes[:: len(scenes) // 5]:
        picture, size = draw_scene(scene), scene.settings.image_size
        assert picture.shape == (size, size)
        assert picture.dtype == np.uint8
        y, x = np.mgrid[:size, :size] + 0.5
        to_ink = np.min([np.hypot(x - cx, y - cy) for cx, cy in scene.markers], axis=0) - scene.settings.marker_radius
        for contour in range(len(scene.contours)):
            for begin, end in scene.paddles(contour):
                middle = (begin + end) / 2
                around = picture[
                    int(middle[1] - 0.5) : int(middle[1] + 1.5), int(middle[0] - 0.5) : int(middle[0] + 1.5)
                ]
                assert around.max() > 60
                for point in np.linspace(begin, end, 12):
                    to_ink = np.minimum(to_ink, np.hypot(x - point[0], y - point[1]))
        reach = scene.settings.paddle_thickness / 2 + 1
        assert not picture[to_ink > reach].any()
        for cx, cy in scene.markers:
            assert (picture[np.hypot(x - cx, y - cy) < scene.settings.marker_radius - 0.9] == 255).all()


def test_gaps_are_dark(scenes: list[PathfinderScene]) -> None:
    gaps, paddles = [], []
    for scene in scenes[:50]:
        picture = draw_scene(scene)
        own = scene.paddles(2) if len(scene.contours) > 2 else np.empty((0, 2, 2))
        for place, values in ((own.mean(axis=1), paddles), (scene.contours[2][1:-1] if len(own) else [], gaps)):
            values += [int(picture[int(y), int(x)]) for x, y in place]
    assert np.mean(gaps) < 0.2 * np.mean(paddles)


def test_png_holds_the_picture(scenes: list[PathfinderScene]) -> None:
    picture = draw_scene(scenes[0])
    read = Image.open(io.BytesIO(encode_png(picture)))
    assert read.mode == "L"
    np.testing.assert_array_equal(np.asarray(read), picture)
