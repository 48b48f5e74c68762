"""The error of a run that has diverged, and what the user can do then."""

from pathlib import Path
from typing import Any

from ..optimizers import MUON

__all__ = ["DivergenceError", "advice"]


class DivergenceError(ArithmeticError):
    """A training run has diverged.

    Args:
        message: what to tell the user.
        step: at which update.
        seen: what is wrong.
    """

    def __init__(self, message: str, step: int, seen: str) -> None:
        super().__init__(message)
        self.step = step
        self.seen = seen


def advice(
    error: DivergenceError,
    args: Any,
    *,
    lowered: int,
    scale: float,
    stops: bool,
    good: Path | None,
    aside: list[Path],
) -> str:
    """Return a message that says what to change and where to go on.

    Args:
        error: says what happened, and where.
        args: the training arguments.
        lowered: how often the learning rates were lowered before.
        scale: what the learning rates were multiplied by in all.
        stops: whether the run was to stop at the first divergence.
        good: the last checkpoint before the trouble, if there is one.
        aside: later checkpoints, which were renamed.
    """
    tried = f" The learning rate had been lowered {lowered} times, to {scale:g} times that given." if lowered else ""
    rates = f"given: {args.learning_rate:g}"
    if getattr(args, "optim", None) == MUON:
        rates += f"; of hidden matrices --muon-learning-rate, given: {args.muon_learning_rate:g}"
    by_itself = " --on-divergence back-off lowers the rate by itself." if stops else ""
    found = f"The last good checkpoint is {good}." if good else "No checkpoint precedes the trouble."
    lower = (
        " With --resume a run keeps the rates of its checkpoint: to lower them, train on by --model with the "
        "checkpoint and another --output-dir, or anew with --overwrite-output-dir."
        if good
        else ""
    )
    others = f" Later ones were renamed to {', '.join(path.name for path in aside)}." if aside else ""
    return (
        f"{error}.{tried} Lower --learning-rate ({rates}), warm up for longer (--warmup-steps, given: "
        f"{args.warmup_steps}), clip gradients (--max-grad-norm, given: {args.max_grad_norm:g}), or choose another "
        f"norm_type.{by_itself} {found}{others}{lower}"
    )
