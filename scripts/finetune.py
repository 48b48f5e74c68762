"""Fine-tunes any checkpoint on labelled data and measures it beside simple baselines.

    python scripts/finetune.py --model runs/masked --glue-task sst2 --data-dir glue --output-dir runs/sst2
    python scripts/finetune.py --model runs/tnn --train-file train.csv --validation-file dev.csv \\
        --text-columns premise hypothesis --label-column label --baseline bag-of-words --output-dir runs/pairs
    python scripts/finetune.py --task token-classification --model NAME --dataset conll2003 --output-dir runs/ner
    python scripts/finetune.py --task question-answering --model NAME --train-file squad.json --output-dir runs/qa
    torchrun --nproc-per-node 2 scripts/finetune.py ... --use-cpu
    accelerate launch scripts/finetune.py ...

The output folder gets the model and its tokenizer, results.json, loss.png and, with --save-predictions, what the model
says about each example. Every training argument of transformers works too.
"""

import argparse
import dataclasses
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    EvalPrediction,
    HfArgumentParser,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

# Importing the package registers its families with the Auto classes.
from hf_seqmix.analysis import markdown_table, run_environment
from hf_seqmix.analysis.baselines import bag_of_words, constant_labels, most_frequent
from hf_seqmix.analysis.plots import plot_loss
from hf_seqmix.data import (
    build_tokenizer,
    explain_write_error,
    last_complete_checkpoint,
    prepare_run_folder,
    write_json,
)
from hf_seqmix.data.labelled import (
    GLUE_TASKS,
    QuestionAnswering,
    SequenceClassification,
    TokenClassification,
    load_glue,
    load_labelled,
)
from hf_seqmix.metrics import load_metric
from hf_seqmix.models.backbone import SeqMixPreTrainedModel

Task = SequenceClassification | TokenClassification | QuestionAnswering

AUTO_CLASSES = {
    "sequence-classification": AutoModelForSequenceClassification,
    "token-classification": AutoModelForTokenClassification,
    "question-answering": AutoModelForQuestionAnswering,
}

# What a metric calls its number, where that is not its own name.
METRIC_KEYS = {"pearson": "pearsonr", "spearman": "spearmanr", "squad": "f1"}

DEFAULT_MAX_LENGTH = 512

logger = logging.getLogger("finetune")


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Examples as they are written above, and the default of every argument."""


@dataclass
class ModelArguments:
    """What is fine-tuned."""

    model: str = field(metadata={"help": "A checkpoint: a name or a folder; causal or masked, of any family."})
    tokenizer: str | None = field(default=None, metadata={"help": "Name or folder, if not the model's own."})
    random_init: bool = field(
        default=False, metadata={"help": "Take only the configuration and start from random weights, to compare with."}
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the checkpoint."})


@dataclass
class DataArguments:
    """What it is fine-tuned on and measured by."""

    task: Literal["sequence-classification", "token-classification", "question-answering"] = field(
        default="sequence-classification",
        metadata={"help": "A label a text or pair of texts, a label a word, or SQuAD."},
    )
    glue_task: str | None = field(default=None, metadata={"help": f"One of {', '.join(GLUE_TASKS)}."})
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder with GLUE's files; without it they come from the Hub."}
    )
    dataset: str | None = field(default=None, metadata={"help": "A Hub name, or name:config."})
    train_file: str | None = field(default=None, metadata={"help": "CSV, TSV, JSON, JSON lines or Parquet."})
    validation_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on while training."})
    test_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on once at the end."})
    no_header: bool = field(
        default=False, metadata={"help": 'CSV and TSV files have no header: columns are named "0", "1" ...'}
    )
    validation_fraction: float = field(
        default=0.1, metadata={"help": "Share of the training data held out if there is no validation data."}
    )
    text_columns: list[str] | None = field(
        default=None, metadata={"help": "One, or two for pairs. Words of a token classification: one (tokens)."}
    )
    label_column: list[str] | None = field(
        default=None, metadata={"help": "Column of the label; several columns of zeros and ones: several labels."}
    )
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = field(
        default=None, metadata={"help": "Only where the labels do not say it by their type."}
    )
    max_length: int | None = field(
        default=None, metadata={"help": "Longest input in tokens; by default what the model takes, at most 512."}
    )
    stride: int = field(default=128, metadata={"help": "Tokens that two windows of a long context share (SQuAD)."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many examples."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on the first so many examples."})
    metrics: list[str] | None = field(
        default=None, metadata={"help": "Names of metrics or paths of metric scripts, instead of the task's own."}
    )
    baseline: Literal["bag-of-words"] | None = field(
        default=None, metadata={"help": "Also fit this to the same data (the majority class is always shown)."}
    )
    cache_dir: str | None = field(default=None, metadata={"help": "Where the data is cached."})


@dataclass
class RunArguments:
    """Where to and until when; the rest of the training arguments are transformers' own."""

    early_stopping_patience: int | None = field(
        default=None,
        metadata={"help": "Stop after so many evaluations without a better one, and keep the best model."},
    )
    save_predictions: bool = field(default=False, metadata={"help": "Write predictions_SPLIT.jsonl."})
    resume: bool = field(default=False, metadata={"help": "Continue from the last complete checkpoint, if any."})
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Write into a folder that is not empty; its checkpoints are deleted."}
    )


