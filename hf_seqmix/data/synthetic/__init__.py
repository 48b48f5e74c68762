"""Synthetic tasks that test one ability each: recall, copying, repetition, counting, and known functions."""

from .counting import running_count
from .distant_recall import changing_recall, noisy_recall
from .recall import associative_recall, lagged_copy
from .repetition import rare_word_repetition
from .separation import SeparationTask
from .separation_tasks import SEPARATION_TASKS, separation_task

__all__ = [
    "SEPARATION_TASKS",
    "SeparationTask",
    "associative_recall",
    "changing_recall",
    "lagged_copy",
    "noisy_recall",
    "rare_word_repetition",
    "running_count",
    "separation_task",
]
