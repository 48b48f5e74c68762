"""How a command ends where its user can mend something, or stops it: in one line."""

import argparse
import errno
import inspect
import logging
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from .folders.folder_lock import folders_released
from .folders.run_folder import explain_write_error
from .load_errors import without_lists

__all__ = [
    "INTERRUPTED",
    "CommandParser",
    "HelpFormatter",
    "add_device_argument",
    "device_name",
    "explained",
    "interruptible",
    "new_folder",
    "packages_explained",
    "positive",
    "refuse_twice",
]

INTERRUPTED = 130
"""The exit status that shells give a command that Ctrl-C ended."""

EXTRAS = {
    **dict.fromkeys(("accelerate", "datasets", "matplotlib", "tokenizers", "yaml"), "train"),
    **dict.fromkeys(("evaluate", "scipy", "sklearn"), "eval"),
    "triton": "triton",
}
"""Package, as it is imported -> the extra that brings it."""

_WRONG_PATHS = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}

logger = logging.getLogger(__name__)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Writes descriptions as they stand in a script, and the default of each option whose text names none."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return super()._fill_text(inspect.cleandoc(text), width, indent)  # docstrings of functions are indented

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        nothing = not default and type(default) not in (int, float)  # 0 is something
        if not action.help or "default" in action.help or action.nargs == 0 or nothing:
            return action.help
        several = isinstance(default, list | tuple)
        if several and list(default) == list(action.choices or ()):
            said = "all"
        else:
            said = shlex.join(str(getattr(each, "value", each)) for each in (default if several else [default]))
        return f"{action.help} (default: {said.replace('%', '%%')})"


class CommandParser(argparse.ArgumentParser):
    """A parser, like those of its subcommands, whose help is a `HelpFormatter`'s."""

    def __init__(self, prog: str | None = None, **kwargs: Any) -> None:
        super().__init__(prog, formatter_class=HelpFormatter, **kwargs)


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--device`, a GPU where there is one."""
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=device_name, default=here, help="where to run, such as cpu or cuda:0")


@contextmanager
def interruptible(said: str) -> Iterator[None]:
    """End with a message and `INTERRUPTED` on Ctrl-C and on SIGTERM, a process that was started included.

    Without it SIGTERM would leave that process behind, and it would go on in the folder of its run.

    Args:
        said: the message.
    """
    own = os.getpid()

    def interrupt(number: int, frame: Any) -> None:
        if os.getpid() != own:  # a worker that inherited this function, and is ended as workers are
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        # Not KeyboardInterrupt, after which `subprocess` kills the process without waiting for its end.
        logger.error(said)
        sys.exit(INTERRUPTED)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        logger.error(said)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def packages_explained(name: str) -> Iterator[None]:
    """End with one line where a package is not installed; what a script imports stands under it.

    Args:
        name: of the script, such as "tune.py".
    """
    try:
        yield
    except ImportError as error:
        missing: BaseException | None = error
        while isinstance(missing, ImportError) and missing.name is None:  # transformers says only what it was about
            missing = missing.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name is not None:
            package = missing.name.partition(".")[0]
            if package == "hf_seqmix":  # a defect
                raise
            brings = f"'hf-seqmix[{EXTRAS[package]}]'" if package in EXTRAS else package
            sys.exit(f"{name} needs the package {package}, which is not installed: pip install {brings}")
        if "pip install" in str(error):
            sys.exit(f"{name}: {error}")
        raise


@contextmanager
def explained(name: str, then: str = "") -> Iterator[None]:
    """End with one line on wrong input, a path that is not what it should be, a missing tool, a full disk and a stop.

    It decorates the `main` of a script, too.

    Args:
        name: of the script, such as "tune.py".
        then: what the user of a stopped command is told.
    """
    try:
        with interruptible(f"{name}: interrupted{then}."), folders_released(), packages_explained(name):
            yield
    except (ValueError, SafetensorError, StrictDataclassError) as error:
        text = str(error)
        if "backend tokenizer" in text:  # the library then names packages that would not help
            text = "the checkpoint has no tokenizer: give the folder of one that was saved with its tokenizer."
        sys.exit(f"{name}: {without_lists(text)}")
    except OSError as error:
        if error.errno in _WRONG_PATHS and error.filename is not None:
            sys.exit(f"{name}: {error.filename}: {error.strerror}. Check the path.")
        if error.errno is None:  # of the library, about a model or a data set
            text = " ".join(str(error).split())
            if "couldn't connect" in text:
                text += f" If a folder was meant: there is none of that name here; paths start from {Path.cwd()}."
            sys.exit(f"{name}: {text}")
        message = explain_write_error(error)
        if message is None:
            raise
        sys.exit(f"{name}: {message}")


def positive(text: str) -> int:
    """Read a whole number of at least 1, as the `type` of an argument."""
    return _whole_number(text, 1)


def not_negative(text: str) -> int:
    """Read a whole number of at least 0, as the `type` of an argument."""
    return _whole_number(text, 0)


def _whole_number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} given; it must be a whole number of at least {least}")
    return int(text)


def refuse_twice(**values: Sequence[object]) -> None:
    """Refuse arguments that name something twice.

    Args:
        **values: name of an argument -> what was given; a seed that counts twice narrows a spread, a model that has
            the name of another takes its place in a table.

    Raises:
        ValueError: something is given twice.
    """
    for name, given in values.items():
        if twice := [each for each, times in Counter(given).items() if times > 1]:
            raise ValueError(
                f"--{name.replace('_', '-')} names {twice[0]} twice: {' '.join(map(str, given))}; name each once."
            )


def new_folder(text: str) -> str:
    """Read the path of a folder that does not exist or is empty, as the `type` of an argument."""
    folder = Path(text)
    state = None
    try:
        if folder.is_dir():
            state = "is not empty" if any(folder.iterdir()) else None
        elif folder.exists():
            state = "is a file"
    except OSError as error:
        state = f"cannot be looked into ({error.strerror})"
    if state:
        raise argparse.ArgumentTypeError(f"{text} {state}; give an empty folder, or one that does not exist yet")
    return text


def device_name(text: str) -> str:
    """Read the name of a device that is here, as the `type` of an argument.

    An accelerator that is named by a number becomes the current one: kernels, clocks and memory are of that.
    """
    try:
        torch.empty(0, device=text)
        device = torch.device(text)
        if device.index is not None and device.type not in ("cpu", "meta"):
            torch.accelerator.set_device_index(device.index)
    except (RuntimeError, AssertionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used here ({str(error).splitlines()[0]})") from error
    return text
