"""Launches of kernels, caught: what would run on a device is compiled for it instead."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

__all__ = ["TARGETS", "launches_caught"]

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


class OfflineDriver:
    """Stands for a device that is not there: Triton asks it for nothing but the target when it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        """Return the target to compile for."""
        return self.target

    def get_current_device(self) -> int:
        """Return one device."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return one stream."""
        return 0


@contextmanager
def launches_caught(target: GPUTarget) -> Iterator[list[Any]]:
    """Compile for `target` instead of launching, and collect (name, compiled kernel, CPU seconds)."""
    found: list[Any] = []
    run = JITFunction.run
    compiled_before: set[int] = set()

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if id(self) not in compiled_before:
            # What it keeps for a device, the target among it, may be of an earlier target.
            self.device_caches.clear()
            compiled_before.add(id(self))
        begin = cpu_seconds()
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        found.append((self.fn.__name__, kernel, cpu_seconds() - begin))
        return kernel

    JITFunction.run = compiled
    triton.runtime.driver.set_active(OfflineDriver(target))
    try:
        yield found
    finally:
        JITFunction.run = run


def cpu_seconds() -> float:
    """Return those of this process and of the assemblers that it called."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
