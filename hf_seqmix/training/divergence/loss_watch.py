"""When a loss has exploded: a rule on the losses of updates, which noise, bumps and losses near zero do not meet."""

import math
import statistics
from collections import deque
from typing import Any

from torch import nn

__all__ = ["LossWatch", "uninformed_loss"]

HALF = 10
"""Updates over which the loss is smoothed, by the median."""

FACTOR = 1.5
UNKNOWN_FACTOR = 10.0
"""Times the level that the loss must exceed: that of a guess, or the start where nothing is known of a guess."""

FALLING = 0.95


class LossWatch:
    """Says at which update the training loss has exploded.

    The smoothed loss is the median over 10 updates. The loss has exploded when the smoothed loss has exceeded the
    ceiling for 20 updates, and is not below 0.95 times that of 10 updates before. So a loss that comes down again,
    after a bump or a change of data, is waited for.

    The ceiling is 1.5 times the level. The level is the loss of a model that has learned nothing: that of a uniform
    guess (log of the vocabulary or of the classes) once the smoothed loss has been below, or else the highest of that,
    of the first loss and of the first smoothed loss. So a classifier whose loss is near zero must not merely leave
    zero but do worse than a guess. A first smoothed loss of more than 10 times the first loss and that of a guess is
    an explosion of the first updates, and no level; less may be chance, since the first loss is that of one batch.
    Where the loss of a guess is unknown, as in regression, the ceiling is 10 times the first smoothed loss, and an
    explosion within the first 10 updates is not noticed. Nor is a run that falls back to a plateau below its level,
    such as that of frequencies of tokens.

    Args:
        uninformed: loss of a uniform guess, nats; None where unknown.
    """

    def __init__(self, uninformed: float | None = None) -> None:
        self.uninformed = uninformed
        self.recent: deque[float] = deque(maxlen=2 * HALF)
        self.first = self.start = self.best = math.inf
        self.step = self.calm = 0
        """The last update, and the last whose smoothed loss was below the ceiling."""

    @property
    def ceiling(self) -> float:
        """What the smoothed loss must stay below; infinite before it has a start."""
        if self.uninformed is None:
            return UNKNOWN_FACTOR * self.start
        if self.start == math.inf:
            return UNKNOWN_FACTOR * max(self.first, self.uninformed)
        return FACTOR * (self.uninformed if self.best < self.uninformed else self.start)

    @property
    def is_calm(self) -> bool:
        """Whether neither the last loss nor the smoothed one exceeds the ceiling."""
        return self.calm == self.step and (not self.recent or self.recent[-1] <= self.ceiling)

    def see(self, step: int, loss: float) -> str | None:
        """Take the finite loss of an update; return what is wrong, or None."""
        self.step = step
        self.recent.append(loss)
        self.first = loss if self.first == math.inf else self.first
        losses = list(self.recent)
        if len(losses) < HALF:
            self.calm = step if loss <= self.ceiling else self.calm
            return None
        smoothed = statistics.median(losses[-HALF:])
        if self.start == math.inf:
            if self.uninformed is None:
                self.start = smoothed
            else:
                level = max(self.first, self.uninformed)
                self.start = level if smoothed > self.ceiling else max(level, smoothed)
        self.best = min(self.best, smoothed)
        if smoothed <= self.ceiling:
            self.calm = step
            return None
        if step - self.calm < 2 * HALF or smoothed < FALLING * statistics.median(losses[:HALF]):
            return None
        return (
            f"the training loss has been about {smoothed:.4g} over {HALF} updates and does not fall; the best was "
            f"{self.best:.4g}, and more than {self.ceiling:.4g} counts as exploded"
        )

    def good_until(self) -> int:
        """Return the last update after which the weights were good, now that trouble has been seen.

        Weights after an update are good if the loss of the next update, the first that shows them, did not exceed the
        ceiling. An explosion passes the median with a delay of half its width.
        """
        last = self.step
        for loss in reversed(self.recent):
            if loss <= self.ceiling:
                break
            last -= 1
        return max(min(last, self.calm if self.calm == self.step else self.calm - HALF // 2) - 1, 0)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, JSON-ready."""
        known = self.start < math.inf
        return {
            "recent": list(self.recent),
            "first": self.first if self.first < math.inf else None,
            "start": self.start if known else None,
            "best": self.best if known else None,
            "step": self.step,
            "calm": self.calm,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.recent = deque(state["recent"], maxlen=2 * HALF)
        first = state.get("first")  # which earlier versions did not write
        self.first = math.inf if first is None else first
        self.start = math.inf if state["start"] is None else state["start"]
        self.best = math.inf if state["best"] is None else state["best"]
        self.step, self.calm = state["step"], state["calm"]


def uninformed_loss(model: nn.Module) -> float | None:
    """Return the loss of a uniform guess, nats: log of the vocabulary or of the number of classes; None if unknown."""
    config, kind = getattr(model, "config", None), getattr(model, "loss_type", None)
    if kind in ("ForCausalLM", "ForMaskedLM"):
        vocabulary = getattr(config, "vocab_size", None)
        return math.log(vocabulary) if vocabulary else None
    if kind in ("ForSequenceClassification", "ForTokenClassification", "ForImageClassification"):
        labels, problem = getattr(config, "num_labels", 1), getattr(config, "problem_type", None)
        if problem == "regression" or labels < 2:
            return None
        return math.log(2 if problem == "multi_label_classification" else labels)
    return None
