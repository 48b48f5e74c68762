"""The runs of a comparison of compare_mixers.py: trained, scored, and read from results.jsonl after that."""

import logging
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PrinterCallback, Trainer, default_data_collator

from hf_seqmix.data import ReproducibleMaskingCollator
from hf_seqmix.modules import StaticNorm, calibrate_static_norms
from hf_seqmix.training import block_scores, corpus_metrics, prepare_run_folder
from hf_seqmix.training.environment import environment_of, file_digest, portable_command, portable_path
from hf_seqmix.training.precision import settle_precision
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.run import Run
from hf_seqmix.training.training_arguments import SeqMixTrainingArguments

from .bins import score_bins, score_pair_bins
from .models import build_config, build_model, config_fields
from .options import Options
from .results import results_of, run_of
from .tasks import Sizes, Task, build_task, data_digest

__all__ = ["Comparison", "OutOfTimeError"]

logger = logging.getLogger("compare_mixers")


class OutOfTimeError(Exception):
    """The next run would not end within the time budget."""


class Comparison:
    """The runs of one comparison: trained when they are first asked for, read from results.jsonl after that."""

    def __init__(self, arguments: Options) -> None:
        self.arguments = arguments
        self.folder: Path = prepare_run_folder(arguments.output_dir, resume=True)
        self.sizes = Sizes(**{field.name: getattr(arguments, field.name) for field in fields(Sizes)})
        self.task: Task = build_task(
            arguments.task,
            self.sizes,
            eval_blocks=arguments.eval_blocks,
            train_rows=arguments.steps * arguments.batch_size,
            files=arguments.files,
            tokenizer_spec=arguments.tokenizer,
            folder=self.folder,
        )
        self.configs = {
            name: build_config(name, self.task, self.sizes, arguments.feed_forward) for name in arguments.models
        }
        self.settings = asdict(self.sizes) | {
            "steps": arguments.steps,
            "batch_size": arguments.batch_size,
            "data": data_digest(self.task),
            **arguments.departures(),
        }
        self.data = {"block_size": arguments.block_size, "digest": self.settings["data"]}
        self.data |= {"eval_blocks": arguments.eval_blocks}
        if self.task.kind.is_text:
            self.data["tokenizer"] = portable_path(arguments.tokenizer)
            for split, path in arguments.files.items():
                self.data[f"{split}_file"] = {"path": portable_path(str(path)), "digest": file_digest(Path(str(path)))}
        self.log = ResultFile(self.folder / "results.jsonl")
        self.begin = time.monotonic()
        self.longest = 0.0

    def run(self, model: str, rate: float, seed: int) -> dict[str, Any]:
        """Return the result of a run.

        Raises:
            OutOfTimeError: if it has not been trained, and the time left is shorter than the longest run so far.
        """
        key = self._key(model, rate, seed)
        result = self.known(model, rate, seed)
        if result is not None:
            return result
        budget = self.arguments.time_budget
        begin = time.monotonic()
        if budget is not None and begin - self.begin + self.longest > 60 * budget:
            raise OutOfTimeError
        result = self._train(self.configs[model], rate, seed)
        self.longest = max(self.longest, time.monotonic() - begin)
        origin = {"command": portable_command(self.folder.name), "environment": environment_of()}
        self.log.append(key, results_of(self.recorded(model, rate, seed), result, **origin))
        loss, seconds = result["validation"]["token_loss"], time.monotonic() - begin
        logger.info(f"{model}, rate {rate:g}, seed {seed}: validation loss {_shown(loss)}, {seconds:.0f} s")
        return result

    def known(self, model: str, rate: float, seed: int) -> dict[str, Any] | None:
        """Return the result of a run if it has been trained, else None."""
        found = self.log.get(self._key(model, rate, seed))
        return None if found is None else run_of(found)

    def recorded(self, model: str, rate: float, seed: int) -> Run:
        """Return a run as data."""
        model_type, overrides = self._fields(model)
        fields = {"name": model, "model_type": model_type, "config_overrides": overrides}
        training = self.arguments.training(rate) | {"threads": self.arguments.threads}
        return Run(self.arguments.task, model=fields, data=self.data, training=training, seed=seed)

    def _fields(self, model: str) -> tuple[str, dict[str, Any]]:
        """Return the type and the fields of a model's configuration."""
        return config_fields(
            model,
            self.sizes,
            vocab_size=self.task.vocab_size,
            causal=self.task.kind.causal,
            intermediate_size=self.configs[model].intermediate_size,
        )

    def _key(self, model: str, rate: float, seed: int) -> dict[str, Any]:
        return {
            "task": self.arguments.task,
            "model": model,
            "learning_rate": rate,
            "seed": seed,
            "settings": self.settings,
            "fields": self._fields(model)[1],
        }

    def _train(self, config: PreTrainedConfig, rate: float, seed: int) -> dict[str, Any]:
        task, arguments = self.task, self.arguments
        causal = task.kind.causal
        model = build_model(config, causal, seed)
        if any(isinstance(module, StaticNorm) for module in model.modules()):
            calibrate_static_norms(model, torch.tensor(task.train[: arguments.batch_size]["input_ids"]))
        with tempfile.TemporaryDirectory() as folder:
            args = SeqMixTrainingArguments(
                output_dir=folder,
                **arguments.training(rate),
                per_device_eval_batch_size=arguments.batch_size * 4,
                seed=seed,
                data_seed=seed,  # the order of the data, which is thereby the same for all models
                save_strategy="no",
                logging_steps=max(1, arguments.steps // 20),
                logging_nan_inf_filter=False,
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=torch.accelerator.is_available(),
            )
            sizes = {"width": arguments.hidden_size, "rows": arguments.batch_size * arguments.block_size}
            settle_precision(args, self.folder, earlier=[self.folder], **sizes)
            trainer = Trainer(
                model=model,
                args=args,
                train_dataset=task.train,
                data_collator=default_data_collator
                if causal or task.tokenizer is None
                else ReproducibleMaskingCollator(tokenizer=task.tokenizer, mlm_probability=0.15, seed=seed),
                preprocess_logits_for_metrics=lambda logits, labels: block_scores(logits, labels, causal=causal),
                compute_metrics=corpus_metrics(),
            )
            trainer.remove_callback(PrinterCallback)
            trainer.optimizer_cls_and_kwargs = args.optimizer_factory(trainer.get_decay_parameter_names)
            seconds = trainer.train().metrics["train_runtime"]
            scores = {split: self._score(trainer, split) for split in task.evaluation}
        losses = [[entry["step"], _finite(entry["loss"])] for entry in trainer.state.log_history if "loss" in entry]
        return {
            "num_parameters": model.num_parameters(),
            "intermediate_size": config.intermediate_size,
            **scores,
            "train_loss_curve": losses,
            "train_seconds": seconds,
        }

    def _score(self, trainer: Trainer, split: str) -> dict[str, Any]:
        blocks = self.task.evaluation[split]
        prediction = trainer.predict(blocks, metric_key_prefix=split)
        scores = prediction.metrics or {}
        names = ("token_loss", "perplexity", "token_accuracy", "num_tokens")
        figures: dict[str, Any] = {name: scores[f"{split}_{name}"] for name in names}
        num_bytes = self.task.num_bytes.get(split)
        if self.task.kind.causal and num_bytes:
            bits = figures["token_loss"] * figures["num_tokens"] / math.log(2)
            figures |= {"num_bytes": num_bytes, "bits_per_byte": bits / num_bytes}
        figures = {name: _finite(figure) for name, figure in figures.items()}
        if self.task.kind.is_text:
            whole = self.task.kind.causal and split == "test" and figures["token_loss"] is not None
            model: Any = trainer.model
            bins = score_pair_bins(model, self.task.train, blocks) if whole else []
        else:
            bins = score_bins(blocks, np.asarray(prediction.predictions))
        return figures | {"bins": bins} if bins else figures

    def sweep(self, model: str) -> Iterator[float]:
        """Yield rates to train on the first seed: the given ones, then beyond the edge at which the best one lies."""
        rates = sorted(self.arguments.learning_rates)
        yield from rates
        for _ in range(self.arguments.extend_sweep if len(rates) > 1 else 0):
            best = self.best(model, rates)
            if best not in (rates[0], rates[-1]):
                return
            beyond = rates[0] ** 2 / rates[1] if best == rates[0] else rates[-1] ** 2 / rates[-2]
            # Rounded, so that a later sweep from other rates finds the same ones.
            beyond = float(f"{beyond:.6g}")
            rates = sorted([*rates, beyond])
            yield beyond

    def best(self, model: str, rates: Sequence[float]) -> float | None:
        """Return the rate of least validation loss on the first seed among those trained, or None if all diverged."""
        losses = {rate: self._loss(model, rate) for rate in rates}
        finite = {rate: loss for rate, loss in losses.items() if loss is not None}
        return min(finite, key=finite.__getitem__) if finite else None

    def _loss(self, model: str, rate: float) -> float | None:
        result = self.known(model, rate, self.arguments.seeds[0])
        return result["validation"]["token_loss"] if result else None

    def trained_rates(self, model: str) -> list[float]:
        """Return the rates of the sweep that have been trained, in order."""
        first = self.arguments.seeds[0]
        return sorted(rate for rate in self.sweep(model) if self.known(model, rate, first))

    def complete(self, model: str) -> None:
        """Train what is missing of a model."""
        first, *others = self.arguments.seeds
        for rate in self.sweep(model):
            self.run(model, rate, first)
        best = self.best(model, self.trained_rates(model))
        if best is not None:
            for seed in others:
                self.run(model, best, seed)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"
