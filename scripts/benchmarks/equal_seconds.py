"""Updates that take several models equal seconds, by timing their updates in turns.

A budget that each run turns into updates by a trial of its own depends on what the machine did in that minute. Medians
of trials in turns put all models under the same conditions.
"""

import logging
import re
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hf_seqmix._files import write_json
from hf_seqmix.training.tables import markdown_table

from .jobs import RATES, Job, train
from .run_costs import trial_of
from .state import read_state

TIMINGS = "timings.json"
"""File of an output folder: kind of a job -> seconds of an update in each trial. A resumed benchmark reads it."""
_FORMER = re.compile(r"(?:causal|masked)/seconds/(?P<model>[^/]+)/factor-[^/]+/seed-\d+(?=-\w+$)")
"""How `leaderboard` named kinds, one a first seed, before it named them by their models."""
UPDATES = 25
"""Of a trial, of which the median counts."""

COLUMNS = {
    "name": "model",
    "median": "s/update:.4f",
    "low": "least:.4f",
    "high": "most:.4f",
}

logger = logging.getLogger("run_benchmarks")


def updates_in(
    seconds: float,
    jobs: Sequence[Job],
    rounds: int,
    output_dir: Path,
    settings: str = "--training",
    rival: str | None = None,
) -> dict[str, int]:
    """Return name of a job -> the updates that take it so many seconds; at least 1.

    Each round times `UPDATES` updates of every job, one job after the other, in a process of its own.

    Args:
        seconds: of CPU time on one thread, else of the wall.
        jobs: one a model, and named by it; their own lengths, rates and seeds do not matter.
        rounds: of trials, whose median counts.
        output_dir: of the benchmark. Its file `timings.json` keeps the trials. A job that is new there is timed beside
            all others, and its seconds are scaled by what the others need now and needed then.
        settings: options that updates depend on, for messages.
        rival: name of the job that each command with the same objective times, if there is one.

    Raises:
        ValueError: a trial failed, and its folder stays; or no job is one that the file holds, so that nothing would
            say how fast the machine is now.
    """
    path = output_dir / TIMINGS
    known = _read(path) if path.is_file() else {}
    trials = {_kind(job, output_dir): job for job in jobs}
    if known and not any(kind in known for kind in trials):
        raise ValueError(f"{path} holds {_others(known, trials, settings, rival)}, or give another --output-dir.")
    if any(kind not in known for kind in trials):
        now = _timed(trials, rounds, output_dir)
        shared = [statistics.median(known[kind]) / statistics.median(now[kind]) for kind in now if kind in known]
        scale = statistics.median(shared) if shared else 1.0
        known |= {kind: [scale * each for each in now[kind]] for kind in now if kind not in known}
        output_dir.mkdir(parents=True, exist_ok=True)
        write_json(path, known)
    return {job.name: max(1, round(seconds / statistics.median(known[kind]))) for kind, job in trials.items()}


def timings_table(output_dir: Path) -> str:
    """Return all trials of an output folder as a table: medians, the least and the most."""
    rows = [
        {"name": kind.rpartition("-")[0], "median": statistics.median(all_), "low": min(all_), "high": max(all_)}
        for kind, all_ in _read(output_dir / TIMINGS).items()
    ]
    return markdown_table(rows, COLUMNS)


def _read(path: Path) -> dict[str, list[float]]:
    known: dict[str, list[float]] = read_state(path, "updates are timed anew, and runs have other numbers of them")
    return {_FORMER.sub(r"\g<model>", kind): trials for kind, trials in known.items()}


def _others(known: Iterable[str], trials: Mapping[str, Job], settings: str, rival: str | None) -> str:
    """Return what the file holds, none of which is timed now, and what to do."""
    held = sorted({kind.rpartition("-")[0] for kind in known})
    if rival is not None and rival not in held:
        return (
            f"updates of {', '.join(held)}, and none of {rival}, which each command with this --objective times: "
            "give the --objective of then"
        )
    if same := [job.name for job in trials.values() if job.name in held]:
        return f"updates of {', '.join(same)} with other settings: give those of then ({settings})"
    return f"updates of other models alone, timed at another time: name one of these, too ({', '.join(held)})"


def _kind(job: Job, output_dir: Path) -> str:
    """Return the name of a job and what tells it from others of that name: all but its rates, seed and length."""
    trial = trial_of(job, UPDATES).portable(output_dir)
    alike = replace(trial, seed=0, training={**trial.training, **dict.fromkeys(RATES)})
    return f"{job.name}-{alike.digest[:8]}"


def _timed(trials: Mapping[str, Job], rounds: int, output_dir: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {kind: [] for kind in trials}
    for number in range(1, rounds + 1):
        for kind, job in trials.items():
            logger.info(f"round {number} of {rounds}: timing {UPDATES} updates of {job.name}")
            folder = output_dir / "costs" / kind
            shutil.rmtree(folder, ignore_errors=True)
            speed = train(trial_of(job, UPDATES), folder)
            if isinstance(speed, str):
                raise ValueError(f"updates of {job.name} could not be timed: {speed}")
            shutil.rmtree(folder, ignore_errors=True)
            found[kind].append(speed["seconds_per_update"])
    return found
