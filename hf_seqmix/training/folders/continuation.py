"""From which checkpoint a resumed run goes on, and what its user is told."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import TrainingArguments

from .checkpoints import choose_checkpoint, fault_of, last_complete_checkpoint, later_checkpoints, written_by

__all__ = ["given_checkpoint", "newest_checkpoint", "shares_as_steps"]


def newest_checkpoint(arguments: TrainingArguments) -> tuple[str | None, str]:
    """Return the newest whole checkpoint of a run, None if it has none yet, and a line for the user.

    Raises:
        ValueError: the run has checkpoints, and none is whole.
    """
    folder = str(arguments.output_dir)
    checkpoint, passed_over = choose_checkpoint(folder, needs_best=arguments.load_best_model_at_end)
    if checkpoint is None:
        return None, f"No checkpoint in {folder}: starting anew"
    faults = "".join(f"; passed over {path.name}: {fault}" for path, fault in passed_over.items())
    return str(checkpoint), f"Continuing from {checkpoint}{faults}{_other_processes(checkpoint, arguments)}"


def given_checkpoint(resume_from: str, arguments: TrainingArguments) -> tuple[str, str]:
    """Return a given checkpoint, which must be whole, and a line for the user.

    `ResumableTrainer.train` sets aside the later ones of the run.

    Raises:
        ValueError: the checkpoint is not whole.
    """
    folder = str(arguments.output_dir)
    if (fault := fault_of(resume_from)) is not None:
        other = last_complete_checkpoint(folder)
        advice = f"The newest whole one of this run is {other}" if other else "This run has no whole one"
        raise ValueError(f"the checkpoint {resume_from} cannot be continued from: {fault}. {advice}.")
    later = later_checkpoints(folder, resume_from)
    names = f"; later ones are renamed: {', '.join(path.name for path in later)}" if later else ""
    return resume_from, f"Continuing from {resume_from}{names}{_other_processes(Path(resume_from), arguments)}"


@contextmanager
def shares_as_steps(arguments: TrainingArguments, max_steps: int) -> Iterator[None]:
    """Have arguments that are shares of a run as numbers of updates, which checkpoints hold.

    The library compares the two, and would warn that each share has changed.
    """
    names = ("logging_steps", "eval_steps", "save_steps")
    shares = {name: value for name in names if 0 < (value := getattr(arguments, name) or 0) < 1}
    for name, share in shares.items():
        setattr(arguments, name, math.ceil(max_steps * share))
    try:
        yield
    finally:
        for name, share in shares.items():
            setattr(arguments, name, share)


def _other_processes(checkpoint: Path, arguments: TrainingArguments) -> str:
    before = written_by(checkpoint)
    if before in (None, arguments.world_size):
        return ""
    return f"; {before} processes wrote it, now {arguments.world_size} go on: data and dropout will be others"
