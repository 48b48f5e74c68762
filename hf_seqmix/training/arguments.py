"""The arguments that pretrain.py and finetune.py share, and the recipe that a command line names.

A recipe holds arguments in a file; what is given on the command line overrides the file.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from transformers import HfArgumentParser, Trainer, get_scheduler

from .batch_averages import BATCH_NORM_BATCHES
from .command import HelpFormatter
from .divergence.response import DivergenceWatch
from .folders.resumable import LAST
from .optimizers import MUON
from .recipes import check_fields, read_recipe, recipe_arguments, without_replaced
from .spelling import allowed_names
from .training_arguments import SeqMixTrainingArguments

__all__ = ["Arguments", "RunArguments", "arguments_parser", "read_arguments"]

Model = TypeVar("Model")
Data = TypeVar("Data")
Own = TypeVar("Own", bound="RunArguments")

_LEAST = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0,
    "num_train_epochs": 0,
    "seed": 0,
    "batch_norm_batches": 0,
    "eval_accumulation_steps": 1,
    "dataloader_num_workers": 0,
    "dataloader_prefetch_factor": 1,
    "warmup_steps": 0,
    "neftune_noise_alpha": 0,
}
"""Arguments of every run -> the least that makes sense, which would be found out late or never; None is none."""


@dataclass
class RunArguments:
    """Where a run goes on from; the rest of the training arguments are transformers' own."""

    weight_decay_on_all_parameters: bool = field(
        default=False, metadata={"help": "Decay biases and norms too, as fairseq and torch's optimizers do."}
    )
    max_seconds: float | None = field(
        default=None,
        metadata={
            "help": "Train for about so many seconds: of CPU time on one thread, else of the wall. A trial says how "
            "many updates that is. Replaces --num-train-epochs, as --max-steps does."
        },
    )
    batch_norm_batches: int = field(
        default=BATCH_NORM_BATCHES,
        metadata={
            "help": "Training batches over which batch norms are averaged before each evaluation and checkpoint; 0 "
            "leaves the running averages."
        },
    )
    on_divergence: Literal["stop", "back-off", "ignore"] = field(
        default="stop",
        metadata={"help": "Where the loss explodes or is not finite: stop, or go back and on with a lower rate."},
    )
    back_off_factor: float = field(default=0.5, metadata={"help": "What a back-off multiplies the learning rate by."})
    max_back_offs: int = field(default=3, metadata={"help": "Back-offs before the run stops after all."})
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

    def watch(self) -> DivergenceWatch:
        """Return what meets divergence."""
        return DivergenceWatch(self.on_divergence, self.back_off_factor, self.max_back_offs)


@dataclass
class Arguments(Generic[Model, Data, Own]):
    """All arguments of a run."""

    model: Model
    data: Data
    run: Own
    training: SeqMixTrainingArguments

    def check(self) -> None:
        """Check what every run is told, before anything is read or written.

        Raises:
            ValueError: there is no output folder, a number is out of range, the budget comes with a number of updates,
                there is no folder to continue from, nothing would be trained, or float16 would be float32.
        """
        training, run = self.training, self.run
        if not training.output_dir:
            raise ValueError("give --output-dir, the folder where the model and its results go.")
        for name, least in _LEAST.items():
            value = getattr(run if hasattr(run, name) else training, name)
            if value is not None and not least <= value < math.inf:
                raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be at least {least} and finite.")
        if training.max_steps == 0 or training.max_steps < -1:
            raise ValueError(f"--max-steps is {training.max_steps}; give at least 1.")
        if not training.do_train:
            raise ValueError(
                "--do-train is false, and this script trains: leave it out. run_benchmarks.py scores a trained model."
            )
        if training.fp16 and (training.use_cpu or not torch.accelerator.is_available()):
            raise ValueError(
                "--fp16 needs an accelerator, and the run is on the CPU, which would compute in float32: leave it "
                "out, or give --bf16 auto."
            )
        run.watch()
        self._check_schedule()
        if self.resume not in (None, LAST) and not Path(str(self.resume)).is_dir():
            raise ValueError(f"there is no checkpoint {self.resume} to --resume from. Check the spelling.")
        seconds = run.max_seconds
        if seconds is None:
            return
        if not 0 < seconds < math.inf:
            raise ValueError(f"--max-seconds is {seconds}; it must be positive and finite.")
        if training.max_steps > 0:
            raise ValueError("--max-seconds and --max-steps both say how long to train; give one of them.")

    def _check_schedule(self) -> None:
        """Make an optimizer and a schedule as the library would, which otherwise fail after the data are read."""
        training, dummy = self.training, torch.optim.SGD([torch.zeros(1)], lr=1.0)
        kwargs = training.lr_scheduler_kwargs
        try:
            if training.optim != MUON:
                Trainer.get_optimizer_cls_and_kwargs(training)
            get_scheduler(training.lr_scheduler_type, dummy, 0, 10, dict(kwargs) if isinstance(kwargs, dict) else None)
        except (ImportError, TypeError, ValueError) as error:
            chosen = f"--optim {getattr(training.optim, 'value', training.optim)} with --lr-scheduler-type "
            chosen += getattr(training.lr_scheduler_type, "value", str(training.lr_scheduler_type))
            raise ValueError(f"{chosen} cannot be used: {error}") from error

    @property
    def folder(self) -> Path:
        """Where the run writes."""
        return Path(str(self.training.output_dir))

    @property
    def resume(self) -> str | None:
        """What to continue from."""
        return self.run.resume or self.training.resume_from_checkpoint

    @property
    def earlier_folders(self) -> list[Path]:
        """Folders that hold an earlier part of the run, if it is resumed."""
        if self.resume is None:
            return []
        checkpoint = Path(self.resume)
        return [self.folder] if self.resume == LAST else [self.folder, checkpoint.parent, checkpoint]

    def to_json(self) -> dict[str, Any]:
        """Return every argument by section, ready for JSON."""
        sections: dict[str, Any] = {"model": self.model, "data": self.data, "run": self.run}
        return {name: dataclasses.asdict(section) for name, section in sections.items()} | {
            "training": self.training.to_sanitized_dict()
        }


