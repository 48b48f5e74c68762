"""The command line of finetune.py: its arguments, the recipe it may name, and what contradicts what."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hf_seqmix.data.labeled import GLUE_TASKS
from hf_seqmix.training import arguments, check_fields, parse_overrides

# What on the command line makes other keys of a recipe meaningless: the same said otherwise, or laid out for another
# length.
REPLACES = {
    "model": {"model_type", "config_overrides", "tokenizer"},
    "model_type": {"model"},
    "dataset": {"train_file", "validation_file", "test_file", "glue_task"},
    "train_file": {"dataset", "glue_task", "validation_file", "test_file"},
    "glue_task": {"dataset", "train_file", "validation_file", "test_file"},
    "metric_for_best_model": {"greater_is_better"},
    "max_steps": {"num_train_epochs", "max_seconds", "schedule_steps", "warmup_steps"},
    "num_train_epochs": {"max_steps", "max_seconds", "schedule_steps", "warmup_steps"},
    "max_seconds": {"max_steps", "num_train_epochs", "schedule_steps", "warmup_steps"},
}


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
    new_head: bool = field(default=False, metadata={"help": "Draw the head of a classifier anew, for other labels."})
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
    dataset: str | None = field(
        default=None,
        metadata={
            "help": "A Hub name, name:config, or a local folder, such as one with a folder of images for each label."
        },
    )
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
            "help": "Hold that share out in any case, and score the data's own validation split as the test data, "
            "once at the end: for benchmarks such as GLUE, whose test labels are secret."
        },
    )
    text_columns: list[str] | None = field(
        default=None,
        metadata={
            "help": "One, or two for pairs; by default text or sentence. Words of a token classification: one, by "
            "default tokens."
        },
    )
    image_column: str | None = field(
        default=None,
        metadata={
            "help": "Encoded images or paths of files; by default image or img. A relative path starts from the "
            "folder of its table, or from the working directory where a file is there alone."
        },
    )
    label_column: list[str] | None = field(
        default=None,
        metadata={
            "help": "Column of the label, by default label (of words: ner_tags, tags or labels); several columns of "
            "zeros and ones: several labels."
        },
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
        default=None, metadata={"help": "Train on so many examples, drawn at random, the same in every run of a seed."}
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
class RunArguments(arguments.RunArguments):
    """Where to and until when; the rest of the training arguments are transformers' own."""

    early_stopping_patience: int | None = field(
        default=None,
        metadata={"help": "Stop after so many evaluations without a better one, and keep the best model."},
    )
    schedule_steps: int | None = field(
        default=None, metadata={"help": "Updates the learning rate's schedule is laid out for, if not the run's own."}
    )
    save_predictions: bool = field(
        default=False,
        metadata={"help": "Write predictions_SPLIT.jsonl, with the row of each example in its file, from 0."},
    )


@dataclass
class Arguments(arguments.Arguments[ModelArguments, DataArguments, RunArguments]):
    """All arguments of a run."""

    @property
    def reads_images(self) -> bool:
        """Whether the inputs are images instead of text."""
        return self.data.task == "image-classification"


KINDS = (ModelArguments, DataArguments, RunArguments)
USAGE = (
    "finetune.py (--model NAME | --model-type TYPE | --recipe FILE) --output-dir DIR [options]   (--help lists them)"
)
LEARNING_RATE = 2e-4
"""By default, of a checkpoint that is fine-tuned."""
DEFAULTS = {
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 1,
    "learning_rate": LEARNING_RATE,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "warmup_steps": 0.1,
}


def parse_arguments(argv: Sequence[str], description: str | None = None) -> Arguments:
    """Read the command line and the recipe that it names.

    Raises:
        ValueError: arguments contradict each other or one is missing, or the recipe holds what there is not.
    """
    parser = arguments.arguments_parser(KINDS, USAGE, description, DEFAULTS)
    parser.add_argument("--family", help="Which family of a recipe for several.")
    known = parser.parse_known_args(list(argv))[0]
    if known.recipe is None and known.family is not None:
        raise ValueError("--family chooses from a recipe; give one with --recipe, or --model-type instead.")
    read = Arguments(*arguments.read_arguments(parser, KINDS, argv, REPLACES, known.family))
    _check(read)
    return read


