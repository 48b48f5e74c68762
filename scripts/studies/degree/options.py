"""The options of degree_experiment.py."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from hf_seqmix.training.command import CommandParser, positive, refuse_twice

from .nets import FORMS, NORMS

__all__ = ["LEGENDRE", "parse_arguments"]

TASKS = ("paired_product", "paired_product_control")
LEGENDRE = "legendre_products_"
"""What the degree of the target follows."""
MOST_DEGREE = 100
"""Of a target."""
TASKS_HELP = f"{', '.join(TASKS)}, or {LEGENDRE}N: a polynomial of degree N in two numbers, of rank N + 1"


def _task_name(text: str) -> str:
    degree = text.removeprefix(LEGENDRE)
    if text in TASKS or (degree != text and degree.isdecimal() and 0 < int(degree) <= MOST_DEGREE):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no task; give {TASKS_HELP}, N from 1 to {MOST_DEGREE}")


def parse_arguments(argv: Sequence[str], description: str | None) -> argparse.Namespace:
    """Read the command line.

    Args:
        argv: the command line.
        description: what --help says first.

    Raises:
        ValueError: if an argument makes no sense.
    """
    parser = CommandParser("degree_experiment.py", description=description)
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, meaning: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=meaning, description=meaning)
        command.add_argument("--threads", type=positive, default=1, help="CPU threads")
        return command

    train = add("train", "train nets of equal size")
    train.add_argument(
        "--form", required=True, choices=FORMS, help="nets of the whole input at once, or of a sequence of tokens"
    )
    train.add_argument(
        "--output-dir",
        required=True,
        type=Path,
        help="where results, tables and plots go; the same command goes on there",
    )
    train.add_argument("--tasks", nargs="+", default=list(TASKS), type=_task_name, help=TASKS_HELP)
    train.add_argument("--num-tokens", type=int, default=4, help="N of paired products, even")
    train.add_argument("--token-width", type=int, default=4, help="D of paired products; the rank to learn is D^(N/2)")
    train.add_argument("--width", type=int, default=20, help="channels of the layers")
    train.add_argument(
        "--budget",
        type=int,
        default=12,
        help="matrices of width by width in each net, without overhead; a multiple of 6",
    )
    train.add_argument(
        "--projections",
        nargs="+",
        default=["linear", "affine"],
        choices=["linear", "affine"],
        help="projections without biases (linear) and with them (affine)",
    )
    train.add_argument(
        "--norm-type",
        choices=NORMS,
        default="static",
        help="norms of the layers; batch is for the fully connected form",
    )
    train.add_argument(
        "--activation",
        choices=["identity", "tanh"],
        default="identity",
        help="what follows a layer; tanh is for the fully connected form",
    )
    train.add_argument("--num-heads", type=positive, default=1, help="blocks of each projection")
    train.add_argument("--whole-only", action="store_true", help="nets of whole degrees at the budget, nothing else")
    train.add_argument("--min-depth", type=int, default=1, help="layers; shallower nets are left out")
    train.add_argument(
        "--learning-rates",
        nargs="+",
        type=float,
        default=[1e-3, 2e-3, 4e-3, 8e-3, 16e-3, 32e-3],
        help="learning rates, of which --sweep-seeds choose one",
    )
    train.add_argument(
        "--sweep-seeds", nargs="+", type=int, default=[100, 101], help="seeds that choose the learning rate"
    )
    train.add_argument("--seeds", nargs="+", type=int, default=list(range(6)), help="seeds that are reported")
    train.add_argument("--steps", type=int, default=2000, help="updates of a net")
    train.add_argument("--batch-size", type=int, default=128, help="rows of an update")
    train.add_argument(
        "--report-only", action="store_true", help="train nothing; tables and plots of the runs there are"
    )
    ranks = add("ranks", "print exact separation ranks")
    ranks.add_argument("--output-dir", type=Path, help="where to write ranks.md and ranks.jsonl; nowhere by default")
    ranks.add_argument(
        "--max-size", type=int, default=4096, help="rows of a sampled matrix; smaller ones give lower bounds"
    )
    logs = add("log-ranks", "print how exact separation ranks grow with the depth")
    logs.add_argument(
        "--output-dir", type=Path, help="where to write log-ranks.md, .jsonl and .png; nowhere by default"
    )
    logs.add_argument(
        "--max-size", type=int, default=600, help="rows of a sampled matrix, at least 64; larger ranks are left out"
    )
    logs.add_argument("--draws", type=int, default=1000, help="random sums of monomials")
    effective = add("effective-ranks", "print the ranks of random nets within an error")
    effective.add_argument(
        "--output-dir", type=Path, help="where to write effective-ranks.md, .jsonl and .png; nowhere by default"
    )
    effective.add_argument("--draws", type=int, default=100, help="draws of the weights")
    arguments = parser.parse_args(argv)
    _check(arguments)
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    numbers = ("steps", "batch_size", "width", "token_width", "threads", "max_size", "min_depth", "draws")
    for name in numbers:
        if getattr(arguments, name, 1) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(arguments, name)}; give at least 1.")
    if arguments.command != "train":
        return
    lists = ("learning_rates", "seeds", "sweep_seeds", "tasks", "projections")
    refuse_twice(**{name: getattr(arguments, name) for name in lists})
    both = sorted({*arguments.seeds} & {*arguments.sweep_seeds})
    if both:
        raise ValueError(
            f"--sweep-seeds and --seeds share {' '.join(map(str, both))}; choose the rate on seeds not reported."
        )
    if arguments.form == "sequence" and (arguments.norm_type, arguments.activation) != ("static", "identity"):
        raise ValueError(
            f"--norm-type {arguments.norm_type} and --activation {arguments.activation} are for --form"
            " fully-connected; layers of the sequence form have static norms and no activation."
        )
    if arguments.width % arguments.num_heads:
        raise ValueError(f"--num-heads {arguments.num_heads} must divide --width {arguments.width}.")
    if not all(0 < rate < math.inf for rate in arguments.learning_rates):
        raise ValueError(f"--learning-rates is {arguments.learning_rates}; rates must be positive and finite.")
