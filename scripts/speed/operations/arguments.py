"""The arguments that give the sizes of timed operations."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hf_seqmix.training.command import add_device_argument, positive

from .forms import Sizes

__all__ = ["FAST", "add_size_arguments", "check_size_arguments", "parse_with_fast", "sizes_of"]

FAST: dict[str, Any] = {
    "lengths": [64, 200],
    "rounds": 1,
    "batch": 2,
    "channels": 16,
    "head_width": 8,
    "points": 16,
}
"""Sizes of `--fast`."""


def add_size_arguments(
    parser: argparse.ArgumentParser, cpu_lengths: Sequence[int], gpu_lengths: Sequence[int]
) -> None:
    """Add the arguments that give sizes, device and rounds."""
    parser.set_defaults(default_lengths={"cpu": list(cpu_lengths), "gpu": list(gpu_lengths)})
    either = " and on a GPU ".join(f"{found[0]} to {found[-1]}" for found in (cpu_lengths, gpu_lengths))
    parser.add_argument("--lengths", type=int, nargs="+", help=f"tokens of a row; by default {either}")
    parser.add_argument("--batch", type=int, default=4, help="rows of a batch")
    parser.add_argument(
        "--elements", type=positive, help="instead of --batch: as many rows as make that many elements"
    )
    parser.add_argument("--channels", type=int, default=256, help="channels of the inputs")
    parser.add_argument("--head-width", type=int, default=64, help="channels of a head, a divisor of --channels")
    parser.add_argument("--points", type=int, default=64, help="inducing points of ski, at most one a token")
    parser.add_argument("--taps", type=int, default=33, help="taps of the short convolution of ski, odd")
    add_device_argument(parser)
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument(
        "--minutes", type=float, help="minutes after which no further measurement begins; by default none"
    )
    parser.add_argument("--fast", action="store_true", help="small sizes and one round, to see that it works")


def parse_with_fast(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, fast: Mapping[str, Any]
) -> argparse.Namespace:
    """Read the command line; with `--fast` other defaults hold, and what is typed counts all the same."""
    arguments = parser.parse_args(argv)
    if arguments.fast:
        parser.set_defaults(**fast)
        arguments = parser.parse_args(argv)
    return arguments


def check_size_arguments(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Fill in the lengths, and end with a message where a size makes no sense."""
    defaults = arguments.default_lengths["cpu" if torch.device(arguments.device).type == "cpu" else "gpu"]
    del arguments.default_lengths
    arguments.lengths = sorted(set(arguments.lengths or defaults))
    if min(*arguments.lengths, arguments.rounds, arguments.batch, arguments.channels, arguments.head_width) < 1:
        parser.error("lengths, rounds, batch, channels and head width must be at least 1.")
    if "ski" in arguments.ops and (arguments.lengths[0] < 2 or arguments.points < 2 or arguments.taps % 2 == 0):
        parser.error("ski needs lengths and points of at least 2, and an odd number of taps.")
    if arguments.channels % min(arguments.head_width, arguments.channels):
        parser.error(f"--head-width {arguments.head_width} must divide --channels {arguments.channels}.")


def sizes_of(arguments: argparse.Namespace, length: int, dtype: str) -> Sizes:
    """Return the sizes at one length."""
    batch = arguments.batch
    if arguments.elements:
        batch = max(1, arguments.elements // (arguments.channels * length))
    width = min(arguments.head_width, arguments.channels)
    return Sizes(batch, arguments.channels, length, width, arguments.points, arguments.taps, dtype, arguments.device)
