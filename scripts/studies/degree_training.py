"""Trains many small networks of one architecture at once: a batch of models, each with its rate and its data."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

__all__ = ["FLOOR", "Schedule", "TrainedNets", "clipped", "train_nets"]

FLOOR = 1e-9
"""What smaller errors count as: less is rounding."""

Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""From a number of rows and a generator to inputs (rows, ...) and targets (rows,)."""

_STEPS_A_DRAW = 50
_BETAS, _EPS = (0.9, 0.99), 1e-8  # of Adam


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
    parameters, buffers = stack_module_state(list(nets))  # type: ignore[arg-type]
    skeleton = copy.deepcopy(nets[0]).to("meta")
    values = {name: value.detach().clone() for name, value in parameters.items()}
    moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in values.items()}
    rate = torch.tensor(rates)
    distinct = sorted(set(seeds))
    index = torch.tensor([distinct.index(seed) for seed in seeds])
    generators = [torch.Generator().manual_seed(1000 + seed) for seed in distinct]
    validation, test = (draw(schedule.eval_rows, torch.Generator().manual_seed(seed)) for seed in (7, 8))

    def predict(weights: dict[str, Tensor], buffer: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(skeleton, (weights, buffer), (inputs,)).squeeze(-1)

    def losses(weights: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return (vmap(predict)(weights, buffers, inputs) - targets).square().mean(dim=1)

    def measure(rows: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = rows
        with torch.no_grad():
            total = torch.zeros(len(nets))
            for part, target in zip(inputs.split(512), targets.split(512), strict=True):
                output = vmap(predict, in_dims=(0, 0, None))(values, buffers, part)
                total += (output - target).square().sum(dim=1)
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
        leaves = {name: value.requires_grad_() for name, value in values.items()}
        grads = torch.autograd.grad(losses(leaves, inputs, targets).sum(), list(leaves.values()))
        values = {name: value.detach() for name, value in values.items()}
        _adam(
            values, dict(zip(values, grads, strict=True)), moments, rate * _factor(step, schedule), step, schedule.clip
        )
        if step in points:
            curve_steps.append(step)
            curves.append(measure(validation))
    return TrainedNets(measure(test), curve_steps, torch.stack(curves, dim=1))


def _factor(step: int, schedule: Schedule) -> float:
    warm = schedule.warmup * schedule.steps
    if step <= warm:
        return step / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / (schedule.steps - warm)))


@torch.no_grad()
def _adam(
    values: dict[str, Tensor],
    grads: dict[str, Tensor],
    moments: dict[str, tuple[Tensor, Tensor]],
    rate: Tensor,
    step: int,
    clip: float,
) -> None:
    """Update each net once, in place, with its own rate (nets,) and the gradient clipped to its own norm."""
    squares = torch.stack([grad.flatten(1).square().sum(dim=1) for grad in grads.values()]).sum(dim=0)
    shrink = (clip / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    for name, grad in grads.items():
        shape = (-1, *[1] * (grad.ndim - 1))
        first, second = moments[name]
        grad = grad * shrink.view(shape)
        first.lerp_(grad, 1 - _BETAS[0])
        second.lerp_(grad.square(), 1 - _BETAS[1])
        scale = (second / (1 - _BETAS[1] ** step)).sqrt_().add_(_EPS)
        values[name].sub_(rate.view(shape) * (first / (1 - _BETAS[0] ** step)) / scale)


def clipped(error: float | None) -> float:
    """Return an error between `FLOOR` and 1, that of the mean; what diverged counts as 1."""
    return 1.0 if error is None or not math.isfinite(error) else min(1.0, max(FLOOR, error))
