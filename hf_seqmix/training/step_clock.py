"""How fast a `Trainer` makes its updates, and how much memory that takes."""

import statistics
import sys
import time
from typing import Any

import torch
from transformers import TrainerCallback

from .budget import training_clock

__all__ = ["StepClock"]


class StepClock(TrainerCallback):
    """Measures the updates of a run: from the first forward pass to the optimizer's step, the accelerator waited for.

    Loading data, evaluations and checkpoints are not counted. The median tells of a machine that was busy with
    something else for a part of the run less than the mean would; a machine that was busy throughout needs to be
    known.
    """

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._of_budget: list[float] = []
        self._clock = training_clock()
        self._begin = self._begin_of_budget = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Note when the update begins."""
        self._begin, self._begin_of_budget = _now(), self._clock()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Note how long the update took."""
        self._seconds.append(_now() - self._begin)
        self._of_budget.append(self._clock() - self._begin_of_budget)

    def measured(self) -> dict[str, Any]:
        """Return what was measured in this process, JSON-ready.

        Returns:
            `steps_per_second`, one over the median seconds of an update, None where none was made;
            `seconds_per_update`, the same median as `training_clock` counts, which on one thread other work does not
            touch;
            `peak_memory_bytes`, the most that was allocated on the accelerator (since the trial of a budget, if there
            was one), or else resident, since the process began, so that evaluations and (of a process) its data count,
            too; None where the system does not say;
            `memory_of`, "device" or "process".
        """
        on_device = torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0
        return {
            "steps_per_second": 1 / statistics.median(self._seconds) if self._seconds else None,
            "seconds_per_update": statistics.median(self._of_budget) if self._of_budget else None,
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if on_device else _peak_resident(),
            "memory_of": "device" if on_device else "process",
        }


def _now() -> float:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def _peak_resident() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    # Linux counts kibibytes, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
