"""`keep_freed_memory`: the settings that the C library takes, and systems that have none."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hf_seqmix.training import memory
from hf_seqmix.training.memory import keep_freed_memory

# Each round frees 96 MiB, which the library would give back to the system: counts the pages of later rounds. The
# module is read by its path, since its package takes seconds to import.
ROUNDS = """
import importlib.util, resource

specification = importlib.util.spec_from_file_location("memory", {path!r})
memory = importlib.util.module_from_spec(specification)
specification.loader.exec_module(memory)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

taken = {kept} and memory.keep_freed_memory()
for step in range(8):
    if step == 2:
        before = faults()
    held = [b"x" * 2**24 for _ in range(6)]
    del held
print(int(taken), faults() - before)
"""


def glibc() -> bool:
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


def test_later_rounds_take_no_new_pages() -> None:
    def rounds(kept: bool) -> tuple[bool, int]:
        command = [sys.executable, "-c", ROUNDS.format(kept=kept, path=memory.__file__)]
        taken, pages = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        return taken == "1", int(pages)

    _, given_back = rounds(kept=False)
    taken, kept = rounds(kept=True)
    assert taken == glibc()  # other C libraries refuse, and say so
    assert not taken or kept < given_back / 10


@pytest.mark.parametrize("largest", [2**30, 2**25, 0])
def test_a_library_that_refuses_large_blocks(largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[int, int] = {}

    def mallopt(parameter: int, value: int) -> int:
        if parameter == -3 and value > largest:
            return 0
        taken[parameter] = value
        return 1

    def library(_: Any) -> Any:
        return SimpleNamespace(mallopt=mallopt)

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", library)
    assert keep_freed_memory() == bool(largest)
    # Without the one the other would do harm.
    assert taken == ({-3: largest, -1: 2**31 - 1} if largest else {})


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    assert not keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
