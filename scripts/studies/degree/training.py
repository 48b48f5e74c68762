"""Trains many small networks of one architecture at once: a batch of models, each with its rate and its data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hf_seqmix.analysis.stacked_nets import StackedNets

__all__ = ["FLOOR", "Schedule", "TrainedNets", "clipped", "train_nets"]

FLOOR = 1e-9
"""What smaller errors count as: less is rounding."""

Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""From a number of rows and a generator to inputs (rows, ...) and targets (rows,)."""

_STEPS_A_DRAW = 50


@dataclass(frozen=True)
class Schedule:
    """How each net is trained: Adam on the mean square error, fresh rows each step.

    Attributes:
        steps: updates.
        batch_size: rows an update.
        warmup: share of the steps in which the rate rises linearly; then it falls to 0 as a half cosine.
        clip: largest norm of a net's gradient.
        curve_points: how many times within the run the error is measured.
        eval_rows: of the held-out set.
    """

    steps: int = 2000
    batch_size: int = 128
    warmup: float = 0.05
    clip: float = 1.0
    curve_points: int = 20
    eval_rows: int = 4096


@dataclass(frozen=True)
class TrainedNets:
    """What training gave, in the order of the nets.

    Attributes:
        errors: (nets,), mean square error over the target's mean square, on test rows after the last step.
        curve_steps: updates done when the error was measured.
        curves: (nets, points), the error then, on validation rows.
    """

    errors: Tensor
    curve_steps: list[int]
    curves: Tensor


def train_nets(
    nets: Sequence[nn.Module], rates: Sequence[float], seeds: Sequence[int], draw: Draw, schedule: Schedule
) -> TrainedNets:
    """Train nets of one architecture side by side; a net that diverges only spoils itself.

    Args:
        nets: (inputs) -> (rows, 1), of one architecture; they are left untouched.
        rates: learning rate of each.
        seeds: of each net's rows; nets of equal seed see the same rows.
        draw: the task.
        schedule: of all nets.
    """
    stacked = StackedNets(nets, betas=(0.9, 0.99), clip=schedule.clip)
    rate = torch.tensor(rates)
    distinct = sorted(set(seeds))
    index = torch.tensor([distinct.index(seed) for seed in seeds])
    generators = [torch.Generator().manual_seed(1000 + seed) for seed in distinct]
    validation, test = (draw(schedule.eval_rows, torch.Generator().manual_seed(seed)) for seed in (7, 8))

    def measure(rows: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = rows
        total = torch.zeros(len(nets))
        for part, target in zip(inputs.split(512), targets.split(512), strict=True):
            total += (stacked.outputs(part).squeeze(-1) - target).square().sum(dim=1)
        return total / targets.square().sum()

    points = {max(1, round(schedule.steps * k / schedule.curve_points)) for k in range(1, schedule.curve_points + 1)}
    curve_steps, curves = [0], [measure(validation)]
    for step in range(1, schedule.steps + 1):
        place = (step - 1) % _STEPS_A_DRAW
        if place == 0:  # rows of many steps at once: a draw costs as much as a step
            drawn = [draw(_STEPS_A_DRAW * schedule.batch_size, generator) for generator in generators]
            rows, values_of_rows = (torch.stack(part) for part in zip(*drawn, strict=True))
        chosen = slice(place * schedule.batch_size, (place + 1) * schedule.batch_size)
        inputs, targets = rows[:, chosen][index], values_of_rows[:, chosen][index]
        stacked.update(inputs, targets[..., None], rate * _factor(step, schedule))
        if step in points:
            curve_steps.append(step)
            curves.append(measure(validation))
    return TrainedNets(measure(test), curve_steps, torch.stack(curves, dim=1))


def _factor(step: int, schedule: Schedule) -> float:
    warm = schedule.warmup * schedule.steps
    if step <= warm:
        return step / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / (schedule.steps - warm)))


def clipped(error: float | None) -> float:
    """Return an error between `FLOOR` and 1, that of the mean; what diverged counts as 1."""
    return 1.0 if error is None or not math.isfinite(error) else min(1.0, max(FLOOR, error))
