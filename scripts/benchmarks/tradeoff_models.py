"""The models of finished runs, built again from their commands and measured side by side: time and memory of an update."""

import dataclasses
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from finetuning.arguments import Arguments, parse_arguments
from finetuning.models import load_model
from torch import Tensor
from transformers import PreTrainedModel, Trainer

from hf_seqmix.data import build_tokenizer
from hf_seqmix.training.timing import Clock, interleave, medians_ms, peak_bytes

REPOSITORY = Path(__file__).resolve().parents[2]

NUM_LABELS = {"listops": 10, "text": 2, "retrieval": 2, "image": 10, "pathfinder": 2, "path-x": 2}


@dataclass(frozen=True)
class Contest:
    """What is measured in one go, in one process.

    Attributes:
        task: of the Long Range Arena.
        commands: family -> the command of finetune.py that trained it.
        length: tokens of an input, or of each of two; pixels (patches) of an image. None for that of the runs.
        batch_size: sequences an update; None for the smallest of the runs.
        device, threads: what it runs on.
        rounds, seconds: how often each is timed, and when no further round begins.
    """

    task: str
    commands: dict[str, str]
    length: int | None
    batch_size: int | None
    device: str
    threads: int
    rounds: int
    seconds: float


def read_command(command: str) -> Arguments:
    """Return the arguments of finetune.py from a command as results.json of the benchmark `lra` holds it.

    Data is not read, so its files need not be there.

    Raises:
        ValueError: it is no such command, or an argument makes no sense.
    """
    words = shlex.split(command)
    if words[:2] != ["python", "scripts/finetune.py"]:
        raise ValueError(f"A command must begin with python scripts/finetune.py; given {command[:80]!r}.")
    places = [str(REPOSITORY / word) if word.startswith("scripts/") else word for word in words[2:]]
    return parse_arguments(places)


def build_model(arguments: Arguments, task: str, length: int | None = None) -> PreTrainedModel:
    """Return the model of a run with random weights, laid out for inputs of a length; None for the run's.

    Raises:
        ValueError: the length does not suit the model, such as a number of pixels that is no square.
    """
    fields = {"num_labels": NUM_LABELS[task], "problem_type": "single_label_classification"}
    if arguments.reads_images:
        model = load_model(arguments, fields, None)
        image: Any = model.config.image_shape
        if length is None or length == image.num_patches:
            return model
        side = math.isqrt(length)
        if side**2 != length:
            raise ValueError(
                f"{task} is a task of images: a length must be a square number of pixels; given {length}."
            )
        height, width = (side * pixels for pixels in image.patch_size)
        overrides = [*arguments.model.config_overrides, f"image_size=[{height}, {width}]"]
        of_model = dataclasses.replace(arguments.model, config_overrides=overrides)
        return load_model(dataclasses.replace(arguments, model=of_model), fields, None)
    if length is not None:
        arguments = dataclasses.replace(arguments, data=dataclasses.replace(arguments.data, max_length=length))
    return load_model(arguments, fields, build_tokenizer(arguments.model.tokenizer or "byte"))


