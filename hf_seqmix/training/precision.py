"""Whether a run computes in bfloat16: decided for the machine at hand, and kept when the run is resumed."""

import json
import logging
import time
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments
from transformers.hf_argparser import string_to_bool

from .._files import write_json
from .folders.run_files import PRECISION_FILE

__all__ = [
    "AUTO",
    "PRECISION_FILE",
    "AutoPrecisionArguments",
    "bfloat16_speedup",
    "choose_precision",
    "gpu_has_bfloat16",
    "settle_precision",
]

AUTO = "auto"
"""The `bf16` that leaves the choice to the machine."""

CLEARLY = 1.2
"""So many times as fast as float32 bfloat16 must be where it is timed."""

logger = logging.getLogger(__name__)


@dataclass
class AutoPrecisionArguments(TrainingArguments):
    """The library's training arguments, whose `bf16` may be "auto", too; afterwards `bf16` is a bool.

    Without an accelerator the library refuses `bf16` unless `use_cpu` is given. Nothing else could be meant
    there, so it is set.

    Raises:
        ValueError: `bf16` is neither a truth value nor "auto", or "auto" is combined with `fp16`.
    """

    bf16: str = field(  # type: ignore[assignment]
        default="false",
        metadata={
            "help": "Compute in bfloat16, with weights in float32: true, false, or auto, which takes bfloat16 where "
            "the GPU has it or where it is faster here, as timed before training.",
            "nargs": "?",
            "const": "true",
        },
    )

    def __post_init__(self) -> None:
        """Read the flag; "auto" is settled on a CUDA GPU here, elsewhere by `settle_precision`."""
        given = str(self.bf16).lower()
        self.auto_bf16 = given == AUTO
        self.precision: dict[str, Any] | None = None
        """What `settle_precision` settled."""
        if self.auto_bf16 and self.fp16:
            raise ValueError("--bf16 auto and --fp16 exclude each other; give one of them.")
        try:
            chosen = not self.use_cpu and gpu_has_bfloat16() if self.auto_bf16 else string_to_bool(given)
        except ArgumentTypeError as error:
            raise ValueError(f"--bf16 is {self.bf16!r}; it must be true, false or auto.") from error
        vars(self)["bf16"] = chosen  # a bool from here on, as the library declares it
        self.use_cpu = self.use_cpu or (chosen and not torch.accelerator.is_available())
        super().__post_init__()


def settle_precision(
    training: AutoPrecisionArguments,
    folder: str | Path,
    *,
    earlier: Sequence[Path] = (),
    width: int = 256,
    rows: int = 1024,
) -> None:
    """Settle `bf16="auto"` before the `Trainer` is made, for all processes as the first one finds.

    A run that is resumed keeps its choice, or its numbers would change in the middle: the choice is written to the
    folder of the run.

    Args:
        training: whose `bf16`, `mixed_precision` and `precision` are set, unless the precision was given. `precision`
            is what `choose_precision` returns.
        folder: of the run.
        earlier: folders in which the run began, if it is resumed; the first that has a choice says which.
        width: channels of the model, for which linear layers are timed, though at least 64 and at most 512.
        rows: tokens of a batch in one process.
    """
    if not training.auto_bf16:
        return
    choice: list[Any] = [None]
    device = training.device
    if training.process_index == 0:
        kept = [record for record in (Path(of) / PRECISION_FILE for of in earlier) if record.is_file()]
        choice[0] = json.loads(kept[0].read_text(encoding="utf-8")) if kept else choose_precision(device, width, rows)
        write_json(Path(folder) / PRECISION_FILE, choice[0])
        kept_or_chosen = "kept from the beginning of the run" if kept else choice[0]["reason"]
        logger.warning(f"--bf16 auto: {choice[0]['dtype']} ({kept_or_chosen})")
    broadcast_object_list(choice)
    training.precision = choice[0]
    low = choice[0]["dtype"] == "bfloat16"
    vars(training).update(bf16=low, mixed_precision="bf16" if low else "no")


def gpu_has_bfloat16() -> bool:
    """Return whether there is a CUDA GPU that computes in bfloat16 and does not emulate it."""
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def choose_precision(device: torch.device, width: int, rows: int = 1024) -> dict[str, Any]:
    """Return what is right for a machine: bfloat16 where a GPU has bfloat16, or where bfloat16 is clearly faster.

    Args:
        device: where models train.
        width: channels of linear layers that are timed, though at least 64 and at most 512.
        rows: tokens of a batch in one process.

    Returns:
        `dtype`, "bfloat16" or "float32"; `speedup`, the seconds of float32 over those of bfloat16, None where nothing
        was timed; `reason`.
    """
    if device.type == "cuda":
        has = gpu_has_bfloat16()
        reason = f"the GPU {'has' if has else 'has no'} bfloat16"
        return {"dtype": "bfloat16" if has else "float32", "speedup": None, "reason": reason}
    width = min(max(width, 64), 512)
    speedup = bfloat16_speedup(device, width=width, rows=rows)
    only, threads = "" if speedup >= CLEARLY else "only ", torch.get_num_threads()
    reason = (
        f"bfloat16 is {only}{speedup:.2f} times as fast as float32 in linear layers of {width} channels, forward and "
        f"backward, on {device.type} with {threads} thread{'s' * (threads != 1)}"
    )
    return {"dtype": "bfloat16" if speedup >= CLEARLY else "float32", "speedup": speedup, "reason": reason}


def bfloat16_speedup(
    device: torch.device | str = "cpu", *, width: int = 256, rows: int = 1024, seconds: float = 0.6
) -> float:
    """Return how many times as fast as in float32 a linear layer trains under autocast to bfloat16.

    One layer from `width` to 3 `width` channels, weights in float32, forward and backward, both ways in turns; the
    ratio of the least times, to which other work on the machine adds nothing. Random numbers come from a generator of
    its own.

    Args:
        device: where.
        width: channels.
        rows: tokens, of which at most 1024 are taken.
        seconds: after which no further turn begins; three turns are made in any case.
    """
    device = torch.device(device)
    rows = min(max(rows, 1), 1024)
    own = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, width, generator=own).to(device).requires_grad_()
    weight = (torch.randn(3 * width, width, generator=own) / width**0.5).to(device).requires_grad_()

    def turn(enabled: bool) -> float:
        begin = time.perf_counter()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled):
            outputs = torch.nn.functional.linear(inputs, weight)
        torch.autograd.grad(outputs, (inputs, weight), torch.ones_like(outputs))
        if device.type != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter() - begin

    for enabled in (False, True):
        turn(enabled)  # kernels are chosen and memory is taken in the first call
    plain: list[float] = []
    low: list[float] = []
    begin = time.perf_counter()
    while len(plain) < 3 or time.perf_counter() - begin < seconds:
        plain.append(turn(False))
        low.append(turn(True))
    return min(plain) / min(low)
