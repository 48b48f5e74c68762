"""A command ends in one line where its user can mend something, or stops it."""

import argparse
import errno
import os
import re
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_seqmix.training.command import (
    EXTRAS,
    INTERRUPTED,
    CommandParser,
    device_name,
    explained,
    interruptible,
    new_folder,
    not_negative,
    positive,
    refuse_twice,
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("--rounds is 0"), r"^tune\.py: --rounds is 0$"),
        (
            ValueError("Unrecognized configuration class <class 'a.B'> for this kind of AutoModel: C.\nModel type D"),
            r"^tune\.py: the checkpoint has a B, of which there is no C; give one for C\.$",
        ),
        (
            ValueError("Couldn't instantiate the backend tokenizer from one of:\n(1) sentencepiece"),
            r"^tune\.py: the checkpoint has no tokenizer: give the folder",
        ),
        (StrictDataclassError("Validation error for field 'x'"), r"^tune\.py: Validation error for field 'x'$"),
        (OSError("Repo id\nmust be"), r"^tune\.py: Repo id must be$"),
        (OSError(errno.ENOSPC, "No space left"), r"^tune\.py: a file could not be written.*No space left$"),
        (OSError("We couldn't connect to it"), r"If a folder was meant: there is none of that name here; paths start"),
        (ModuleNotFoundError("No module", name="torchao.quantization"), r"^tune\.py needs the package torchao, which"),
        (ModuleNotFoundError("No module", name="sklearn.svm"), r"sklearn, .* pip install 'hf-seqmix\[eval\]'$"),
        (ImportError("Metrics need x: pip install x"), r"^tune\.py: Metrics need x: pip install x$"),
        (FileExistsError(errno.EEXIST, "File exists", "out"), r"^tune\.py: out: File exists\. Check the path\.$"),
    ],
)
def test_what_a_user_can_mend_is_said_in_a_line(error: Exception, message: str) -> None:
    @explained("tune.py")
    def main() -> None:
        raise error

    with pytest.raises(SystemExit, match=message):
        main()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes differ"),
        OSError(errno.EPIPE, "Broken pipe"),
        ModuleNotFoundError(name="hf_seqmix.gone"),
        ImportError("cannot import name 'x'", name="torch"),
        ImportError("a library failed"),
    ],
)
def test_a_defect_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)), explained("tune.py"):
        raise error


def test_the_package_is_named_where_a_library_says_what_it_imported() -> None:
    with (
        pytest.raises(SystemExit, match=r"^tune\.py needs the package accelerate, .*\[train\]'$"),
        explained("tune.py"),
    ):
        try:
            raise ModuleNotFoundError("No module", name="accelerate.utils")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("Could not import module 'EvalPrediction'.") from error


def test_extras_are_those_of_the_package() -> None:
    pyproject = Path(__file__).resolve().parents[2] / "pyproject.toml"
    extras = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in ("train", "eval", "triton"):
        names = {re.split(r"[^\w-]", line)[0] for line in extras[extra]} - {"hf-seqmix"}
        imported = {{"scikit-learn": "sklearn", "pyyaml": "yaml"}.get(name, name) for name in names}
        assert imported == {package for package, brings in EXTRAS.items() if brings == extra}


@pytest.fixture
def _heard() -> Iterator[None]:
    """Handle interrupts as Python does: a process that a shell began in the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heard")
def test_both_ways_to_stop_a_command_end_it_alike(caplog: pytest.LogCaptureFixture) -> None:
    before = signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM):
        with pytest.raises(SystemExit) as stopped, explained("tune.py", "; the same command goes on"):
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 5)  # which a signal ends
        assert stopped.value.code == INTERRUPTED
        assert caplog.messages[-1] == "tune.py: interrupted; the same command goes on."
        caplog.clear()
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_forked_worker_ends_as_workers_do() -> None:
    with interruptible("stopped"):
        worker = os.fork()
        if worker == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        assert os.WTERMSIG(os.waitpid(worker, 0)[1]) == signal.SIGTERM


def test_numbers_and_devices_of_a_command_line() -> None:
    assert (positive("3"), not_negative("0"), device_name("cpu")) == (3, 0, "cpu")
    for read, text in (
        (not_negative, "-1"),
        (positive, "0"),
        (positive, "-1"),
        (positive, "two"),
        (device_name, "cpuu"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}'"):
            read(text)


def test_an_accelerator_with_a_number_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    assert [device_name(name) for name in ("cuda:3", "cuda", "cpu", "cpu:0")] == ["cuda:3", "cuda", "cpu", "cpu:0"]
    assert chosen == [3]


def test_what_is_given_twice_is_named() -> None:
    refuse_twice(seeds=[1, 2], models=[])
    with pytest.raises(ValueError, match="--rate-factors names 2 twice: 1 2 2; name each once"):
        refuse_twice(seeds=[1, 2], rate_factors=[1, 2, 2])


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--output-dir", type=new_folder, default=str(tmp_path / "runs"))
    assert parser.parse_args([]).output_dir == str(tmp_path / "runs")
    (tmp_path / "runs").mkdir()
    assert parser.parse_args([]).output_dir == str(tmp_path / "runs")
    (tmp_path / "runs" / "results.json").touch()
    with pytest.raises(argparse.ArgumentError, match=r"runs is not empty; give an empty folder, or one that does not"):
        parser.parse_args(["--output-dir", str(tmp_path / "runs")])
    with pytest.raises(argparse.ArgumentError, match="is a file"):
        parser.parse_args(["--output-dir", str(tmp_path / "runs" / "results.json")])


def test_help_shows_defaults_that_no_text_names() -> None:
    parser = CommandParser("tune.py", description="Times.\n\n    tune.py\n\nMore.\n")
    command = parser.add_subparsers().add_parser("ops", description="Say.\n\n    So.\n    ")
    command.add_argument("--names", nargs="+", default=["tnn, no decay", "ipa"], help="names")
    command.add_argument("--kinds", nargs="+", choices=("a", "b"), default=["a", "b"], help="kinds")
    command.add_argument("--share", type=float, default=0.0, help="share, 1 is 100 %%")
    command.add_argument("--rows", type=int, default=3, help="rows; by default three")
    command.add_argument("--limit", type=int, help="limit")
    command.add_argument("--fast", action="store_true", help="fast")
    said = command.format_help()
    assert "\nSay.\n\nSo.\n" in said and "\n    tune.py\n\nMore.\n" in parser.format_help()
    for text in ("names (default: 'tnn, no decay' ipa)", "kinds (default: all)", "share, 1 is 100 % (default: 0.0)"):
        assert text in " ".join(said.split())
    assert said.count("(default") == 3