def check_schedule(arguments: Arguments, num_examples: int) -> None:
    """Refuse a run on so many examples that goes on after its schedule has ended.

    Raises:
        ValueError: the schedule is shorter than the run: the library's cosine would rise again.
    """
    training, steps = arguments.training, arguments.run.schedule_steps
    batches = math.ceil(num_examples / (training.train_batch_size * training.world_size))
    updates = math.ceil(training.num_train_epochs * math.ceil(batches / training.gradient_accumulation_steps))
    if training.max_steps > 0:
        updates = training.max_steps
    if steps is not None and updates > steps:
        raise ValueError(
            f"--schedule-steps is {steps}, but the run makes {updates} updates: its learning rate would end before "
            f"it. Give fewer epochs or --max-steps, or a longer schedule."
        )


def _check_columns(data: DataArguments) -> None:
    """Refuse columns and kinds of labels that a task does not read."""
    named = {"--text-columns": data.text_columns, "--label-column": data.label_column}
    if data.task == "question-answering" and (given := [option for option, columns in named.items() if columns]):
        raise ValueError(
            f"--task question-answering reads the columns question, context and answers: leave out "
            f"{' and '.join(given)}, and rename columns that are called otherwise."
        )
    if data.task == "token-classification":
        for option, columns in named.items():
            if columns and len(columns) > 1:
                raise ValueError(
                    f"{option} of --task token-classification is one column; given {', '.join(columns)}: name one."
                )
    if data.problem_type is not None and data.task in ("question-answering", "token-classification"):
        raise ValueError(
            f"--problem-type {data.problem_type} is for labels of whole texts and images, not for {data.task}: leave "
            "it out."
        )


def _check(arguments: Arguments) -> None:
    model, data, run, training = arguments.model, arguments.data, arguments.run, arguments.training
    if (model.model is None) == (model.model_type is None):
        raise ValueError("give either --model, a checkpoint, or --model-type, such as tnn, to train from scratch.")
    if model.config_overrides and model.model_type is None:
        raise ValueError("--config-overrides belong to --model-type; a checkpoint has its own configuration.")
    if model.random_init and model.model is None:
        raise ValueError("--random-init takes the configuration of a --model; with --model-type weights are random.")
    if model.new_head and (model.model is None or model.random_init):
        raise ValueError("--new-head goes with the weights of a --model; leave it out.")
    if data.max_length is not None and data.max_length < 1:
        raise ValueError(f"--max-length is {data.max_length}; give at least 1 token.")
    if model.model_type is not None and model.tokenizer is None and not arguments.reads_images:
        raise ValueError("a model from scratch has no tokenizer: give --tokenizer, such as byte or bpe:4096.")
    if arguments.reads_images and (model.tokenizer is not None or data.text_columns or data.max_length is not None):
        raise ValueError("--tokenizer, --text-columns and --max-length are for text, not for image-classification.")
    if not arguments.reads_images and (data.image_column or data.image_mean or data.image_std):
        raise ValueError("--image-column, --image-mean and --image-std belong to --task image-classification.")
    _check_columns(data)
    arguments.check()
    if model.model_type is not None:
        check_fields(model.model_type, parse_overrides(model.config_overrides))
    if run.schedule_steps is not None and run.max_seconds is not None:
        raise ValueError("--schedule-steps lays out a number of updates, which --max-seconds leaves open; give one.")
    if run.schedule_steps is not None and run.schedule_steps < 1:
        raise ValueError(f"--schedule-steps must be positive; given {run.schedule_steps}.")
    sources = [data.glue_task, data.dataset, data.train_file]
    if sum(source is not None for source in sources) != 1:
        raise ValueError("give one of --glue-task, --dataset and --train-file.")
    if data.train_file is None and (data.validation_file or data.test_file):
        raise ValueError("--validation-file and --test-file belong to --train-file.")
    for option, file in (("train", data.train_file), ("validation", data.validation_file), ("test", data.test_file)):
        if file is not None and Path(file).expanduser().is_dir():
            raise ValueError(
                f"--{option}-file {file} is a folder; give a folder of all splits as --dataset, or a file."
            )
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
                "early stopping keeps the best evaluation: --eval-strategy and --save-strategy must agree."
            )
        if training.eval_strategy == "steps" and training.eval_steps != training.save_steps:
            raise ValueError(
                f"early stopping keeps the best evaluation: --save-steps is {training.save_steps} and --eval-steps "
                f"{training.eval_steps}; give the same."
            )
