"""The command line of finetune.py: its arguments, the recipe it may name, and what contradicts what."""

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import HfArgumentParser, TrainingArguments

from hf_seqmix.data.labelled import GLUE_TASKS
from hf_seqmix.training import read_recipe, recipe_arguments, without_replaced
from hf_seqmix.training.resumable import LAST

# What on the command line makes other keys of a recipe meaningless: the same said otherwise, or laid out for another length.
REPLACES = {
    "model": {"model_type", "config_overrides"},
    "model_type": {"model"},
    "dataset": {"train_file", "validation_file", "test_file", "glue_task"},
    "train_file": {"dataset", "glue_task"},
    "glue_task": {"dataset", "train_file", "validation_file", "test_file"},
    "max_steps": {"num_train_epochs", "schedule_steps", "warmup_steps"},
    "num_train_epochs": {"max_steps", "schedule_steps", "warmup_steps"},
}


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Examples as they are written in the script, and the default of every argument."""


@dataclass
class ModelArguments:
    """What is trained."""

    model: str | None = field(
        default=None, metadata={"help": "A checkpoint: a name or a folder; causal or masked, of any family."}
    )
    model_type: str | None = field(
        default=None,
        metadata={"help": "Train from scratch: a family, such as tnn, or any model type of transformers."},
    )
    config_overrides: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Fields of the configuration of --model-type, as key=value (several allowed).",
            "action": "extend",
        },
    )
    tokenizer: str | None = field(
        default=None,
        metadata={"help": "byte, listops, bpe:SIZE trained on the spot, or a name or folder; else the model's own."},
    )
    random_init: bool = field(
        default=False, metadata={"help": "Take only the configuration and start from random weights, to compare with."}
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the checkpoint."})

    @property
    def name(self) -> str:
        """The model in a word."""
        return self.model_type or Path(self.model or "").name


@dataclass
class DataArguments:
    """What it is trained on and measured by."""

    task: Literal["sequence-classification", "token-classification", "question-answering", "image-classification"] = (
        field(
            default="sequence-classification",
            metadata={"help": "A label a text or pair of texts, a label a word, SQuAD, or a label an image."},
        )
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
    validation_from_train: bool = field(
        default=False,
        metadata={
            "help": "Hold that share out in any case, and score the data's own validation split as the test data, once at the"
            " end: for benchmarks such as GLUE, whose test labels are secret."
        },
    )
    text_columns: list[str] | None = field(
        default=None, metadata={"help": "One, or two for pairs. Words of a token classification: one (tokens)."}
    )
    image_column: str | None = field(
        default=None, metadata={"help": "Encoded images or paths of files; by default image or img."}
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
    image_mean: list[float] | None = field(
        default=None, metadata={"help": "Subtracted from pixels in [0, 1]: one number, or one a channel."}
    )
    image_std: list[float] | None = field(default=None, metadata={"help": "What they are then divided by."})
    stride: int = field(default=128, metadata={"help": "Tokens that two windows of a long context share (SQuAD)."})
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Train on so many examples, drawn at random, the same in every run."}
    )
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Evaluate on so many examples of each split, drawn likewise."}
    )
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
    schedule_steps: int | None = field(
        default=None, metadata={"help": "Updates the learning rate's schedule is laid out for, if not the run's own."}
    )
    weight_decay_on_all_parameters: bool = field(
        default=False, metadata={"help": "Decay biases and norms too, as torch's optimizers do."}
    )
    save_predictions: bool = field(default=False, metadata={"help": "Write predictions_SPLIT.jsonl."})
    resume: str | None = field(
        default=None,
        metadata={
            "help": "Continue from the newest whole checkpoint, if there is one, or from the one given.",
            "nargs": "?",
            "const": LAST,
        },
    )
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

    @property
    def folder(self) -> Path:
        """Where the run writes."""
        return Path(self.training.output_dir or "trainer_output")

    @property
    def resume(self) -> str | None:
        """What to continue from."""
        return self.run.resume or self.training.resume_from_checkpoint

    @property
    def reads_images(self) -> bool:
        """Whether the inputs are images instead of text."""
        return self.data.task == "image-classification"


def parse_arguments(argv: Sequence[str], description: str | None = None) -> Arguments:
    """Reads the command line and the recipe it names.

    Raises:
        ValueError: arguments contradict each other or one is missing, or the recipe holds what there is not.
    """
    sections = {
        "model": (ModelArguments,),
        "data": (DataArguments,),
        "training": (RunArguments, TrainingArguments),
    }
    kinds: list[Any] = [ModelArguments, DataArguments, RunArguments, TrainingArguments]
    parser = HfArgumentParser(
        kinds,
        usage="finetune.py (--model NAME | --model-type TYPE | --recipe FILE) --output-dir DIR [options]   (--help lists"
        " them)",
        description=description,
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
    parser.add_argument(
        "--recipe",
        help="A file with arguments, see scripts/recipes/lra; others on this line override it. --max-steps and"
        " --num-train-epochs also take the place of its schedule and warm-up.",
    )
    parser.add_argument("--family", help="Which family of a recipe for several.")
    known = parser.parse_known_args(argv)[0]
    typed = list(argv)
    if known.recipe is not None:
        allowed = {
            section: {entry.name for kind in parts for entry in dataclasses.fields(kind) if entry.init}
            for section, parts in sections.items()
        }
        recipe = without_replaced(read_recipe(known.recipe, allowed, known.family), argv, REPLACES)
        typed = recipe_arguments(recipe) + typed
    elif known.family is not None:
        raise ValueError("--family chooses from a recipe; give one with --recipe, or --model-type instead.")
    model, data, run, training, _ = parser.parse_args_into_dataclasses(args=typed)
    arguments = Arguments(model, data, run, training)
    _check(arguments)
    return arguments


def _check(arguments: Arguments) -> None:
    model, data, run, training = arguments.model, arguments.data, arguments.run, arguments.training
    if (model.model is None) == (model.model_type is None):
        raise ValueError("Give either --model, a checkpoint, or --model-type, such as tnn, to train from scratch.")
    if model.config_overrides and model.model_type is None:
        raise ValueError("--config-overrides belong to --model-type; a checkpoint has its own configuration.")
    if model.random_init and model.model is None:
        raise ValueError("--random-init takes the configuration of a --model; with --model-type weights are random.")
    if model.model_type is not None and model.tokenizer is None and not arguments.reads_images:
        raise ValueError("A model from scratch has no tokenizer: give --tokenizer, such as byte or bpe:4096.")
    if arguments.reads_images and (model.tokenizer is not None or data.text_columns or data.max_length is not None):
        raise ValueError("--tokenizer, --text-columns and --max-length are for text, not for image-classification.")
    if not arguments.reads_images and (data.image_column or data.image_mean or data.image_std):
        raise ValueError("--image-column, --image-mean and --image-std belong to --task image-classification.")
    if run.schedule_steps is not None and run.schedule_steps < 1:
        raise ValueError(f"--schedule-steps must be positive; given {run.schedule_steps}.")
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
    if data.validation_from_train and data.test_file is not None:
        raise ValueError("--validation-from-train makes test data of the validation data; leave out --test-file.")
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
