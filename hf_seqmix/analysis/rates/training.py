"""Training of one architecture from several seeds at once, until its error no longer falls."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..stacked_nets import StackedNets
from .targets import Target, require_at_least

__all__ = ["Progress", "TrainSettings", "TrainedModel", "held_out_error", "train_on_target"]

Progress = Callable[[str, int, list[float]], None]
"""Called with what is trained, updates done, and the recent mean square error of each net."""

# Seeds of rows: the numbers that drew the weights must not draw the rows. Generators on CPUs take 32 bits of a seed.
_ROWS_SEED, _TEST_SEED = 2**30, 2**31
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class TrainSettings:
    """How nets are trained: Adam on the mean square error over fixed rows, until the error no longer falls.

    The plateau rule, for each net alone: its error is the mean over the batches of `check_every` updates. Once
    `patience` such errors in a row have not been below (1 - min_fall) times the least before them, the rate is divided
    by 10. In place of the division number `reductions` + 1, the net stops. `max_steps` stops all nets.

    Attributes:
        rows: training rows of each net.
        test_rows: held-out rows, the same for all nets.
        batch_size: rows an update.
        learning_rate: of Adam at first.
        check_every: updates.
        patience: errors without a fall.
        min_fall: a share of the least error.
        reductions: divisions of the rate.
        max_steps: updates at most.

    Raises:
        ValueError: a number is out of range.
    """

    rows: int = 8192
    test_rows: int = 4096
    batch_size: int = 64
    learning_rate: float = 1e-3
    check_every: int = 100
    patience: int = 5
    min_fall: float = 0.02
    reductions: int = 2
    max_steps: int = 20_000

    def __post_init__(self) -> None:
        for name in ("rows", "test_rows", "batch_size", "check_every", "patience", "max_steps"):
            require_at_least(**{name: (getattr(self, name), 1)})
        require_at_least(reductions=(self.reductions, 0))
        if not 0 < self.learning_rate < math.inf or not 0 <= self.min_fall < 1:
            raise ValueError(
                f"learning_rate is {self.learning_rate} and min_fall {self.min_fall}; give a positive rate, and a"
                " share from 0 to below 1."
            )


@dataclass(frozen=True)
class TrainedModel:
    """A model after training.

    Attributes:
        seed: of its weights and training rows.
        model: the model.
        train_error: mean square error on its training rows.
        test_error: the same on held-out rows.
        steps: updates until its rate was 0.
        has_stalled: whether the plateau rule ended its training, rather than `max_steps`.
    """

    seed: int
    model: nn.Module
    train_error: float
    test_error: float
    steps: int
    has_stalled: bool


def train_on_target(
    make_model: Callable[[], nn.Module],
    target: Target,
    settings: TrainSettings | None = None,
    seeds: Sequence[int] = (0,),
    progress: Progress | None = None,
    label: str = "",
) -> list[TrainedModel]:
    """Train an architecture on a target from several seeds, all nets as one batch of weights.

    A seed gives a net's weights, training rows and batches, so a net does not depend on its neighbors but for
    rounding. Rows have the dtype and device of the models.

    Args:
        make_model: makes a model, (batch, length, width) -> the shape of the target's outputs, with PyTorch's random
            numbers; dropout and other randomness of the forward pass are not supported.
        target: what is learned.
        settings: `TrainSettings()` by default.
        seeds: at least one, each once.
        progress: called after each `check_every` updates.
        label: first argument of `progress`.

    Raises:
        ValueError: the seeds are empty or repeated, or outputs have another shape than those of the target.
    """
    settings = settings or TrainSettings()
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds is {list(seeds)}; give at least one, each once.")
    stacked = StackedNets([_build(make_model, seed) for seed in seeds])
    like = next(iter(stacked.values.values()))
    generators = [torch.Generator().manual_seed(_ROWS_SEED + seed) for seed in seeds]
    drawn = [target.draw(settings.rows, generator, like.dtype) for generator in generators]
    inputs, outputs = (torch.stack(part).to(like.device) for part in zip(*drawn, strict=True))
    rule = _Plateaus(len(seeds), settings)
    which = torch.arange(len(seeds))[:, None]
    recent = torch.zeros(len(seeds), dtype=like.dtype, device=like.device)
    for step in range(1, settings.max_steps + 1):
        batch = [torch.randint(settings.rows, (settings.batch_size,), generator=each) for each in generators]
        chosen = which, torch.stack(batch)
        recent += stacked.update(inputs[chosen], outputs[chosen], rule.rates.to(like))
        if step % settings.check_every == 0:
            errors = (recent / settings.check_every).tolist()
            rule.look(errors, step)
            recent.zero_()
            if progress is not None:
                progress(label, step, errors)
            if not rule.rates.any():
                break
    shared = [part.expand(len(seeds), *part.shape) for part in _held_out(target, settings.test_rows, like)]
    found = zip(seeds, stacked.unstacked(), _errors(stacked, inputs, outputs), _errors(stacked, *shared), strict=True)
    return [
        TrainedModel(seed, model, train, test_error, rule.ends[i] or step, rule.ends[i] > 0)
        for i, (seed, model, train, test_error) in enumerate(found)
    ]


def held_out_error(model: nn.Module, target: Target, rows: int = TrainSettings.test_rows) -> float:
    """Return the mean square error of a model on the held-out rows of `train_on_target`.

    Args:
        model: (batch, length, width) -> the shape of the target's outputs; its mode, training or not, is kept.
        target: what the model is compared with.
        rows: held-out rows.

    Raises:
        ValueError: outputs have another shape than those of the target, or `rows` is below 1.
    """
    inputs, outputs = _held_out(target, rows, next(model.parameters()))
    with torch.no_grad():
        found = torch.cat([model(part) for part in inputs.split(_ROWS_AT_ONCE)])
    if found.shape != outputs.shape:
        raise ValueError(
            f"outputs have the shape {tuple(found.shape)} and targets {tuple(outputs.shape)}; give a model whose"
            " outputs have the shape of the target's."
        )
    return (found - outputs).double().square().mean().item()


class _Plateaus:
    """The rates of all nets by the plateau rule of `TrainSettings`."""

    def __init__(self, nets: int, settings: TrainSettings) -> None:
        self._settings = settings
        self._least = [math.inf] * nets
        self._stale = [0] * nets
        self._reductions = [0] * nets
        self.rates = torch.full((nets,), settings.learning_rate, dtype=torch.float64)
        self.ends = [0] * nets  # the last update; 0 while a net trains

    def look(self, errors: Sequence[float], step: int) -> None:
        for i, error in enumerate(errors):
            if self.ends[i]:
                continue
            # Not a number is no fall, so that a net that diverged stops.
            if error < (1 - self._settings.min_fall) * self._least[i]:
                self._least[i], self._stale[i] = error, 0
                continue
            self._stale[i] += 1
            if self._stale[i] < self._settings.patience:
                continue
            self._stale[i] = 0
            self._reductions[i] += 1
            self.rates[i] /= 10
            if self._reductions[i] > self._settings.reductions:
                self.rates[i], self.ends[i] = 0, step


def _build(make_model: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_model()


def _held_out(target: Target, rows: int, like: Tensor) -> list[Tensor]:
    """Return inputs and outputs of rows that no net trains on, with dtype and device of a tensor."""
    drawn = target.draw(rows, torch.Generator().manual_seed(_TEST_SEED), like.dtype)
    return [part.to(like.device) for part in drawn]


def _errors(stacked: StackedNets, inputs: Tensor, outputs: Tensor) -> list[float]:
    """Return the mean square error of each net on rows of its own, (nets, rows, ...)."""
    total = torch.zeros(len(stacked), dtype=torch.float64)
    for rows, wanted in zip(inputs.split(_ROWS_AT_ONCE, 1), outputs.split(_ROWS_AT_ONCE, 1), strict=True):
        total += (stacked.outputs(rows, shared=False) - wanted).double().square().flatten(1).sum(dim=1).cpu()
    return (total / outputs[0].numel()).tolist()
