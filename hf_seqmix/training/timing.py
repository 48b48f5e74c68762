"""What the timing scripts share: clocks, interleaved rounds, fresh processes, and peak memory."""

import itertools
import json
import logging
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

__all__ = [
    "Clock",
    "Timed",
    "TokenClock",
    "forward_backward",
    "in_fresh_process",
    "interleave",
    "medians_ms",
    "peak_bytes",
    "relative_error",
    "saved_bytes",
    "slope",
]

WARM_UP = 2  # the first rounds allocate and plan
FEWEST = 3  # rounds of which there is a median
PROFILES = 5  # attempts at a whole record of allocations
QUEUED_CYCLES = 20_000_000  # of a GPU, about 10 ms
MARK = 12_345  # bytes, of no tensor


class Clock:
    """Seconds between two marks: thread CPU time on one CPU thread, wall time on several, device events on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    @property
    def kind(self) -> str:
        """What is measured."""
        if self.device.type == "cuda":
            return "device time"
        return "thread CPU time" if self.now is time.thread_time else "wall time"

    def mark(self) -> Any:
        """Take a mark."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return self.now()

    def begin(self) -> Any:
        """Take the first mark of a measurement.

        A GPU waits before the mark until what is measured is queued. Short work would otherwise be measured by how
        fast a CPU launches kernels, which a training step hides behind the work before it.
        """
        if self.device.type == "cuda":
            torch.cuda._sleep(QUEUED_CYCLES)
        return self.mark()

    def between(self, first: Any, second: Any) -> float:
        """Return the seconds from one mark to another."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            return first.elapsed_time(second) / 1000
        return second - first


class TokenClock(StoppingCriteria):
    """Take the time after every token that `generate()` makes, and stop nothing.

    Args:
        device: of the model; a GPU is waited for.
        now: the clock; None for the time of the thread where a CPU has one thread alone, so that other processes count
            less, else wall time.
    """

    def __init__(self, device: torch.device, now: Callable[[], float] | None = None) -> None:
        self.device = device
        own = device.type == "cpu" and torch.get_num_threads() == 1
        self._now = now or (time.thread_time if own else time.perf_counter)
        self._marks = [self._now()]

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return that no row of (batch, length) stops here."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self._marks.append(self._now())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    @property
    def seconds(self) -> list[float]:
        """Seconds of each token; those of the first begin where the clock is made."""
        return [after - before for before, after in itertools.pairwise(self._marks)]


Timed = Callable[[Clock], tuple[float, ...]]
"""Does its work once and returns seconds."""


def forward_backward(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor, parameters: Sequence[Tensor] = ()
) -> Timed:
    """Return what measures one call of `function(*inputs)`, and that call with its backward.

    Gradients of inputs and parameters are forgotten before the clock starts.
    """

    def once(clock: Clock) -> tuple[float, float]:
        for tensor in (*inputs, *parameters):
            tensor.grad = None
        begin = clock.begin()
        y = function(*inputs)
        middle = clock.mark()
        y.backward(upstream.to(y.dtype))
        end = clock.mark()
        return clock.between(begin, middle), clock.between(begin, end)

    return once


def interleave(
    candidates: Mapping[str, Timed], rounds: int, clock: Clock, budget: float | None = None, drawn: bool = False
) -> dict[str, list[tuple[float, ...]]]:
    """Run every candidate once a round, in an order that rotates, so that none always meets a warm cache.

    A candidate may suffer from what the one before it left in caches and in the allocator. In a rotation of many that
    is always the same one; an order drawn anew in each round shares it out.

    Args:
        candidates: what is measured.
        rounds: how often, after two rounds that do not count.
        clock: handed to the candidates.
        budget: seconds after which no further round begins, once there are three that count; None for no limit.
        drawn: whether the order is drawn, the same in every run, instead of rotated.

    Returns:
        For each candidate, what it measured in each round that counts.
    """
    names = list(candidates)
    seconds: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    begin = time.perf_counter()
    draw = random.Random(0)
    for turn in range(rounds + WARM_UP):
        if budget is not None and turn >= WARM_UP + FEWEST and time.perf_counter() - begin > budget:
            break
        first = turn % len(names)
        order = draw.sample(names, len(names)) if drawn and len(names) > 2 else [*names[first:], *names[:first]]
        for name in order:
            measured = candidates[name](clock)
            if turn >= WARM_UP:
                seconds[name].append(measured)
    return seconds


def medians_ms(rounds: Sequence[tuple[float, ...]]) -> list[float]:
    """Return the median of each quantity over the rounds, in milliseconds."""
    return [1e3 * statistics.median(values) for values in zip(*rounds, strict=True)]


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a process that has run nothing, whose allocator remembers nothing.

    Where the system can, it is forked from a server that has imported the packages and no more. It logs as this one.
    """
    context: Any = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["hf_seqmix.analysis.plots.figures", "hf_seqmix.models.backbone"])
    loggers = {
        name: each for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)
    }
    levels = {name: each.level for name, each in loggers.items() if each.level}
    given = logging.root.level, levels, logging.root.hasHandlers()
    with ProcessPoolExecutor(1, mp_context=context, initializer=_log_like, initargs=given) as fresh:
        return fresh.submit(function, *arguments).result()


