"""Synthetic tasks that test one ability each: recall, copying, repetition, and functions of known separation rank."""

from .recall import associative_recall, lagged_copy
from .repetition import rare_word_repetition
from .separation import SeparationTask
from .separation_tasks import SEPARATION_TASKS, separation_dataset, separation_task

__all__ = [
    "SEPARATION_TASKS",
    "SeparationTask",
    "associative_recall",
    "lagged_copy",
    "rare_word_repetition",
    "separation_dataset",
    "separation_task",
]
