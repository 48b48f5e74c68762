"""Chooses the implementation of an operation that has several, by length, device and precision.

Each entry of the table is a list of rows (longest length, name); the last row has no limit. `scripts/speed/tune.py`
times the implementations on a machine, prints such a table and writes it as JSON. `use_crossovers` puts a table in
force, and `forced` overrules the table for a while.

The rows of CPUs were measured (2 vCPU AMD EPYC, torch 2.13, one thread). So were the rows of GPUs (NVIDIA H100, torch
2.11, Triton 3.6, 33,554,432 elements in 1024 channels; `scripts/measured/gpu`). In bfloat16 a causal product takes,
forward and backward, in picoseconds an element:

* tiles: 6 at length 128, 10 at 512, 31 at 2048; twice as much bidirectionally.
* the two-level transform ("monarch"): 13 at 512, 15 at 2048, 50 at 16384, the longest that a program holds (float32:
  4096). The same bidirectionally.
* `torch.fft`: 118 to 164 as its users write it, 100 to 150 as this package does.

The row of the short convolution was measured on an NVIDIA H200: 9.5 picoseconds an element at any length, torch 107.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .backend import native_serves, triton_serves

__all__ = ["IMPLEMENTATIONS", "KERNELS", "Table", "crossovers_in_force", "forced", "implementation", "use_crossovers"]

Table = dict[str, dict[str, list[tuple[int | None, str]]]]
"""Operation -> kind of device -> rows (longest length or None, name).

