"""A budget of seconds as a number of updates."""

import copy
import gc
import itertools
import logging
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

__all__ = ["training_clock", "updates_of", "updates_within"]

WARM_UP, TIMED, FEW = 5, 20, 3
"""Updates of a trial: those that allocate and plan, those that count, and how few may count once the time is over."""

STEADY, MOST = 0.8, 8
"""On an accelerator a trial goes on while its median falls below this share of the one before, so many times at most.

Kernels are compiled for batches of new lengths: first updates of packed rows took five times as long as later ones.
"""


FAR = 1.5
"""A run whose updates take so many times as long as those of its trial, or so many times less, says so early."""

logger = logging.getLogger(__name__)


def training_clock() -> Callable[[], float]:
    """Return the clock of budgets: CPU time of the process on one thread, so that other work does not count.

    On an accelerator, several threads or several processes, which wait for each other, the clock is the wall's.
    """
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    processes = torch.distributed.get_world_size() if together else 1
    alone = processes == torch.get_num_threads() == 1 and not torch.accelerator.is_available()
    return time.process_time if alone else time.perf_counter


class _Marks(TrainerCallback):
    """Times the updates of a trial, and ends the trial when updates no longer get faster, or the seconds are over."""

    def __init__(self, seconds: float) -> None:
        self.clock = training_clock()
        self.seconds = seconds
        self.marks: list[float] = []
        self.medians: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        self.marks.append(self.clock())
        timed = len(self.marks) - WARM_UP - TIMED * len(self.medians)
        on_cpu = not torch.accelerator.is_available()
        if timed == TIMED or (on_cpu and timed >= FEW):
            each = [after - before for before, after in itertools.pairwise(self.marks[-timed - 1 :])]
            # All processes end with the first, which may find the seconds over where another does not.
            answer = [self._is_enough(statistics.median(each), on_cpu and timed == TIMED)]
            broadcast_object_list(answer)
            if answer[0] or timed == TIMED:
                self.medians.append(statistics.median(each))
            control.should_training_stop |= answer[0]

    def _is_enough(self, median: float, on_cpu: bool) -> bool:
        if on_cpu or self.marks[-1] - self.marks[0] >= self.seconds:
            return True  # enough of a trial, whatever the next updates take
        return bool(self.medians) and median >= STEADY * self.medians[-1]


class _SecondLook(TrainerCallback):
    """Says early in a run on a CPU that updates take another time than those of the trial, as beside other work."""

    def __init__(self, of_update: float, seconds: float) -> None:
        self.of_update, self.seconds = of_update, seconds

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        self.clock = training_clock()
        self.marks: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        if len(self.marks) > WARM_UP + TIMED:
            return
        self.marks.append(self.clock())
        if len(self.marks) <= WARM_UP + TIMED or not state.is_world_process_zero:
            return
        now = statistics.median(after - before for before, after in itertools.pairwise(self.marks[WARM_UP:]))
        takes = self.seconds * now / self.of_update
        if 1 / FAR < now / self.of_update < FAR or takes < 2 * (self.marks[-1] - self.marks[0]):
            return
        logger.warning(
            f"An update takes {now:.3g} seconds, and took {self.of_update:.3g} in the trial that set the number of "
            f"updates: the run will take about {takes:,.0f} seconds instead of {self.seconds:,g}, as other work began "
            "or ended since. For the time that was asked for, stop the run and begin anew."
        )


def updates_within(trainer: Trainer, seconds: float) -> int:
    """Return how many updates a `Trainer` makes in so many seconds; at least 1.

    A copy of the model is trained for 25 updates, or for 8 and more that take `seconds`. The median of their seconds
    counts, the loading of data with them, but neither evaluations nor checkpoints. A trainer with `trial_parts()`,
    shares of the run whose updates cost alike, has a trial of each. On an accelerator a trial goes on until updates
    get no faster, for at most 165 updates or about `seconds`. The number is a prediction: the run itself takes a
    little more or less. On a CPU the run says after 25 updates if they take 1.5 times as long as those of the trial,
    or as little. Weights, random numbers and data of the run are as if there had been no trial, and the memory of the
    trial is free again. The updates of a trial have a schedule of their own: that their losses diverge says nothing of
    the run. All processes get the number of the first.

    Args:
        trainer: before its training.
        seconds: as `training_clock` counts them.
    """
    alike: list[tuple[float, dict[str, Any]]] = [(1.0, {})]
    parts = getattr(trainer, "trial_parts", lambda: alike)()
    each = [_seconds_of_update(trainer, told, seconds) for _, told in parts]
    of_update = sum(share * taken for (share, _), taken in zip(parts, each, strict=True))
    if not torch.accelerator.is_available():
        trainer.add_callback(_SecondLook(each[0], seconds))
    answer = [max(1, round(seconds / of_update))]
    broadcast_object_list(answer)
    return answer[0]


def _seconds_of_update(trainer: Trainer, told: dict[str, Any], most: float) -> float:
    """Return the median seconds of the updates of a trial, which ends after `most` seconds.

    `told` is what the trainer of the trial is told besides.
    """
    arguments = copy.copy(trainer.args)
    arguments.max_steps = WARM_UP + TIMED * MOST
    arguments.save_strategy, arguments.eval_strategy = SaveStrategy.NO, IntervalStrategy.NO
    arguments.logging_strategy, arguments.report_to = IntervalStrategy.NO, []
    arguments.load_best_model_at_end = arguments.push_to_hub = arguments.eval_on_start = False
    arguments.disable_tqdm = True
    marks = _Marks(most)
    with _random_numbers_kept(), tempfile.TemporaryDirectory() as folder:
        arguments.output_dir = folder
        trial: Any = type(trainer)(
            model=copy.deepcopy(trainer.model),
            args=arguments,
            train_dataset=trainer.train_dataset,
            processing_class=trainer.processing_class,
            data_collator=trainer.data_collator,
            callbacks=[marks],
            **told,
        )
        trial.model_accepts_loss_kwargs = trainer.model_accepts_loss_kwargs
        trial.remove_callback(PrinterCallback)
        if (watch := getattr(trial, "divergence", None)) is not None:
            watch.on_divergence = "ignore"
        trial.train()
    del trial, watch
    gc.collect()  # a trainer and its callbacks name each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return marks.medians[-1]


def updates_of(checkpoint: str) -> int:
    """Return how many updates the run of a checkpoint was to make."""
    return TrainerState.load_from_json(f"{checkpoint}/trainer_state.json").max_steps


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(python)
    np.random.set_state(numpy)
