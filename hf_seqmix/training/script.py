"""How pretrain.py and finetune.py run: from the command line to what they write, or to a line on what to mend."""

import logging
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, TypeVar

from .arguments import Arguments
from .budget import updates_of, updates_within
from .command import interruptible, packages_explained
from .divergence.error import DivergenceError
from .folders.folder_lock import folders_released
from .folders.resumable import ResumableTrainer
from .folders.run_files import ARGUMENTS_FILE
from .folders.run_folder import explain_write_error, nothing_left
from .folders.same_run import changed_arguments, record_arguments
from .memory import keep_freed_memory
from .optimizers import OptimizerError

__all__ = ["run_script"]

_REQUIREMENT = re.compile(r"'([^']+)' distribution was not found")
"""In what the library says in place of the name of a package."""

AnyArguments = TypeVar("AnyArguments", bound=Arguments[Any, Any, Any])
Prepared = TypeVar("Prepared")


def run_script(
    name: str,
    parse: Callable[[], AnyArguments],
    prepare: Callable[[AnyArguments], tuple[Prepared, ResumableTrainer]],
    finish: Callable[[AnyArguments, Prepared, str | None], dict[str, Any]],
) -> dict[str, Any]:
    """Run a training script; exit with one line where the user can mend something.

    Args:
        name: of the script, such as "pretrain.py".
        parse: reads the command line.
        prepare: makes data, model and trainer.
        finish: trains from the checkpoint given, evaluates and writes; gives what it wrote to results.json.

    Returns:
        What `finish` gives.
    """
    keep_freed_memory()
    try:
        arguments = parse()
    except (ValueError, OSError) as error:  # of the library too: files of options that are not there
        sys.exit(f"{name}: {error}")
    except PackageNotFoundError as error:
        found = _REQUIREMENT.search(str(error.name))
        package = found[1] if found else error.name
        sys.exit(f"{name}: the package {package} is needed by these options, and is not installed.")
    said = f"{name}: interrupted; --resume continues from the last complete checkpoint, if there is one."
    # Of several processes, a launcher ends all.
    stopped = interruptible(said) if arguments.training.world_size == 1 else nullcontext()
    with stopped, folders_released(), packages_explained(name):
        return _run(name, arguments, prepare, finish)


def _run(
    name: str,
    arguments: AnyArguments,
    prepare: Callable[[AnyArguments], tuple[Prepared, ResumableTrainer]],
    finish: Callable[[AnyArguments, Prepared, str | None], dict[str, Any]],
) -> dict[str, Any]:
    logger = logging.getLogger(name.removesuffix(".py"))
    try:
        try:
            with nothing_left(arguments.folder, mine=arguments.training.process_index == 0):
                prepared, trainer = prepare(arguments)
                trainer.check_optimizer()
                checkpoint, line = trainer.find_checkpoint(arguments.resume)
                began = None if checkpoint is None else Path(checkpoint).parent
                changed = [] if began is None else changed_arguments(began, arguments.to_json())
        except (ValueError, OSError) as error:  # the Hub out of reach is an OSError
            sys.exit(f"{name}: {error}")
        if trainer.is_world_process_zero():
            if line is not None:
                logger.warning(line)
            if checkpoint is None or not (arguments.folder / ARGUMENTS_FILE).is_file():
                record_arguments(arguments.folder, arguments.to_json())
        if changed and trainer.is_world_process_zero():
            logger.warning(
                f"The run is told otherwise than when it began: {'; '.join(changed)}. Rates stay those of the "
                "checkpoint; the schedule is the one that is given now."
            )
        if (seconds := arguments.run.max_seconds) is not None:
            # A resumed run goes on to where it was to end.
            steps = updates_within(trainer, seconds) if checkpoint is None else updates_of(checkpoint)
            trainer.args.max_steps = steps
            if trainer.is_world_process_zero():
                why = f"in {seconds:,g} seconds" if checkpoint is None else "in all, as many as when the run began"
                logger.warning(f"{steps:,} updates {why}")
        return finish(arguments, prepared, checkpoint)
    except (DivergenceError, OptimizerError) as error:
        sys.exit(f"{name}: {error}")
    except Exception as error:
        message = explain_write_error(error, arguments.folder)
        if message is None:
            raise
        sys.exit(f"{name}: {message}")