"cpu"; "cuda half" and "cuda single" by precision; "cuda torch" where Triton is missing or does not take the dtype.
"""

IMPLEMENTATIONS = {
    "toeplitz_causal": ("fft", "tiles", "monarch"),
    "toeplitz_bidirectional": ("fft", "tiles", "monarch"),
    "response": ("transforms", "taps"),
    "ski": ("torch", "fused", "native"),
    "causal_sum": ("torch", "chunks"),
    "short_conv": ("torch", "streaming"),
}
"""Operation -> its implementations; the first serves every device, dtype and length. A user asks for "native"."""

KERNELS = {
    "tiles": "toeplitz.kernels.tiles",
    "monarch": "toeplitz.kernels.monarch",
    "fused": "ski.kernels.operator",
    "chunks": "polynomial.kernels.linear_attention",
    "streaming": "short_convolution.kernels.streaming",
}
"""Implementation in Triton -> its module below `ops`."""

_DEFAULT: Table = {
    "toeplitz_causal": {
        "cpu": [(None, "fft")],
        "cuda half": [(764, "tiles"), (16384, "monarch"), (None, "fft")],
        "cuda single": [(112, "tiles"), (4096, "monarch"), (None, "fft")],
        "cuda torch": [(None, "fft")],
    },
    "toeplitz_bidirectional": {
        "cpu": [(None, "fft")],
        "cuda half": [(429, "tiles"), (16384, "monarch"), (None, "fft")],
        "cuda single": [(199, "tiles"), (4096, "monarch"), (None, "fft")],
        "cuda torch": [(None, "fft")],
    },
    "response": {
        "cpu": [(None, "transforms")],
        "cuda half": [(16384, "taps"), (None, "transforms")],
        "cuda single": [(4096, "taps"), (None, "transforms")],
        "cuda torch": [(None, "transforms")],
    },
    "ski": {
        "cpu": [(None, "native")],
        "cuda half": [(None, "fused")],
        "cuda single": [(None, "fused")],
        "cuda torch": [(None, "torch")],
    },
    "causal_sum": {
        "cpu": [(None, "torch")],
        "cuda half": [(None, "chunks")],
        "cuda single": [(None, "chunks")],
        "cuda torch": [(None, "torch")],
    },
    "short_conv": {
        "cpu": [(None, "torch")],
        "cuda half": [(None, "streaming")],
        "cuda single": [(None, "streaming")],
        "cuda torch": [(None, "torch")],
    },
}

_in_force: Table = _DEFAULT
_forced: dict[str, str | None] = {}


def crossovers_in_force() -> Table:
    """Return a copy of the table by which implementations are chosen."""
    return {op: {kind: list(rows) for kind, rows in entry.items()} for op, entry in _in_force.items()}


def use_crossovers(
    table: Mapping[str, Mapping[str, Sequence[Sequence[int | str | None]]]] | str | Path | None,
) -> None:
    """Choose implementations by another table from now on, in all threads of the process.

    Args:
        table: operations and kinds of device to change; the others stay as they are by default. Or the path of a JSON
            file that `scripts/speed/tune.py` wrote, whose "crossovers" are such a table. None for the default.

    Raises:
        ValueError: for operations, kinds or names that are unknown, lengths that do not rise, or a last row with a
            limit.
    """
    global _in_force
    entries = _read(table) if isinstance(table, (str, Path)) else table or {}
    made = {op: dict(entry) for op, entry in _DEFAULT.items()}
    for op, entry in entries.items():
        if op not in made:
            raise ValueError(f"{op!r} is no operation with a choice; they are {', '.join(map(repr, made))}.")
        for kind, rows in entry.items():
            if kind not in made[op]:
                raise ValueError(f"{kind!r} is no kind of device; they are {', '.join(map(repr, made[op]))}.")
            made[op][kind] = _checked(op, kind, rows)
    _in_force = made


def _read(path: str | Path) -> dict[str, Any]:
    read = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(read, dict) or not isinstance(read.get("crossovers"), dict):
        raise ValueError(f"{path} holds no object 'crossovers': give a file that scripts/speed/tune.py wrote.")
    return read["crossovers"]


def _checked(op: str, kind: str, rows: Sequence[Sequence[int | str | None]]) -> list[tuple[int | None, str]]:
    checked: list[tuple[int | None, str]] = []
    for longest, name in rows:
        names = [
            known for known in IMPLEMENTATIONS[op] if kind in ("cuda half", "cuda single") or known not in KERNELS
        ]
        if name not in names:
            known = ", ".join(map(repr, names))
            raise ValueError(f"{name!r} is no implementation of {op!r} for {kind!r}; they are {known}.")
        if longest is not None and not (
            isinstance(longest, int) and longest > (checked[-1][0] or 0 if checked else 0)
        ):
            raise ValueError(f"the rows of {op!r}, {kind!r} have lengths that do not rise: {list(rows)}.")
        checked.append((longest, str(name)))
    if not checked or checked[-1][0] is not None or any(longest is None for longest, _ in checked[:-1]):
        raise ValueError(
            f"the rows of {op!r}, {kind!r} must end with one, and one only, of length null: {list(rows)}."
        )
    return checked


@contextmanager
def forced(**names: str | None) -> Iterator[None]:
    """Compute operations by the named implementations while the context lasts, in all threads of the process.

        with forced(toeplitz_causal="tiles", ski="torch"):
            ...

    Where the named implementation cannot serve a call, another computes without a warning:

    * Triton serves no float64, and no CPU unless Triton interprets (`TRITON_INTERPRET=1`).
    * "native" serves CPUs, and no float64.
    * "monarch" serves rows that a program holds; "fft" computes longer rows.
    * "streaming" serves up to 16 taps.
    * "fused" serves as many points and taps as `fused_takes` says, and "native" as many points as `native.serves`.
    * "transforms" serve bidirectional kernels without a greatest lag, on grids that `response_suits` admits.
    * Graphs, `torch.func` and `batch_invariant()` may leave no choice.

    A call raises a RuntimeError where Triton is missing on a GPU, or where the library of "native" is not built.

    Args:
        **names: implementation of each operation, see `IMPLEMENTATIONS`; None for the choice of the table.

    Raises:
        ValueError: for an unknown operation or implementation.
    """
    global _forced
    for op, name in names.items():
        if op not in IMPLEMENTATIONS or name not in (None, *IMPLEMENTATIONS[op]):
            known = "; ".join(f"{op}: {', '.join(of_it)}" for op, of_it in IMPLEMENTATIONS.items())
            raise ValueError(f"{op}={name!r} names no implementation of an operation; there are {known}.")
    before = {op: _forced[op] for op in names if op in _forced}
    _forced = {**_forced, **names}
    try:
        yield
    finally:  # another thread may have forced other operations meanwhile
        _forced = {**{op: name for op, name in _forced.items() if op not in names}, **before}


def implementation(op: str, x: Tensor, length: int) -> str:
    """Return the name of the implementation that computes a call.

    The name is what `forced` says, else what the table says for the device, dtype and length. A Triton kernel is
    chosen only where Triton is installed and a trial of the kernel gave the result of torch. The trial, on a small
    problem, is made once for a device and dtype, and for each power of two of the length of Toeplitz products; if the
    kernel fails, a warning says so and torch computes. Operators call this function when they run: a tracer cannot
    follow it.

    Args:
        op: a key of `IMPLEMENTATIONS`.
        x: first tensor of the call.
        length: positions.
    """
    wanted = _forced.get(op)
    name = wanted or _chosen_by_table(op, x.device.type, x.dtype, length)
    if name in KERNELS and not triton_serves(op, name, KERNELS[name], x, length, wanted is not None):
        name = _chosen_by_table(op, x.device.type, x.dtype, length, triton=False)
    if name == "native" and not native_serves(x, wanted == "native"):
        name = IMPLEMENTATIONS[op][0]
    return name


def _chosen_by_table(op: str, device_type: str, dtype: torch.dtype, length: int, triton: bool = True) -> str:
    """Return the choice of the table; the first of `IMPLEMENTATIONS` for devices that the table does not know.

    Args:
        op: a key of `IMPLEMENTATIONS`.
        device_type: as in `torch.device.type`.
        dtype: of the data.
        length: positions.
        triton: whether Triton may compute it.
    """
    kind = device_type
    if device_type != "cpu":
        precision = "single" if dtype.itemsize == 4 else "half"
        kind = f"{device_type} {precision if triton and dtype != torch.float64 else 'torch'}"
    for longest, name in _in_force[op].get(kind, ()):
        if longest is None or length <= longest:
            return name
    return IMPLEMENTATIONS[op][0]
