r"""Trains models of equal size on equal data, with a sweep of the learning rate and several seeds, and tabulates them.

    python scripts/studies/compare_mixers.py --task lm-causal --models tnn attention fd_tnn-cosine-gelu --threads 1 \
        --train-file wiki.train.head.tokens --validation-file wiki.valid.tokens --test-file wiki.test.tokens \
        --output-dir runs/causal
    python scripts/studies/compare_mixers.py --task recall --models tnn attention --output-dir runs/recall

Each model is trained with every learning rate on the first seed. While the rate of least validation loss lies at the
edge of the sweep, the sweep goes on beyond it (--extend-sweep). The best rate is then trained on the other seeds. All
models have the number of parameters of `tnn`, made up by the width of their feed-forwards, and see the same batches in
the same order. Each run is a line of results.jsonl; a killed comparison goes on where it stopped when the command is
given again, also with more models, rates or seeds. Writes table.md and plot.png after each model, and for the task
repetition bins.png, accuracy by frequency of the word and distance of its first occurrence.
"""

import argparse
import logging
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comparison_bins import mean_of_bins, score_bins
from comparison_options import Options, add_arguments
from comparison_results import results_of, run_of
from comparison_tasks import (
    MODELS,
    TASKS,
    Sizes,
    Task,
    build_config,
    build_model,
    build_task,
    config_fields,
    data_digest,
)
from study_plots import plot_bins, plot_comparison
from transformers import PreTrainedConfig, PrinterCallback, Trainer, default_data_collator

from hf_seqmix._files import write_text
from hf_seqmix.data import ReproducibleMaskingCollator
from hf_seqmix.modules import StaticNorm, calibrate_static_norms
from hf_seqmix.training import (
    block_scores,
    corpus_metrics,
    explain_write_error,
    prepare_run_folder,
)
from hf_seqmix.training.environment import environment_of, file_digest, portable_command, portable_path
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.run import Run
from hf_seqmix.training.tables import markdown_table
from hf_seqmix.training.training_arguments import SeqMixTrainingArguments

logger = logging.getLogger("compare_mixers")


class OutOfTimeError(Exception):
    """The next run would not end within the time budget."""


