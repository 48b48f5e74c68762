"""The protocol of every timing: build a candidate, check it against an oracle, time all candidates in turn.

No speed is printed of a candidate whose output or gradients differ from those of its oracle.
"""

import math
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_seqmix import __version__
from hf_seqmix.training.timing import (
    Clock,
    Timed,
    forward_backward,
    interleave,
    medians_ms,
    peak_bytes,
    relative_error,
    saved_bytes,
)

__all__ = [
    "Call",
    "Candidate",
    "Oracle",
    "Time",
    "WrongResultError",
    "check",
    "check_all",
    "machine",
    "time_in_turn",
    "values",
]

Values = tuple[Tensor, ...]


class WrongResultError(RuntimeError):
    """A candidate differs from its oracle: nothing is timed."""


class Time:
    """The time that a command may take.

    Args:
        minutes: from now on; None for any time.
    """

    def __init__(self, minutes: float | None) -> None:
        self._end = None if minutes is None else time.monotonic() + 60 * minutes

    def is_over(self) -> bool:
        """Return whether nothing further should begin."""
        return self._end is not None and time.monotonic() >= self._end


class Call(NamedTuple):
    """What a candidate computes: `function(*inputs)` and the gradients of inputs and parameters."""

    function: Callable[..., Tensor]
    inputs: Sequence[Tensor]
    upstream: Tensor
    parameters: Sequence[Tensor] = ()


class Oracle(NamedTuple):
    """What a candidate is compared with: its values, those that are right, and the largest relative error allowed."""

    name: str
    actual: Callable[[], Values]
    expected: Callable[[], Values]
    bound: float


@dataclass(frozen=True)
class Candidate:
    """Something that is checked and timed.

    Attributes:
        name: what tables call it.
        build: makes the call, with its inputs.
        oracles: makes what the candidate is compared with.
        active: context under which the candidate is computed, such as a forced implementation.
        optional: a candidate that fails is left out and named; without it, a failure ends the run.
    """

    name: str
    build: Callable[[], Call]
    oracles: Callable[[], Sequence[Oracle]]
    active: Callable[[], AbstractContextManager[Any]] = nullcontext
    optional: bool = False


def values(function: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor) -> Values:
    """Return an output and the gradient of each input."""
    y = function(*inputs)
    return y.detach(), *torch.autograd.grad(y, inputs, upstream.to(y.dtype))


def machine(device: str) -> dict[str, str]:
    """Return what figures depend on besides settings: the processor or card, and versions."""
    is_cuda = torch.device(device).type == "cuda"
    name = torch.cuda.get_device_name(device) if is_cuda else _processor()
    return {"machine": name, "torch": torch.__version__, "hf_seqmix": __version__}


def _processor() -> str:
    """Return the name of the processor; its architecture where the system does not say."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def check(candidate: Candidate) -> float:
    """Return the largest relative error of a candidate against its oracles.

    Raises:
        WrongResultError: if an error is not below its bound.
    """
    worst = 0.0
    for oracle in candidate.oracles():
        with candidate.active():
            found = oracle.actual()
        errors = [relative_error(a, b) for a, b in zip(found, oracle.expected(), strict=True)]
        error = max(math.inf if math.isnan(each) else each for each in errors)
        if not error < oracle.bound:
            raise WrongResultError(
                f"{candidate.name} differs from {oracle.name}: relative error {error:.2g} (bound {oracle.bound})"
            )
        worst = max(worst, error)
    return worst


def check_all(candidates: dict[str, Candidate], where: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return each candidate's error, and why some were left out, which are taken out of `candidates`.

    Args:
        candidates: key -> candidate.
        where: operation and length, for messages.

    Raises:
        WrongResultError: if a candidate that is not optional is wrong.
    """
    errors: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name, candidate in list(candidates.items()):
        try:
            errors[name] = check(candidate)
        except Exception as error:
            if not candidate.optional:
                if isinstance(error, WrongResultError):
                    raise WrongResultError(f"{where}: {error}; nothing was timed") from error
                raise
            left_out[name] = f"{type(error).__name__}: {error}"[:300]
            print(f"{where}: {name} is left out: {left_out[name]}", file=sys.stderr)
            del candidates[name]
    return errors, left_out


def time_in_turn(
    candidates: Mapping[str, Candidate],
    rounds: int,
    clock: Clock,
    budget: float | None = None,
    drawn: bool = False,
    memory: bool = True,
) -> dict[str, Any]:
    """Time candidates in one rotation; take the memory that each keeps for backward, and its peak.

    Args:
        candidates: key -> candidate, checked.
        rounds: how often each candidate is timed.
        clock: that measures.
        budget: seconds after which no further round begins.
        drawn: whether the order of a round is drawn instead of rotated.
        memory: whether memory is measured, too.

    Returns:
        For each key "KEY_forward_ms" and "KEY_ms", medians, and with `memory` "KEY_saved_mib" and "KEY_peak_mib".
    """
    row: dict[str, Any] = {}
    timed: dict[str, Timed] = {}
    for name, candidate in candidates.items():
        call = candidate.build()
        timed[name] = _under(candidate, forward_backward(*call))
        if memory:
            with candidate.active():
                row[f"{name}_saved_mib"] = saved_bytes(call.function, call.inputs, call.parameters) / 2**20
            timed[name](clock)
            for tensor in (*call.inputs, *call.parameters):
                tensor.grad = None  # what is freed and made again would not count
            row[f"{name}_peak_mib"] = peak_bytes(partial(timed[name], clock), clock.device) / 2**20
    for name, seconds in interleave(timed, rounds, clock, budget, drawn).items():
        row[f"{name}_forward_ms"], row[f"{name}_ms"] = medians_ms(seconds)
    return row


def _under(candidate: Candidate, once: Timed) -> Timed:
    """Measure within the context of a candidate."""

    def call(clock: Clock) -> tuple[float, ...]:
        with candidate.active():
            return once(clock)

    return call
