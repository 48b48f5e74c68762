"""Options of `run_benchmarks.py leaderboard`: what they are by default, and which parts they are of."""

import argparse

from ..inputs import default_device
from .report import BUDGETS

PARTS = ("language", "tasks", "costs")

OPTIONS = {
    "budgets": ("language",),
    "max_seconds": ("language",),
    "evaluations": ("language",),
    "test_bytes": ("language",),
    "time_in_turns": ("language",),
    "rate_factors": ("language", "tasks"),
    "tasks": ("tasks",),
    "updates": ("tasks",),
    "lengths": ("costs",),
    "prompts": ("costs",),
    "rounds": ("costs",),
    "tokens": ("costs",),
    "device": ("costs",),
}
"""Option, None unless it is typed -> the parts that it is of."""

SECONDS = {"fast": 5.0, "reduced": 300.0}
UPDATES = {"fast": 5, "reduced": 1000}
"""Of a synthetic task."""
HELD_OUT = {"fast": 64, "reduced": 1000}
"""Rows of each case of a synthetic task."""
TEST_BYTES = {"fast": 4000, "reduced": 100_000}
LENGTHS = {"fast": ([64, 128], [64, 128]), "reduced": ([512, 2048, 8192], [2048, 16384])}
"""Tokens of rows in training, and of prompts in decoding."""
ROUNDS = {"fast": 1, "reduced": 5}


def refuse_unused(arguments: argparse.Namespace) -> None:
    """Refuse what was typed and is of parts that are not run.

    Raises:
        ValueError: there is such an option.
    """
    unused = [
        f"--{name.replace('_', '-')} (of {' and '.join(parts)})"
        for name, parts in OPTIONS.items()
        if getattr(arguments, name) is not None and not set(parts) & set(arguments.parts)
    ]
    if unused:
        raise ValueError(
            f"{', '.join(unused)} would have no effect with --parts {' '.join(arguments.parts)}: leave it out, or add "
            "its part."
        )


def fill_in(arguments: argparse.Namespace) -> None:
    """Give each option that was not typed what the size says."""
    size = arguments.size
    lengths, prompts = LENGTHS[size]
    defaults = {
        "budgets": list(BUDGETS),
        "max_seconds": SECONDS[size],
        "evaluations": 6,
        "test_bytes": TEST_BYTES[size],
        "time_in_turns": 2,
        "rate_factors": [0.5, 1.0, 2.0],
        "updates": UPDATES[size],
        "lengths": lengths,
        "prompts": prompts,
        "rounds": ROUNDS[size],
        "device": default_device(),
    }
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
