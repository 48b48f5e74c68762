"""What the timing scripts share: a clock, interleaved rounds, fresh processes, peak memory, and reports on disk."""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_seqmix.analysis import markdown_table, run_environment
from hf_seqmix.data import write_json

__all__ = [
    "Clock",
    "Timed",
    "forward_backward",
    "in_fresh_process",
    "interleave",
    "medians_ms",
    "peak_bytes",
    "relative_error",
    "write_report",
]

WARM_UP = 2  # the first rounds allocate and plan

PRIVATE_ARGUMENTS = {"output_dir", "run"}


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

    def between(self, first: Any, second: Any) -> float:
        """Return the seconds from one mark to another."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            return first.elapsed_time(second) / 1000
        return second - first


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
        begin = clock.mark()
        y = function(*inputs)
        middle = clock.mark()
        y.backward(upstream.to(y.dtype))
        end = clock.mark()
        return clock.between(begin, middle), clock.between(begin, end)

    return once


def interleave(candidates: Mapping[str, Timed], rounds: int, clock: Clock) -> dict[str, list[tuple[float, ...]]]:
    """Run every candidate once a round, in an order that rotates, so that none always meets a warm cache.

    Returns:
        For each candidate, what it measured in each round after the first two.
    """
    names = list(candidates)
    seconds: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    for turn in range(rounds + WARM_UP):
        first = turn % len(names)
        for name in [*names[first:], *names[:first]]:
            measured = candidates[name](clock)
            if turn >= WARM_UP:
                seconds[name].append(measured)
    return seconds


def medians_ms(rounds: Sequence[tuple[float, ...]]) -> list[float]:
    """Return the median of each quantity over the rounds, in milliseconds."""
    return [1e3 * statistics.median(values) for values in zip(*rounds, strict=True)]


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a new interpreter: the allocator remembers what ran before it in an old one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(function, *arguments).result()


def peak_bytes(function: Callable[[], Any], device: torch.device) -> int:
    """Return how many bytes of tensors are alive at most during a call, beyond those alive before it.

    On CPU from torch.profiler's record of every allocation and release, which sees the temporaries of operators but not
    what a library such as MKL allocates for itself; on a GPU from `max_memory_allocated`.
    """
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    alive = peak = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        alive += event["args"]["Bytes"]
        peak = max(peak, alive)
    return peak


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over the norm of `expected`, in float64."""
    expected = expected.double()
    return ((actual.double() - expected).norm() / expected.norm()).item()


def write_report(
    arguments: argparse.Namespace,
    stem: str,
    sections: Sequence[tuple[str, Sequence[Mapping[str, Any]], Mapping[str, str]]],
    **more: Any,
) -> Path:
    """Write `stem`.json and `stem`.md into the output folder and print the tables.

    Args:
        arguments: of the command line; recorded, but for the folder.
        stem: name of the files.
        sections: (title, rows, columns as `markdown_table` takes them); rows of all go to the JSON.
        **more: further entries of the JSON.

    Returns:
        The folder.
    """
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    environment = run_environment()
    environment.pop("command")  # holds paths of this machine
    text = "\n\n".join(f"{title}\n\n{markdown_table(rows, columns)}" for title, rows, columns in sections)
    print(text)
    payload = {
        "rows": [row for _, rows, _ in sections for row in rows],
        "arguments": {name: value for name, value in vars(arguments).items() if name not in PRIVATE_ARGUMENTS},
        "environment": environment,
    }
    write_json(folder / f"{stem}.json", payload | more)
    temporary = folder / f".{stem}.md.tmp"
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(folder / f"{stem}.md")
    return folder
