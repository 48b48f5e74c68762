"""The models of finished runs, built again and measured side by side: time and memory of an update."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    Trainer,
)

from hf_seqmix.data import build_tokenizer
from hf_seqmix.training import config_from_overrides, tokenizer_fields
from hf_seqmix.training.precision import settle_precision
from hf_seqmix.training.run import Run
from hf_seqmix.training.timing import Clock, interleave, medians_ms, peak_bytes
from hf_seqmix.training.training_arguments import SeqMixTrainingArguments

from ..jobs import PRETRAINED
from ..lra_tasks import IMAGES, NUM_LABELS

OF_AN_UPDATE = (
    *("optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("weight_decay", "max_grad_norm", "bf16", "fp16"),
)
"""Training arguments that an update depends on."""


@dataclass(frozen=True)
class Contest:
    """What is measured in one go, in one process.

    Attributes:
        task: of the Long Range Arena.
        runs: family -> its run.
        length: tokens of an input, or of each of two; pixels (patches) of an image. None for that of the runs.
        batch_size: sequences an update; None for the smallest of the runs.
        device, threads: what the contest runs on.
        rounds, seconds: how often each is timed, and when no further round begins.
        folder: keeps the precision of runs that leave theirs to the machine: one for all contests on the device.
    """

    task: str
    runs: dict[str, Run]
    length: int | None
    batch_size: int | None
    device: str
    threads: int
    rounds: int
    seconds: float
    folder: str


def build_model(run: Run, length: int | None = None) -> PreTrainedModel:
    """Return the model of a run from scratch with random weights, laid out for inputs of a length; None for the run's.

    A model that was pretrained on masked texts first has a token more, the mask, and the fields of that stage.

    Raises:
        ValueError: the length does not suit the model, such as a number of pixels that is no square.
    """
    fields = {"num_labels": NUM_LABELS[run.task], "problem_type": "single_label_classification"}
    torch.manual_seed(run.seed)
    before = run.training.get(PRETRAINED, {}).get("model", {})
    model_type, overrides = run.model["model_type"], dict(run.model.get("config_overrides", {}))
    if run.task not in IMAGES:
        overrides |= {n: v for n, v in before.get("config_overrides", {}).items() if n != "max_position_embeddings"}
        masked = before.get("objective") == "masked"
        tokenizer = build_tokenizer(run.model.get("tokenizer", "byte"), mask_token=masked)
        fields |= tokenizer_fields(tokenizer, length or run.data["max_length"])
        return AutoModelForSequenceClassification.from_config(config_from_overrides(model_type, overrides, fields))
    config: Any = config_from_overrides(model_type, overrides, fields)
    if length is not None and length != config.image_shape.num_patches:
        side = math.isqrt(length)
        if side**2 != length:
            raise ValueError(
                f"{run.task} is a task of images: a length must be a square number of pixels; given {length}."
            )
        overrides["image_size"] = [side * pixels for pixels in config.image_shape.patch_size]
        config = config_from_overrides(model_type, overrides, fields)
    return AutoModelForImageClassification.from_config(config)


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
        run: whose optimizer, clipping and precision are taken.
        batch: inputs and labels.
        device: where it runs.
        folder: keeps the precision, see `Contest`.
    """

    def __init__(
        self, model: PreTrainedModel, run: Run, batch: dict[str, Tensor], device: torch.device, folder: str | Path
    ) -> None:
        settings: dict[str, Any] = {name: run.training[name] for name in OF_AN_UPDATE if name in run.training}
        training = SeqMixTrainingArguments("unused", report_to="none", use_cpu=device.type == "cpu", **settings)
        if training.auto_bf16:
            Path(folder).mkdir(parents=True, exist_ok=True)
        # Each model and length for itself might choose otherwise, where other work disturbs its timing.
        settle_precision(training, folder, earlier=[Path(folder)], width=getattr(model.config, "hidden_size", 256))
        movable: Any = model  # the library's annotations of `to` hide its arguments
        self.model = movable.to(device).train()
        self.batch = {name: tensor.to(device) for name, tensor in batch.items()}
        trainer = Trainer(model=self.model, args=training)
        trainer.optimizer_cls_and_kwargs = training.optimizer_factory(trainer.get_decay_parameter_names)
        self.optimizer: Any = trainer.create_optimizer()
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self.max_grad_norm = training.max_grad_norm or 0.0
        self.dtype = torch.bfloat16 if training.bf16 else torch.float16 if training.fp16 else torch.float32
        self.device = device

    def __call__(self, clock: Clock) -> tuple[float, ...]:
        """Make the update and return its seconds."""
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
        A row a family: family, num_parameters, length, run_length, batch_size, dtype, ms (an update, the median over
        rounds), peak_memory_mib, rounds, clock.

    Raises:
        ValueError: the length does not suit a model.
    """
    torch.set_num_threads(contest.threads)
    device = torch.device(contest.device)
    clock = Clock(device)
    batch_size = contest.batch_size or smallest_batch(list(contest.runs.values()))
    updates: dict[str, Update] = {}
    rows: dict[str, dict[str, Any]] = {}
    for family, run in contest.runs.items():
        own: Any = build_model(run)
        model = own if contest.length is None else build_model(run, contest.length)
        config: Any = model.config
        rows[family] = {
            "family": family,
            "num_parameters": own.num_parameters(),
            "length": config.max_position_embeddings,
            "run_length": own.config.max_position_embeddings,
            "batch_size": batch_size,
            "ms": None,
            "peak_memory_mib": None,
        }
        try:
            update = Update(model, run, random_batch(model, contest.task, batch_size), device, contest.folder)
            rows[family]["dtype"] = str(update.dtype).removeprefix("torch.")
            [first] = update(clock)
            peak = peak_bytes(partial(update, clock), device) + update.state_bytes()
        except torch.OutOfMemoryError:
            _say(f"{contest.task}, {config.max_position_embeddings} tokens: {family} does not fit into memory")
            continue
        updates[family] = update
        rows[family]["peak_memory_mib"] = peak / 2**20
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


def smallest_batch(runs: Sequence[Run]) -> int:
    """Return the smallest batch of the runs: published batches differ, and so do times of an update with them."""
    return min(run.training["per_device_train_batch_size"] for run in runs)


def same_setting(run: Run) -> Run:
    """Return the run without what tells seeds apart, and without the files of its data."""
    data = {name: value for name, value in run.data.items() if not name.endswith("_file")}
    return replace(run, data=data, seed=0)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
