"""Names of lines stand apart, within the panel, as near to their lines as that allows."""

from itertools import pairwise

import pytest
from timing.labels import _apart


@pytest.mark.parametrize("heights", [[0.2, 0.5], [0.4, 0.41, 0.42], [0.95, 0.96, 0.97, 1.0], [0.0, 0.0, 0.01]])
def test_names_stand_apart(heights):
    placed = _apart(heights, gap=0.1)
    assert all(b - a > 0.0999 for a, b in pairwise(placed))
    assert placed[0] >= -1e-9 and placed[-1] <= 1 + 1e-9


def test_names_with_room_stay_and_a_group_keeps_its_center():
    assert _apart([0.2, 0.5], gap=0.1) == pytest.approx([0.2, 0.5])
    assert _apart([0.4, 0.4, 0.4], gap=0.1) == pytest.approx([0.3, 0.4, 0.5])