@dataclass
class Arguments:
    """All arguments of a run."""

    model: ModelArguments
    data: DataArguments
    run: RunArguments
    training: TrainingArguments


@dataclass
class Run:
    """Data, model and how the model's output is scored."""

    arguments: Arguments
    task: Task
    metrics: list[str]
    examples: datasets.DatasetDict
    encoded: datasets.DatasetDict
    model: PreTrainedModel
    trainer: Trainer

    @property
    def folder(self) -> Path:
        """Where the run writes."""
        return output_folder(self.arguments)


def output_folder(arguments: Arguments) -> Path:
    """The folder that --output-dir names."""
    return Path(arguments.training.output_dir or "trainer_output")


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Reads the command line.

    Raises:
        ValueError: arguments contradict each other or one is missing.
    """
    kinds: list[Any] = [ModelArguments, DataArguments, RunArguments, TrainingArguments]
    parser = HfArgumentParser(
        kinds,
        usage="finetune.py --model NAME --output-dir DIR [options]   (--help lists them)",
        description=__doc__,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        logging_steps=0.01,
        learning_rate=2e-4,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        warmup_steps=0.1,
        report_to="none",
        dataloader_pin_memory=torch.accelerator.is_available(),
    )
    arguments = Arguments(*parser.parse_args_into_dataclasses(args=list(argv)))
    _check(arguments)
    return arguments


def _check(arguments: Arguments) -> None:
    data, run, training = arguments.data, arguments.run, arguments.training
    sources = [data.glue_task, data.dataset, data.train_file]
    if sum(source is not None for source in sources) != 1:
        raise ValueError("Give one of --glue-task, --dataset and --train-file.")
    if data.train_file is None and (data.validation_file or data.test_file):
        raise ValueError("--validation-file and --test-file belong to --train-file.")
    if data.data_dir is not None and data.glue_task is None:
        raise ValueError("--data-dir belongs to --glue-task; give files with --train-file.")
    if data.glue_task is not None and data.task != "sequence-classification":
        raise ValueError("--glue-task is a sequence classification; leave out --task.")
    if data.baseline and data.task != "sequence-classification":
        raise ValueError(f"--baseline {data.baseline} is for sequence classification, not for {data.task}.")
    if not 0 < data.validation_fraction < 1:
        raise ValueError(f"--validation-fraction must lie between 0 and 1; given {data.validation_fraction}.")
    for option, limit in (("train", data.max_train_samples), ("eval", data.max_eval_samples)):
        if limit is not None and limit < 1:
            raise ValueError(f"--max-{option}-samples must be positive; given {limit}.")
    if run.early_stopping_patience is not None:
        if run.early_stopping_patience < 1:
            raise ValueError(f"--early-stopping-patience must be positive; given {run.early_stopping_patience}.")
        if training.eval_strategy == "no" or training.eval_strategy != training.save_strategy:
            raise ValueError(
                "Early stopping keeps the best evaluation: --eval-strategy and --save-strategy must agree."
            )


def load_examples(arguments: Arguments) -> datasets.DatasetDict:
    """The splits train, validation and perhaps test; fills in the columns and metrics of a GLUE task."""
    data = arguments.data
    if data.glue_task is not None:
        examples, glue = load_glue(data.glue_task, data.data_dir, data.cache_dir)
        data.text_columns = data.text_columns or list(glue.text_columns)
        data.label_column = data.label_column or [glue.label_column]
        data.metrics = data.metrics or list(glue.metrics)
    elif data.dataset is not None:
        examples = load_labelled(data.dataset, cache_dir=data.cache_dir)
    else:
        files = {"train": data.train_file, "validation": data.validation_file, "test": data.test_file}
        given = {split: file for split, file in files.items() if file is not None}
        examples = load_labelled(given, header=not data.no_header, cache_dir=data.cache_dir)
    if "train" not in examples:
        raise ValueError(f"There is no training split; there is {', '.join(examples)}.")
    if "validation" not in examples:
        if len(examples["train"]) < 2:
            raise ValueError("One training example leaves nothing to evaluate on; give more, or --validation-file.")
        parts = examples["train"].train_test_split(data.validation_fraction, seed=arguments.training.seed)
        logger.info(f"No validation data: {len(parts['test'])} of the training examples are held out")
        examples = datasets.DatasetDict({**examples, "train": parts["train"], "validation": parts["test"]})
    limits = {"train": data.max_train_samples, "validation": data.max_eval_samples, "test": data.max_eval_samples}
    return datasets.DatasetDict(
        {
            split: rows.take(min(limits[split] or len(rows), len(rows)))
            for split, rows in examples.items()
            if split in limits
        }
    )


def make_task(data: DataArguments, train: datasets.Dataset) -> Task:
    """What the data asks for."""
    if data.task == "question-answering":
        return QuestionAnswering.from_data(train, stride=data.stride)
    if data.task == "token-classification":
        labels = data.label_column or [
            next((c for c in ("ner_tags", "tags", "labels") if c in train.column_names), "tags")
        ]
        return TokenClassification.from_data(train, (data.text_columns or ["tokens"])[0], labels[0])
    texts = data.text_columns or [next((c for c in ("text", "sentence") if c in train.column_names), "text")]
    return SequenceClassification.from_data(train, texts, data.label_column or ["label"], data.problem_type)


def default_metrics(task: Task) -> list[str]:
    """The metrics of a task, the one that decides first."""
    if isinstance(task, QuestionAnswering):
        return ["squad"]
    if isinstance(task, SequenceClassification) and task.problem_type == "regression":
        return ["pearson", "spearman"]
    if isinstance(task, SequenceClassification) and task.problem_type == "multi_label_classification":
        return ["f1", "accuracy"]
    return ["accuracy", "f1"]


def score(task: Task, metrics: Sequence[str], predictions: Any, references: Any) -> dict[str, float]:
    """All metrics of predictions against references.

    Several classes: F1 is the mean over classes ("macro"); two: that of the second; several labels: of all decisions
    together ("micro"). Regressions get their mean squared error too, the one figure that a constant has.
    """
    several = isinstance(task, SequenceClassification) and task.problem_type == "multi_label_classification"
    if isinstance(task, TokenClassification):
        predictions, references = (
            np.concatenate([np.asarray(row, dtype=int) for row in rows]) for rows in (predictions, references)
        )
    result: dict[str, float] = {}
    for name in metrics:
        options: dict[str, Any] = {}
        if name == "f1" and not isinstance(task, QuestionAnswering):
            average = "micro" if several else "binary" if len(task.label_names) == 2 else "macro"
            options = {"average": average}
        metric = load_metric(name, "multilabel" if several else None)
        result |= metric.compute(predictions=predictions, references=references, **options)
    if isinstance(task, SequenceClassification) and task.problem_type == "regression":
        result["mse"] = float(np.mean((predictions - references) ** 2))
    return result


def load_tokenizer(arguments: ModelArguments) -> PreTrainedTokenizerBase:
    """The tokenizer of the checkpoint, or the one asked for."""
    if arguments.tokenizer is not None:
        return build_tokenizer(arguments.tokenizer)
    try:
        return AutoTokenizer.from_pretrained(arguments.model, trust_remote_code=arguments.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"No tokenizer could be loaded from {arguments.model}. Is the name right? If the checkpoint has none, give "
            f"--tokenizer. ({error})"
        ) from error


def load_model(arguments: Arguments, task: Task, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The checkpoint with a new head for the task, and a padding token on both sides.

    Raises:
        ValueError: there is no such checkpoint, or its family has no such head.
    """
    auto = AUTO_CLASSES[arguments.data.task]
    name, trust = arguments.model.model, arguments.model.trust_remote_code
    set_seed(arguments.training.seed)
    try:
        if arguments.model.random_init:
            config = AutoConfig.from_pretrained(name, trust_remote_code=trust, **task.config_fields())
            model = auto.from_config(config, trust_remote_code=trust)
        else:
            # Weights are trained in float32, whatever they were saved in; --bf16 computes in less.
            model = auto.from_pretrained(name, dtype=torch.float32, trust_remote_code=trust, **task.config_fields())
    except OSError as error:
        raise ValueError(str(error)) from error
    add_padding(model, tokenizer)
    return model


