"""What runs will cost, timed by a few updates of each kind of job before any of them starts."""

import argparse
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hf_seqmix.training import merge_recipes
from hf_seqmix.training.tables import markdown_table

from .jobs import RATES, REPLACED, Job, train

TRIAL_UPDATES = 5  # timed to tell what a run will cost: the median leaves the first, slow ones out
_SHORT: dict[str, Any] = {
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
}
TRIALS: dict[str, dict[str, dict[str, Any]]] = {
    "finetune.py": {"data": {"max_train_samples": 1000, "max_eval_samples": 2}, "training": _SHORT},
    "pretrain.py": {"data": {"max_eval_blocks": 1}, "training": _SHORT},
}
"""What takes the place of the length of a run where only its speed is asked for."""

COSTS = {
    "run": "run",
    "updates": "updates:,",
    "seconds_per_update": "s/update:.3g",
    "hours": "hours:.2f",
    "peak_memory_mib": "peak MiB:,.0f",
}

logger = logging.getLogger("run_benchmarks")


def state_costs(arguments: argparse.Namespace, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Time a few updates of each kind of job, say what all of them take, and return that as rows.

    Jobs that differ in their seed and learning rates alone are timed once. Evaluations are not counted.
    """
    if not jobs:
        return []
    rows: list[dict[str, Any]] = []
    known: dict[str, dict[str, Any]] = {}
    for job in jobs:
        kind = replace(job.run, seed=0, training={**job.run.training, **dict.fromkeys(RATES)}).digest
        if kind not in known:
            logger.info(f"timing {TRIAL_UPDATES} updates of {job.name}")
            folder = arguments.output_dir / "costs" / job.name
            shutil.rmtree(folder, ignore_errors=True)
            found = train(trial_of(job, TRIAL_UPDATES), folder)
            shutil.rmtree(folder, ignore_errors=True)
            known[kind] = {} if isinstance(found, str) else found
        speed = known[kind].get("train", known[kind])
        per_second, memory = speed.get("steps_per_second"), speed.get("peak_memory_bytes")
        seconds = 1 / per_second if per_second else None
        budget = sum(stage.run.training.get("max_seconds") or 0 for stage in (job, job.before) if stage) or None
        total = budget or (seconds * job.updates if seconds and job.updates else None)
        rows.append(
            {
                "run": job.name,
                "updates": job.updates,
                "seconds_per_update": seconds,
                "hours": total / 3600 if total else None,
                "peak_memory_mib": memory / 2**20 if memory else None,
            }
        )
    hours = sum(row["hours"] or 0 for row in rows)
    print(f"{markdown_table(rows, COSTS)}\n\n{hours:.1f} hours in all on this machine, evaluations not counted.")
    return rows


def trial_of(job: Job, updates: int) -> Job:
    """Return a job cut to a few updates, without the stage before it: what is timed.

    Args:
        job: any.
        updates: that are made; the medians of `train` leave the first, slow ones out.
    """
    training = {name: value for name, value in job.run.training.items() if name not in REPLACED["max_steps"]}
    short = merge_recipes(TRIALS[job.script], {"training": {"max_steps": updates}})
    sections = merge_recipes({"data": job.run.data}, {"training": training}, short)
    run = replace(job.run, data=sections["data"], training=sections["training"])
    return replace(job, run=run, probe=None, before=None)
