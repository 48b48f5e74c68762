"""Contours of many Pathfinder pictures that grow together: where a step may go, and when steps are taken back."""

import math

import numpy as np

from .pathfinder_settings import PathfinderSettings

__all__ = ["FAR_AWAY", "Walks", "direction", "uniform"]

_TRIES = 12  # turns drawn before steps are taken back
_BACK = 0.5  # probability that no further step is taken back
_PATIENCE = 4  # failures without getting further that halve this probability
_SHARP = 0.9  # share of the largest turn with which a contour must be able to turn before the frame
FAR_AWAY = np.array([1e6, 1e6 + 1], dtype=complex)  # place of steps that are not taken

# F(x) of the density cos(x)^2 on [-pi/2, pi/2]
_QUANTILES = np.linspace(-np.pi / 2, np.pi / 2, 1025)
_CUMULATIVE = 0.5 + _QUANTILES / np.pi + np.sin(2 * _QUANTILES) / (2 * np.pi)


class Walks:
    """Contours of many pictures that grow together, a step at a time."""

    def __init__(self, settings: PathfinderSettings, rng: np.random.Generator, margin: np.ndarray) -> None:
        self.settings, self.rng, self.margin = settings, rng, margin
        slots = 2 * settings.contour_length + settings.num_distractors * settings.distractor_length
        # Places are complex numbers x + iy, whose products are cheaper than sums over a last axis of two.
        self.steps = np.tile(FAR_AWAY, (len(margin), slots, 1))  # where each step begins and ends
        self.angles = np.zeros((len(margin), slots))

    def keep(self, rows: np.ndarray) -> None:
        """Keep these pictures and drop all others."""
        self.margin, self.steps, self.angles = self.margin[rows], self.steps[rows], self.angles[rows]

    def add(
        self, rows: np.ndarray, slots: np.ndarray, follows: np.ndarray, tails: np.ndarray, angles: np.ndarray
    ) -> np.ndarray:
        """Take steps where there is room.

        Args:
            rows: (count,) numbers of the pictures.
            slots: (count,) numbers of the steps; no later step is taken yet.
            follows: (count,) numbers of the previous steps, which the steps touch; the own number if there is no
                previous step.
            tails: (count,) places where the paddles begin.
            angles: (count,) directions.

        Returns:
            (count,) whether there was room.
        """
        settings, margin = self.settings, self.margin[rows]
        along = direction(angles)
        heads = tails + settings.paddle_length * along
        begins, ends = tails - margin * along, heads + margin * along
        free = self._inside(rows, tails, heads)
        near = np.flatnonzero(free)  # the other steps matter only for these
        others = self.steps[rows[near], : slots.max(initial=0)]
        distances = _distances(begins[near, None], ends[near, None], others[:, :, 0], others[:, :, 1])
        touched = np.arange(distances.shape[1]) == follows[near, None]
        distances[touched] = np.inf
        free[near] = distances.min(axis=1, initial=np.inf) >= settings.clearance(margin[near])
        self.steps[rows[free], slots[free]] = np.stack([begins, ends], axis=1)[free]
        self.angles[rows[free], slots[free]] = angles[free]
        return free

    def _inside(self, rows: np.ndarray, *places: np.ndarray) -> np.ndarray:
        low = self.settings.frame(self.margin[rows])
        high = self.settings.image_size - low
        inside = [(low <= z.real) & (z.real <= high) & (low <= z.imag) & (z.imag <= high) for z in places]
        return np.logical_and.reduce(inside)

    def _can_turn(self, rows: np.ndarray, tails: np.ndarray, angles: np.ndarray, more: np.ndarray) -> np.ndarray:
        """Return whether, after a step, the frame leaves room to turn to one side.

        The room must suffice for `more` steps, or for as many steps as make a right angle.
        """
        turn, margin = _SHARP * np.pi / (2 * self.settings.continuity), self.margin[rows]
        sides = []
        for side in (-turn, turn):
            inside, angle, along = np.ones(len(rows), dtype=bool), angles, direction(angles)
            place = tails + (self.settings.paddle_length + margin) * along
            for number in range(math.ceil(np.pi / 2 / turn)):
                angle = angle + side
                along = direction(angle)
                tail, head = place + margin * along, place + (margin + self.settings.paddle_length) * along
                inside &= self._inside(rows, tail, head) | (number >= more)
                place = head + margin * along
            sides.append(inside)
        return sides[0] | sides[1]

    def grow(self, first: int, last: int, stride: int, rounds: int) -> np.ndarray:
        """Take the steps from `first` to `last`, each from the end of the step `stride` before.

        Turns are drawn until there is room for a turn. After several turns in vain, one or more steps are taken back;
        the more often this happens, the more steps.

        Args:
            first: number of the first step.
            last: number after the last step.
            stride: 1 for a new contour, which begins anywhere; 2 for two contours that take turns and have begun.
            rounds: turns drawn before a picture is given up.

        Returns:
            The numbers of the pictures that have all steps; the other pictures have none of these steps.
        """
        settings, rng = self.settings, self.rng
        begun = stride > 1
        rows = np.arange(len(self.margin))
        place, tries = np.full(len(rows), first), np.zeros(len(rows), int)
        furthest, failures = place.copy(), tries.copy()
        done = [rows[:0]]
        for _ in range(rounds):
            follows = np.where((place == first) & (not begun), place, place - stride)
            turns = np.interp(rng.random(len(rows)), _CUMULATIVE, _QUANTILES) / settings.continuity
            angles = self.angles[rows, follows] + turns
            along = direction(angles)
            tails = self.steps[rows, follows, 1] + self.margin[rows] * along
            if not begun:
                begins = place == first
                angles[begins] = rng.uniform(-np.pi, np.pi, size=begins.sum())
                tails[begins] = uniform(rng, 0, settings.image_size, begins.sum())
            open_ahead = self._can_turn(rows, tails, angles, (last - 1 - place) // stride)
            free = open_ahead.copy()
            free[open_ahead] = self.add(*(part[open_ahead] for part in (rows, place, follows, tails, angles)))
            place += free
            tries = np.where(free, 0, tries + 1)
            stuck = tries == _TRIES
            failures = np.where(place > furthest, 0, failures + stuck)
            furthest = np.maximum(place, furthest)
            back = stride * rng.geometric(_BACK / (1 + failures / _PATIENCE))
            place = np.where(stuck, np.maximum(place - back, first), place)
            tries[stuck] = 0
            behind = np.arange(first, last) >= place[stuck, None]
            self.steps[rows[stuck], first:last] = np.where(
                behind[..., None], FAR_AWAY, self.steps[rows[stuck], first:last]
            )
            going = place < last
            done.append(rows[~going])
            rows, place, tries = rows[going], place[going], tries[going]
            furthest, failures = furthest[going], failures[going]
            if not len(rows):
                break
        self.steps[rows, first:last] = FAR_AWAY
        return np.sort(np.concatenate(done))


def direction(angle: np.ndarray) -> np.ndarray:
    """Return the complex number of length 1 at an angle."""
    return np.exp(1j * angle)


def uniform(rng: np.random.Generator, low: float, high: float, count: int) -> np.ndarray:
    """Draw places in a square."""
    return rng.uniform(low, high, size=count) + 1j * rng.uniform(low, high, size=count)


def _distances(p: np.ndarray, q: np.ndarray, r: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return the distance between the line from p to q and the line from r to s."""
    first, second = q - p, s - r
    # Turned and shifted, a line lies on the real axis, from 0 to its length.
    length, other_length = np.abs(first), np.abs(second)
    r_seen, s_seen = (r - p) * (first.conj() / length), (s - p) * (first.conj() / length)
    p_seen, q_seen = (p - r) * (second.conj() / other_length), (q - r) * (second.conj() / other_length)
    crossing = (r_seen.imag * s_seen.imag < 0) & (p_seen.imag * q_seen.imag < 0)
    nearest = np.minimum(
        np.minimum(_to_line(r_seen, length), _to_line(s_seen, length)),
        np.minimum(_to_line(p_seen, other_length), _to_line(q_seen, other_length)),
    )
    return np.where(crossing, 0.0, np.sqrt(nearest))


def _to_line(point: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return the squared distance from a point to the real axis between 0 and `length`."""
    along = point.real - np.clip(point.real, 0, length)
    return along * along + point.imag * point.imag