def _num_embeddings(model: PreTrainedModel) -> int:
    embeddings: Any = model.get_input_embeddings()
    return embeddings.weight.shape[0]


def add_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Gives a tokenizer without a padding token one, and tells the model.

    The token that ends a text serves where there is one: padding is masked out and has no label, so what it looks like does
    not matter, and the vocabulary stays as it is. Otherwise a new token is added.
    """
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is not None:
            tokenizer.pad_token = tokenizer.eos_token
        else:
            tokenizer.add_special_tokens({"pad_token": "<pad>"})
            if len(tokenizer) > _num_embeddings(model):
                model.resize_token_embeddings(len(tokenizer))
        logger.info(f"The tokenizer has no padding token: {tokenizer.pad_token!r} is used; padding is masked out")
    # Models without a mask in their pooling look for this token to find the last real one.
    model.config.pad_token_id = tokenizer.pad_token_id
    size, vocabulary = _num_embeddings(model), len(tokenizer)
    if vocabulary > size:
        raise ValueError(
            f"The tokenizer has {vocabulary} tokens and the model only {size}: they do not belong together."
        )


def longest_input(arguments: Arguments, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """What `--max-length` says, or what the model and its tokenizer take, at most 512."""
    if arguments.data.max_length is not None:
        return arguments.data.max_length
    limits = [DEFAULT_MAX_LENGTH, tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    return min(int(limit) for limit in limits if limit)


def prepare(arguments: Arguments) -> Run:
    """Everything up to the first step."""
    data, training = arguments.data, arguments.training
    with training.main_process_first(desc="preparing the data"):
        if training.process_index == 0:
            may_continue = arguments.run.resume or training.resume_from_checkpoint is not None
            folder = prepare_run_folder(
                output_folder(arguments), resume=may_continue, overwrite=arguments.run.overwrite_output_dir
            )
            if arguments.run.overwrite_output_dir and not may_continue:
                # Those of an earlier run would be taken for this one's.
                for checkpoint in folder.glob("checkpoint-*"):
                    shutil.rmtree(checkpoint)
        examples = load_examples(arguments)
        task = make_task(data, examples["train"])
        metrics = data.metrics or default_metrics(task)
        for name in metrics:
            load_metric(name)
        for split in ("train", "validation"):
            if not task.has_labels(examples[split]):
                raise ValueError(f"The {split} data has no labels; they are needed to train and to evaluate.")
        tokenizer = load_tokenizer(arguments.model)
        model = load_model(arguments, task, tokenizer)
        max_length = longest_input(arguments, model, tokenizer)
        encoded = datasets.DatasetDict(
            {split: task.encode(rows, tokenizer, max_length, split) for split, rows in examples.items()}
        )
    callbacks: list[TrainerCallback] = []
    if arguments.run.early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(arguments.run.early_stopping_patience))
        training.load_best_model_at_end = True
        if training.metric_for_best_model is None or training.metric_for_best_model == "loss":
            training.metric_for_best_model = METRIC_KEYS.get(metrics[0], Path(metrics[0]).stem)
            training.greater_is_better = True
    collator = DataCollatorForTokenClassification if isinstance(task, TokenClassification) else DataCollatorWithPadding
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        processing_class=tokenizer,
        data_collator=collator(tokenizer),
        preprocess_logits_for_metrics=partial(reduce_logits, task),
        callbacks=callbacks,
    )
    if not isinstance(model, SeqMixPreTrainedModel):
        # Classifiers of transformers accept the number of items in a whole update and ignore it, and the Trainer then
        # leaves the gradients of an accumulated update too large by the number of its parts (transformers#47688).
        trainer.model_accepts_loss_kwargs = False
    run = Run(arguments, task, metrics, examples, encoded, model, trainer)
    trainer.compute_metrics = scorer(run, "validation")
    return run


def reduce_logits(task: Task, logits: Any, labels: Any) -> Any:
    """The part of a model's output that the predictions need: what follows the logits is dropped."""
    if isinstance(task, QuestionAnswering):
        return logits[:2]
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.argmax(dim=-1) if isinstance(task, TokenClassification) else logits


