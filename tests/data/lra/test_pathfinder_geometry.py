"""Contours keep clear of one another, and the markers are where the label says."""

import itertools

import numpy as np
import pytest

from hf_seqmix.data.lra.pathfinder_geometry import PathfinderScene, pathfinder_scenes
from hf_seqmix.data.lra.pathfinder_settings import PathfinderSettings


@pytest.fixture(scope="module", params=[32, pytest.param(128, marks=pytest.mark.slow)])
def scenes(request: pytest.FixtureRequest) -> list[PathfinderScene]:
    count = {32: 60, 128: 10}[request.param]
    settings = PathfinderSettings.published(request.param)
    return pathfinder_scenes(settings, [0, 1] * (count // 2), np.random.default_rng(0))


def along(joints: np.ndarray) -> np.ndarray:
    """Places on a line through joints, less than 0.5 pixels apart."""
    places = [
        begin + (end - begin) * part
        for begin, end in itertools.pairwise(joints)
        for part in np.linspace(0, 1, 2 + int(np.linalg.norm(end - begin) / 0.5))[:, None]
    ]
    return np.array(places)


def test_no_contour_comes_near_another(scenes: list[PathfinderScene]) -> None:
    for scene in scenes:
        clearance = float(scene.settings.clearance(np.array(scene.margin)))
        lines = [along(joints) for joints in scene.contours]
        for one, other in itertools.combinations(lines, 2):
            apart = np.linalg.norm(one[:, None] - other[None], axis=-1).min()
            assert apart >= clearance - 1e-9


def test_no_contour_comes_back_to_itself(scenes: list[PathfinderScene]) -> None:
    for scene in scenes[:20]:
        for joints in scene.contours:
            for place in range(len(joints) - 3):
                apart = np.linalg.norm(along(joints[place : place + 2])[:, None] - along(joints[place + 2 :]), axis=-1)
                assert apart.min() >= scene.settings.clearance(np.array(scene.margin)) - 1e-9


def test_contours_are_chains_of_paddles_that_bend_within_bounds(scenes: list[PathfinderScene]) -> None:
    for scene in scenes:
        settings = scene.settings
        assert scene.margin in settings.paddle_margins
        lengths = [len(scene.paddles(contour)) for contour in range(len(scene.contours))]
        assert lengths[:2] == [settings.contour_length] * 2
        assert set(lengths[2:]) <= {settings.distractor_length}
        assert len(lengths) <= 2 + settings.num_distractors
        for contour in range(len(scene.contours)):
            paddles = scene.paddles(contour)
            np.testing.assert_allclose(np.linalg.norm(paddles[:, 1] - paddles[:, 0], axis=1), settings.paddle_length)
            steps = np.diff(scene.contours[contour], axis=0)
            np.testing.assert_allclose(np.linalg.norm(steps, axis=1), settings.paddle_length + 2 * scene.margin)
            angles = np.unwrap(np.arctan2(steps[:, 1], steps[:, 0]))
            assert np.abs(np.diff(angles)).max(initial=0) <= np.pi / 2 / settings.continuity + 1e-9
            frame = max(settings.marker_radius, settings.padding)
            assert paddles.min() >= frame
            assert paddles.max() <= settings.image_size - frame


def test_markers_are_at_a_beginning_and_an_end_of_the_contours_the_label_tells(scenes: list[PathfinderScene]) -> None:
    first = []
    for scene in scenes:
        begins = np.array([scene.paddles(contour)[0, 0] for contour in (0, 1)])
        ends = np.array([scene.paddles(contour)[-1, 1] for contour in (0, 1)])
        begin = np.flatnonzero(np.isclose(begins, scene.markers[0]).all(axis=1))
        end = np.flatnonzero(np.isclose(ends, scene.markers[1]).all(axis=1))
        assert len(begin) == len(end) == 1
        assert scene.label == (begin[0] == end[0])
        first.append(int(begin[0]))
        np.testing.assert_allclose(np.linalg.norm(begins[1] - begins[0]), scene.settings.seed_distance)
        # Whichever label it were, the discs are apart.
        assert np.linalg.norm(begins[:, None] - ends[None], axis=-1).min() > 2 * scene.settings.marker_radius
    assert 0 < np.mean(first) < 1


def test_contours_do_not_depend_on_the_labels() -> None:
    settings = PathfinderSettings.published(32, 6)
    one, other = (pathfinder_scenes(settings, [label] * 10, np.random.default_rng(3)) for label in (0, 1))
    for negative, positive in zip(one, other, strict=True):
        assert (negative.label, positive.label) == (0, 1)
        for first, second in zip(negative.contours, positive.contours, strict=True):
            np.testing.assert_array_equal(first, second)
        # one disc stays, the other one moves
        np.testing.assert_array_equal(negative.markers[0], positive.markers[0])
        assert not np.allclose(negative.markers[1], positive.markers[1])


@pytest.mark.parametrize(("contour_length", "distractors"), [(14, (4, 5)), (9, (3, 6)), (6, (2, 10))])
def test_published_numbers_of_distractors(contour_length: int, distractors: tuple[int, int]) -> None:
    settings = PathfinderSettings.published(32, contour_length)
    assert (settings.distractor_length, settings.num_distractors) == distractors
    assert settings.contour_length == contour_length


def test_errors() -> None:
    with pytest.raises(ValueError, match="no published settings for pictures of 48 pixels"):
        PathfinderSettings.published(48)
    with pytest.raises(ValueError, match="contour_length is 2; it must be at least 3"):
        PathfinderSettings.published(32, 2)
    good = vars(PathfinderSettings.published(32, 6))
    for wrong, message in [
        ({"image_size": 7}, "image_size is 7"),
        ({"paddle_length": 0}, "paddle_length is 0; it must be above 0"),
        ({"paddle_margins": ()}, "paddle_margins is"),
        ({"continuity": 0.4}, "turn by more than 180 degrees"),
    ]:
        with pytest.raises(ValueError, match=message):
            PathfinderSettings(**{**good, **wrong})
    with pytest.raises(ValueError, match="labels are \\[0, 2\\]"):
        pathfinder_scenes(PathfinderSettings.published(32, 6), [0, 2], np.random.default_rng(0))
    crowded = PathfinderSettings(**{**good, "image_size": 12})
    with pytest.raises(ValueError, match="no room for two contours of 6 paddles"):
        pathfinder_scenes(crowded, [0], np.random.default_rng(0))
