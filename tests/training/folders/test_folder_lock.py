"""One process at a time writes to an output folder; a process that ends, killed or not, leaves the folder free."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.folders import folder_lock
from hf_seqmix.training.folders.folder_lock import FolderInUseError, claim_folder, folders_released
from hf_seqmix.training.folders.run_folder import nothing_left

# The file alone: a process that imports the package imports torch.
HOLD = """
import importlib.util, os, pathlib, sys
spec = importlib.util.spec_from_file_location("folder_lock", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.claim_folder(pathlib.Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


def holding(folder: Path, program: str = HOLD) -> list[str]:
    """Return the command of a process that claims a folder and ends with its standard input."""
    return [sys.executable, "-c", program, folder_lock.__file__, str(folder)]


@contextmanager
def held_by_another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process write to a folder."""
    with subprocess.Popen(holding(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_folder_that_another_process_writes_to_is_refused_until_it_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with held_by_another(folder):
        for options in ({"resume": True}, {"overwrite": True}, {}):
            refused = pytest.raises(FolderInUseError, match=r"another process is writing .*run\. Wait .*--output-dir")
            with refused, nothing_left(folder):  # nor is it cleared up: it is another's, though still empty
                prepare_run_folder(folder, **options)
        assert folder.is_dir()
    with folders_released():
        assert prepare_run_folder(folder, resume=True) == folder and not any(folder.iterdir())


def test_a_process_claims_a_folder_as_often_as_it_likes_and_gives_it_back(tmp_path: Path) -> None:
    with folders_released():
        claim_folder(tmp_path)
        with folders_released():  # not this one's to give back
            claim_folder(tmp_path)
        opened = len(os.listdir("/dev/fd"))
        claim_folder(tmp_path)
        assert len(os.listdir("/dev/fd")) == opened
        refused = subprocess.run(holding(tmp_path), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert refused.returncode == 1 and "FolderInUseError: another process" in refused.stderr
    with held_by_another(tmp_path):
        pass


def test_a_forked_process_does_not_keep_what_its_parent_held(tmp_path: Path) -> None:
    forks = HOLD.replace("sys.stdin", "os.fork() and os._exit(0)\nsys.stdin")  # into a worker that outlives the run
    with subprocess.Popen(
        holding(tmp_path, forks), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.wait() == 0 and process.stdout is not None and process.stdout.readline() == "held\n"
        with held_by_another(tmp_path):
            pass