def predictions_of(run: Run, split: str, output: Any) -> Any:
    """A model's output on a split as labels, numbers or answers."""
    task, encoded, examples = run.task, run.encoded[split], run.examples[split]
    if isinstance(task, TokenClassification):
        # the collator's padding is not in `encoded`, and the output is as long as its longest batch
        labels = np.full(np.shape(output), -100)
        for row, own in zip(labels, encoded["labels"], strict=True):
            row[: len(own)] = own
        words = [len(row) for row in examples[task.words_column]]
        return task.predictions(output, labels, encoded["kept"], words)
    if isinstance(task, QuestionAnswering):
        can_be_empty = not all(answers["text"] for answers in run.examples["train"]["answers"])
        return task.predictions(output, encoded, examples, can_be_empty)
    return task.predictions(output)


def scorer(run: Run, split: str) -> Callable[[EvalPrediction], dict[str, float]] | None:
    """A `compute_metrics` for one split; None if it has no labels."""
    if not run.task.has_labels(run.examples[split]):
        return None
    references = run.task.references(run.examples[split], split)

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        return score(run.task, run.metrics, predictions_of(run, split, prediction.predictions), references)

    return compute


def baselines(run: Run, split: str) -> dict[str, dict[str, float]]:
    """Scores of predictions that know only the training labels, and of a bag of words if that is asked for."""
    task, train, rows = run.task, run.examples["train"], run.examples[split]
    references = task.references(rows, split)
    if isinstance(task, QuestionAnswering):
        answers = [answer[0] if answer else "" for answer in task.references(train, "train")]
        constant: Any = [most_frequent(answers)] * len(rows)
        return {"most frequent answer": score(task, run.metrics, constant, references)}
    if isinstance(task, TokenClassification):
        tag = most_frequent([tag for row in task.references(train, "train") for tag in row])
        constant = [[tag] * len(row) for row in references]
        return {"majority class": score(task, run.metrics, constant, references)}
    labels = task.references(train, "train")
    name = "mean" if task.problem_type == "regression" else "majority class"
    result = {name: score(task, run.metrics, constant_labels(labels, task.problem_type, len(rows)), references)}
    if run.arguments.data.baseline == "bag-of-words":
        texts, held_out = ([list(part[column]) for column in task.text_columns] for part in (train, rows))
        predictions = bag_of_words(texts, labels, held_out, task.problem_type)
        result["bag of words"] = score(task, run.metrics, predictions, references)
    return result