def _log_like(level: int, levels: Mapping[str, int], shown: bool) -> None:
    """Set the levels of the loggers of another process, and show what they say if that process does."""
    if shown:
        logging.basicConfig(format="%(message)s", level=level)
    for name, own in levels.items():
        logging.getLogger(name).setLevel(own)


def peak_bytes(function: Callable[[], Any], device: torch.device) -> int:
    """Return how many bytes of tensors are alive at most during a call, beyond those alive before it.

    On CPU from torch.profiler's record of every allocation and release, which sees the temporaries of operators but
    not what a library such as MKL allocates for itself; on a GPU from `max_memory_allocated`.
    """
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    for _ in range(PROFILES):
        changes = _allocations(function)
        if changes is not None:
            return max(itertools.accumulate(changes, initial=0))
    raise RuntimeError(
        f"the profiler lost the record of allocations {PROFILES} times; run this again on a quieter machine"
    )


def _allocations(function: Callable[[], Any]) -> list[int] | None:
    """Return the bytes that each allocation of a call takes, or gives back (negative); None for a partial record.

    The profiler drops what lies outside its window, and maps one clock to another when it starts: where the process is
    interrupted just then, a short call may be dropped in part or whole. A mark of a size of its own on either side
    tells.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler prints two lines a call otherwise
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        torch.empty(MARK, dtype=torch.uint8)
        function()
        torch.empty(MARK, dtype=torch.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    record = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda event: event["ts"])
    changes = [event["args"]["Bytes"] for event in record]
    if changes[:2] != [MARK, -MARK] or changes[-2:] != [MARK, -MARK]:
        return None
    return changes[2:-2]


def saved_bytes(function: Callable[..., Any], inputs: Sequence[Tensor], own: Sequence[Tensor] = ()) -> int:
    """Return how many bytes a call keeps for its backward pass, each piece of memory once.

    Args:
        function: called with the inputs.
        inputs: tensors, which count where they are kept.
        own: tensors that do not, such as the parameters of a module.
    """
    mine = {tensor.untyped_storage().data_ptr() for tensor in own}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in mine:
            kept[place] = tensor  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = function(*inputs)
    del result
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def slope(lengths: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the exponent of a quantity in the length, by least squares of the logarithms; None for one length."""
    x, y = ([math.log(number) for number in numbers] for numbers in (lengths, values))
    if len(set(x)) < 2:
        return None
    return statistics.linear_regression(x, y).slope


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over the norm of `expected`, in float64."""
    expected = expected.double()
    return ((actual.double() - expected).norm() / expected.norm()).item()