def random_batch(model: PreTrainedModel, task: str, batch_size: int, seed: int = 0) -> dict[str, Tensor]:
    """Return inputs as long as the model is laid out for, without padding, and labels.

    Shapes: input_ids and attention_mask (batch, length), or (batch, 2, length) of a model that reads two texts apart;
    pixel_values (batch, channels, height, width); labels (batch,).
    """
    generator = torch.Generator().manual_seed(seed)
    config: Any = model.config
    labels = torch.randint(NUM_LABELS[task], (batch_size,), generator=generator)
    image = config.image_shape
    if image is not None:
        pixels = torch.randn(batch_size, image.num_channels, *image.image_size, generator=generator)
        return {"pixel_values": pixels, "labels": labels}
    segments = config.num_segments
    parts = (segments,) if segments > 1 else ()
    shape = (batch_size, *parts, config.max_position_embeddings)
    ids = torch.randint(config.vocab_size, shape, generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


class Update:
    """One update of a model as the run's `Trainer` makes it: forward, backward, clipping, optimizer.

    The learning rate is zero, so that every update meets the same weights. Its call is what `interleave` times.

    Args:
        model: is put into training mode and moved to the device.
        arguments: of its run.
        batch: inputs and labels.
        device: where it runs.
    """

    def __init__(
        self, model: torch.nn.Module, arguments: Arguments, batch: dict[str, Tensor], device: torch.device
    ) -> None:
        training = arguments.training
        self.model = model
        self.model.to(device).train()
        self.batch = {name: tensor.to(device) for name, tensor in batch.items()}
        make, options = Trainer.get_optimizer_cls_and_kwargs(training)
        options = {**options, "lr": 0.0, "weight_decay": training.weight_decay}
        self.optimizer: torch.optim.Optimizer = make(self.model.parameters(), **options)
        self.max_grad_norm = training.max_grad_norm or 0.0
        self.dtype = torch.bfloat16 if training.bf16 else torch.float16 if training.fp16 else torch.float32
        self.device = device

    def __call__(self, clock: Clock) -> tuple[float, ...]:
        begin = clock.mark()
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            loss = self.model(**self.batch).loss
        loss.backward()
        if self.max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return (clock.between(begin, clock.mark()),)

    def state_bytes(self) -> int:
        """Return the bytes that stay between updates: weights, buffers and the optimizer's averages."""
        kept = [*self.model.parameters(), *self.model.buffers()]
        kept += [t for state in self.optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def measure(contest: Contest) -> list[dict[str, Any]]:
    """Time updates of all families in turn on batches of one size, and take the peak memory of each.

    Peak memory is that of all tensors: weights, optimizer, gradients and what an update computes, not the inputs (see
    `peak_bytes`). A family for which the device has too little memory gets None for what is measured.

    Returns:
        A row a family: family, num_parameters, length, run_length, batch_size, ms (an update, the median over rounds),
        peak_mib, rounds, clock.

    Raises:
        ValueError: the length does not suit a model.
    """
    torch.set_num_threads(contest.threads)
    device = torch.device(contest.device)
    clock = Clock(device)
    runs = {family: read_command(command) for family, command in contest.commands.items()}
    batch_size = contest.batch_size or smallest_batch(list(runs.values()))
    updates: dict[str, Update] = {}
    rows: dict[str, dict[str, Any]] = {}
    for family, arguments in runs.items():
        own: Any = build_model(arguments, contest.task)
        model = own if contest.length is None else build_model(arguments, contest.task, contest.length)
        config: Any = model.config
        rows[family] = {
            "family": family,
            "num_parameters": own.num_parameters(),
            "length": config.max_position_embeddings,
            "run_length": own.config.max_position_embeddings,
            "batch_size": batch_size,
            "ms": None,
            "peak_mib": None,
        }
        try:
            update = Update(model, arguments, random_batch(model, contest.task, batch_size), device)
            [first] = update(clock)
            peak = peak_bytes(partial(update, clock), device) + update.state_bytes()
        except torch.OutOfMemoryError:
            _say(f"{contest.task}, {config.max_position_embeddings} tokens: {family} does not fit into memory")
            continue
        updates[family] = update
        rows[family]["peak_mib"] = peak / 2**20
        _say(
            f"{contest.task}, {config.max_position_embeddings} tokens, batch {batch_size}: {family} {first:.3g} s the "
            f"first update, {peak / 2**20:,.0f} MiB"
        )
    if updates:
        seconds = interleave(updates, contest.rounds, clock, contest.seconds)
        for family, measured in seconds.items():
            [rows[family]["ms"]] = medians_ms(measured)
            rows[family] |= {"rounds": len(measured), "clock": clock.kind}
    return list(rows.values())


def smallest_batch(runs: Sequence[Arguments]) -> int:
    """Return the smallest batch of the runs: published ones differ from family to family, and times of an update with them."""
    return min(arguments.training.per_device_train_batch_size for arguments in runs)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