def evaluate_split(run: Run, split: str) -> dict[str, Any]:
    """The model's figures on a split beside the baselines', and its predictions as a file if they are asked for."""
    labelled = run.task.has_labels(run.examples[split])
    run.trainer.compute_metrics = scorer(run, split)
    output = run.trainer.predict(run.encoded[split], metric_key_prefix=split)
    if not run.trainer.is_world_process_zero():
        return {}
    if run.arguments.run.save_predictions:
        write_predictions(run, split, output.predictions)
    if not labelled:
        return {"examples": len(run.examples[split])}
    measured = {key.removeprefix(f"{split}_"): value for key, value in (output.metrics or {}).items()}
    speed = {"runtime", "samples_per_second", "steps_per_second", "model_preparation_time"}
    return {
        "examples": len(run.examples[split]),
        **{key: value for key, value in measured.items() if key not in speed},
        "baselines": baselines(run, split),
    }


def write_predictions(run: Run, split: str, output: Any) -> None:
    """One JSON line an example, in the order of the data: prediction, and label if there is one."""
    task = run.task
    predictions: Any = predictions_of(run, split, output)
    readable = predictions if isinstance(task, QuestionAnswering) else task.readable(predictions)
    rows = [{"prediction": prediction} for prediction in readable]
    if task.has_labels(run.examples[split]):
        references: Any = task.references(run.examples[split], split)
        labels = references if isinstance(task, QuestionAnswering) else task.readable(references)
        rows = [{**row, "label": label} for row, label in zip(rows, labels, strict=True)]
    path = run.folder / f"predictions_{split}.jsonl"
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    os.replace(temporary, path)