def parse_arguments(argv: Sequence[str]) -> Options:
    """Read the command line; sizes that are not given are the task's.

    Raises:
        ValueError: if an argument makes no sense.
    """
    parser = argparse.ArgumentParser(
        "compare_mixers.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--output-dir", required=True, type=Path)
    parser.add_argument("--models", nargs="+", default=["tnn", "attention"], choices=MODELS, metavar="MODEL")
    parser.add_argument("--block-size", type=int, help="tokens a sequence")
    add_arguments(parser)
    return Options.of(**vars(parser.parse_args(argv)))


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
        self.configs = {name: build_config(name, self.task, self.sizes) for name in arguments.models}
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
        model_type, overrides = config_fields(
            model,
            self.sizes,
            vocab_size=self.task.vocab_size,
            causal=self.task.kind.causal,
            intermediate_size=self.configs[model].intermediate_size,
        )
        fields = {"name": model, "model_type": model_type, "config_overrides": overrides}
        training = self.arguments.training(rate) | {"threads": self.arguments.threads}
        return Run(self.arguments.task, model=fields, data=self.data, training=training, seed=seed)

    def _key(self, model: str, rate: float, seed: int) -> dict[str, Any]:
        return {
            "task": self.arguments.task,
            "model": model,
            "learning_rate": rate,
            "seed": seed,
            "settings": self.settings,
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


def summary_of(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a row for each model: best rate, and each figure's mean, sample standard deviation, number of seeds."""
    seeds = comparison.arguments.seeds
    rows = []
    for model in comparison.arguments.models:
        rates = comparison.trained_rates(model)
        best = comparison.best(model, rates)
        if best is None:
            continue
        runs = {seed: run for seed in seeds if (run := comparison.known(model, best, seed))}
        row: dict[str, Any] = {
            "model": model,
            "num_parameters": comparison.known(model, best, seeds[0])["num_parameters"],  # type: ignore[index]
            "intermediate_size": comparison.configs[model].intermediate_size,
            "learning_rate": best,
            "best_at_edge": best in (rates[0], rates[-1]),
            "num_seeds": len(runs),
            "sweep": [[rate, comparison.known(model, rate, seeds[0])["validation"]] for rate in rates],  # type: ignore[index]
            "train_seconds": statistics.median(run["train_seconds"] for run in runs.values()),
        }
        for split in comparison.task.evaluation:
            for metric in comparison.task.kind.metrics:
                row[f"{split}_{metric}"] = spread({seed: run[split][metric] for seed, run in runs.items()})
        bins = [run["test"]["bins"] for run in runs.values() if "bins" in run["test"]]
        if bins:
            row["test_bins"] = mean_of_bins(bins)
        rows.append(row)
    return rows


def spread(values: Mapping[int, float | None]) -> dict[str, Any]:
    """Return the mean and sample standard deviation (None for one seed) over the seeds whose run did not diverge."""
    finite = [value for value in values.values() if value is not None]
    return {
        "mean": statistics.mean(finite) if finite else None,
        "sd": statistics.stdev(finite) if len(finite) > 1 else None,
        "n": len(finite),
        "by_seed": {str(seed): value for seed, value in values.items()},
    }


def add_differences(rows: Sequence[dict[str, Any]], metric: str) -> None:
    """Add to each row how it differs from the first one, seed by seed, on the test split."""
    reference = rows[0][f"test_{metric}"]["by_seed"]
    for row in rows:
        values = row[f"test_{metric}"]["by_seed"]
        paired = {
            int(seed): value - reference[seed]
            for seed, value in values.items()
            if value is not None and reference.get(seed) is not None
        }
        row["difference"] = spread(paired)


def write_report(comparison: Comparison) -> dict[str, Any] | None:
    """Write table.md and plot.png from the runs there are, and return what the table shows; None if there are none."""
    rows = summary_of(comparison)
    if not rows:
        return None
    arguments, task = comparison.arguments, comparison.task
    main_metric = next(iter(task.kind.metrics))
    add_differences(rows, main_metric)
    report = {"settings": comparison.settings, "results": rows}
    write_text(comparison.folder / "table.md", _markdown(comparison, rows, main_metric))
    title = f"Task {arguments.task}, {rows[0]['num_parameters']:,} parameters, {arguments.steps} updates"
    plot_comparison(rows, main_metric, task.kind.metrics[main_metric], comparison.folder / "plot.png", title)
    if "test_bins" in rows[0]:
        plot_bins(rows, comparison.folder / "bins.png", title)
    return report


def _markdown(comparison: Comparison, rows: Sequence[Mapping[str, Any]], main_metric: str) -> str:
    arguments, task = comparison.arguments, comparison.task
    columns = {
        "model": "model",
        "num_parameters": "parameters:,",
        "intermediate_size": "feed-forward width",
        "rate": "best rate",
    }
    cells = []
    for row in rows:
        cell = {name: row[name] for name in ("model", "num_parameters", "intermediate_size")}
        cell["rate"] = f"{row['learning_rate']:g}" + (" (edge)" if row["best_at_edge"] else "")
        cell["n"] = row[f"test_{main_metric}"]["n"]
        for split in task.evaluation:
            for metric, header in task.kind.metrics.items():
                cell[f"{split}_{metric}"] = _with_spread(row[f"{split}_{metric}"], metric)
                columns[f"{split}_{metric}"] = f"{split} {header}"
        cell["difference"] = _with_spread(row["difference"], main_metric, sign="+")
        cells.append(cell)
    columns |= {"difference": f"test, minus {rows[0]['model']}", "n": "seeds"}
    sizes = []
    for split, blocks in task.evaluation.items():
        tokens = comparison.known(rows[0]["model"], rows[0]["learning_rate"], arguments.seeds[0])
        count = tokens[split]["num_tokens"] if tokens else 0
        in_bytes = f" ({task.num_bytes[split]:,} bytes)" if split in task.num_bytes else ""
        sizes.append(f"{split}: {len(blocks)} sequences, {count:,} predicted tokens{in_bytes}")
    tokens_seen = arguments.steps * arguments.batch_size * arguments.block_size
    return "\n".join(
        [
            f"Task {arguments.task}: {arguments.steps} updates of {arguments.batch_size} sequences of"
            f" {arguments.block_size} tokens ({tokens_seen:,} in all); {'; '.join(sizes)}.",
            f"{arguments.num_layers} layers, {arguments.hidden_size} channels. Mean ± sample standard deviation over"
            f" seeds {', '.join(map(str, arguments.seeds))} at the learning rate of least validation loss on seed"
            f" {arguments.seeds[0]}; differences are of runs of the same seed. (edge): no higher or no lower rate was"
            " tried.",
            "",
            markdown_table(cells, columns),
            "",
        ]
    )


def _with_spread(value: Mapping[str, Any], metric: str, sign: str = "") -> str | None:
    if value["mean"] is None:
        return None
    digits = 2 if metric == "perplexity" else 4
    text = format(value["mean"], f"{sign}.{digits}f")
    return text if value["sd"] is None else f"{text} ± {value['sd']:.{digits}f}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def compare(arguments: Options) -> Comparison:
    """Train what is missing, as far as the time budget goes; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    try:
        torch.set_num_threads(arguments.threads)
        comparison = Comparison(arguments)
    except ValueError as error:
        sys.exit(f"compare_mixers.py: {error}")
    try:
        for model in arguments.models:
            comparison.complete(model)
            write_report(comparison)
    except OutOfTimeError:
        logger.warning("The time budget is used up; the same command goes on from here.")
    except OSError as error:
        message = explain_write_error(error, comparison.folder)
        if message is None:
            raise
        sys.exit(f"compare_mixers.py: {message}")
    return comparison


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Run the command line and return what the table shows; exit with a message on wrong input."""
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    except ValueError as error:
        sys.exit(f"compare_mixers.py: {error}")
    return write_report(compare(arguments))


if __name__ == "__main__":
    main()