def arguments_parser(
    kinds: Sequence[type], usage: str, description: str | None, defaults: Mapping[str, Any]
) -> HfArgumentParser:
    """Return the parser of a training script.

    Args:
        kinds: dataclasses of the model's, the data's and the run's arguments; `SeqMixTrainingArguments` follow.
        usage: what --help says first.
        description: what --help says then, its lines kept.
        defaults: of arguments, in place of their own.
    """
    every: list[Any] = [*kinds, SeqMixTrainingArguments]
    parser = HfArgumentParser(
        every,
        usage=usage,
        description=description,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    # Empty, or the library would write to a folder of its own choice.
    shared = {
        "output_dir": "",
        "logging_steps": 0.01,
        "report_to": "none",
        "dataloader_pin_memory": torch.accelerator.is_available(),
    }
    parser.set_defaults(**shared, **defaults)
    parser.add_argument(
        "--recipe", help="A file with arguments, see scripts/recipes; arguments on this line override the file's."
    )
    return parser


def read_arguments(
    parser: HfArgumentParser,
    kinds: Sequence[type],
    argv: Sequence[str],
    replaces: Mapping[str, Collection[str]],
    family: str | None = None,
) -> tuple[Any, ...]:
    """Read a command line and the recipe that it names.

    Args:
        parser: of `arguments_parser`.
        kinds: as given to `arguments_parser`.
        argv: the command line.
        replaces: name of an argument -> keys of a recipe whose place the argument takes.
        family: which family of the recipe.

    Returns:
        An object of each kind, and the training arguments.

    Raises:
        ValueError: there is no such option, the recipe has a section or key that there is not, or it gives fields
            that the model type of the command line lacks.
    """
    recipe = parser.parse_known_args(list(argv))[0].recipe
    typed, of_recipe = list(argv), dict[str, Any]()
    if recipe is not None:
        of_model, of_data, of_run = kinds
        sections = {"model": (of_model,), "data": (of_data,), "training": (of_run, SeqMixTrainingArguments)}
        allowed = {
            section: {entry.name for kind in parts for entry in dataclasses.fields(kind) if entry.init}
            for section, parts in sections.items()
        }
        read = without_replaced(read_recipe(recipe, allowed, family), argv, replaces)
        _check_lists(parser, read, recipe)
        typed, of_recipe = recipe_arguments(read) + typed, read.get("model", {})
    *objects, unknown = parser.parse_args_into_dataclasses(args=typed, return_remaining_strings=True)
    if unknown:
        names = [word.partition("=")[0] for word in unknown if word.startswith("-")] or unknown
        options = [option for action in parser._actions for option in action.option_strings if "_" not in option]
        raise ValueError(
            f"there is no option {', '.join(names)}; {allowed_names(names, options, '--help lists all there are.')}"
        )
    parsed = tuple(objects[: len(kinds) + 1])
    model_type = getattr(parsed[0], "model_type", None)
    if model_type not in (None, of_recipe.get("model_type")):
        check_fields(model_type, ())
        try:
            check_fields(model_type, of_recipe.get("config_overrides") or ())
        except ValueError as error:
            raise ValueError(
                f"--model-type {model_type} does not go with the recipe {recipe}, whose config_overrides are of "
                f"another model type: {error} Give a recipe of {model_type}, or --config-overrides without a recipe."
            ) from error
    training: SeqMixTrainingArguments = parsed[-1]
    if training.run_name is None:
        # A tracker that is started again after training, for the last evaluation, finds the run by its name.
        training.run_name = training.output_dir
    return parsed


def _check_lists(parser: HfArgumentParser, recipe: Mapping[str, Mapping[str, Any]], path: str) -> None:
    """Raise a `ValueError` where a recipe lists several values of an option that takes one."""
    several = {action.dest for action in parser._actions if action.nargs in ("+", "*")}
    for section, values in recipe.items():
        for key, value in values.items():
            if isinstance(value, list) and len(value) > 1 and key not in several:
                raise ValueError(
                    f"{key} in the section {section!r} of the recipe {path} is one value, and no list; given {value}."
                    " Name one of them."
                )