def train_and_save(run: Run) -> dict[str, Any]:
    """Trains from the start or from the last complete checkpoint, evaluates, and writes the output folder."""
    arguments, trainer = run.arguments, run.trainer
    folder = run.folder
    checkpoint = arguments.training.resume_from_checkpoint
    if checkpoint is None and arguments.run.resume:
        found = last_complete_checkpoint(folder)
        checkpoint = str(found) if found else None
        logger.info(f"Continuing from {checkpoint}" if found else f"No checkpoint in {folder}: starting anew")
    train = trainer.train(resume_from_checkpoint=checkpoint).metrics
    trainer.save_model()
    history = list(trainer.state.log_history)
    evaluations = {split: evaluate_split(run, split) for split in ("validation", "test") if split in run.encoded}
    results = {
        "task": arguments.data.task,
        "model": arguments.model.model,
        **{key: value for key, value in run.task.config_fields().items() if key in ("problem_type", "num_labels")},
        **evaluations,
        "train": {
            "examples": len(run.examples["train"]),
            "loss": train["train_loss"],
            "seconds": train["train_runtime"],
        },
        "num_updates": trainer.state.global_step,
        "best_checkpoint": trainer.state.best_model_checkpoint,
        "num_parameters": run.model.num_parameters(),
        "num_processes": arguments.training.world_size,
        "seed": arguments.training.seed,
        "arguments": {
            "model": dataclasses.asdict(arguments.model),
            "data": dataclasses.asdict(arguments.data),
            "run": dataclasses.asdict(arguments.run),
            "training": arguments.training.to_sanitized_dict(),
        },
        "environment": run_environment(),
    }
    if trainer.is_world_process_zero():
        write_json(folder / "results.json", results)
        if any("loss" in entry for entry in history):
            regression = results.get("problem_type") == "regression"
            title = f"{arguments.data.glue_task or arguments.data.task}: {Path(arguments.model.model).name}"
            plot_loss(
                history,
                folder / "loss.png",
                unit="mean squared error" if regression else "cross-entropy, nats",
                title=title,
            )
        print(results_table(arguments.model.model, evaluations))
    return results


def results_table(model: str, evaluations: dict[str, dict[str, Any]]) -> str:
    """Model and baselines, a row a split."""
    rows: list[dict[str, Any]] = []
    for split, values in evaluations.items():
        for name, figures in {Path(model).name: values, **values.get("baselines", {})}.items():
            rows.append({"split": split, "by": name, **figures})
    hidden = {"split", "by", "examples", "baselines", "loss"}
    keys = dict.fromkeys(key for row in rows for key in row if key not in hidden)
    columns = {"split": "split", "by": "predictions by", **{key: f"{key}:.4f" for key in keys}, "loss": "loss:.4f"}
    return markdown_table(rows, columns)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the command line and returns what is written to results.json; exits with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    except ValueError as error:
        sys.exit(f"finetune.py: {error}")
    try:
        try:
            run = prepare(arguments)
        except ValueError as error:
            sys.exit(f"finetune.py: {error}")
        return train_and_save(run)
    except Exception as error:
        message = explain_write_error(error, output_folder(arguments))
        if message is None:
            raise
        sys.exit(f"finetune.py: {message}")


if __name__ == "__main__":
    main()
