"""What the package wants of operations, beside what came out.

The reasons: a Toeplitz product must beat what its users would write with torch.fft, at every length; SKI must beat a
Toeplitz product, or its approximation buys nothing; backward keeps the inputs alone; and time grows almost linearly
with the length.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from timing.goals import goal

from hf_seqmix.training.timing import slope

__all__ = ["op_goals"]

Row = Mapping[str, Any]

FEWEST_ELEMENTS = 16_000_000
"""Elements of a stream from which on the goals of operations on a GPU hold."""

# What, against what, operation, key of the measured ratio, least ratio by length.
_RATIOS: dict[str, list[tuple[str, str, str, str, dict[int, float]]]] = {
    "CPU": [
        ("causal Toeplitz", "torch.fft", "toeplitz", "vs_rfft", {512: 1.4, 2048: 1.4, 4096: 1.6, 8192: 2.2}),
        ("causal Toeplitz", "the strided form", "toeplitz", "vs_strided", dict.fromkeys((512, 2048, 4096, 8192), 2.5)),
        ("causal Toeplitz", "the strided form", "toeplitz", "vs_strided", {1024: 2.0}),
        ("SKI in torch", "torch.fft", "ski", "vs_rfft by torch", {512: 1.4, 2048: 1.7, 4096: 1.7, 8192: 1.7}),
        ("native SKI, forward", "torch.fft", "ski", "forward_vs_rfft by native", {512: 5.0, 2048: 5.0, 8192: 5.0}),
    ],
    "GPU": [
        ("causal Toeplitz", "torch.fft", "toeplitz", "vs_rfft", {512: 8.0, 1024: 5.0, 2048: 4.0, 4096: 3.0}),
        ("causal Toeplitz", "torch.fft", "toeplitz", "vs_rfft", {8192: 2.0, 16384: 2.0}),
        ("product of degree 3", "fused attention", "degree_3", "vs_attention", {2048: 0.6, 16384: 3.0}),
        ("product of degree 4", "fused attention", "degree_4", "vs_attention", {2048: 0.6, 16384: 3.0}),
    ],
}


def op_goals(rows: Sequence[Row], kept: Sequence[Row], device: str, dtype: str, elements: int) -> list[dict[str, Any]]:
    """Return the goals of operations, of both kinds of device.

    Args:
        rows: of the benchmark, one for each operation and length.
        kept: of bytes kept for the backward pass (see `benchmark_ops.kept_rows`).
        device: of the run.
        dtype: of the run.
        elements: fewest elements of a stream in the run.
    """
    kind = torch.device(device).type
    on_cpu = kind == "cpu" and dtype == "float32"
    on_gpu = kind == "cuda" and getattr(torch, dtype).itemsize == 2 and elements >= FEWEST_ELEMENTS
    return [
        *_ratio_goals("CPU", rows if on_cpu else []),
        *_cpu_goals(rows if on_cpu else [], kept if kind == "cpu" else []),
        *_ratio_goals("GPU", rows if on_gpu else []),
        *_gpu_goals(rows if on_gpu else [], kept if on_gpu else []),
    ]


def _ratio_goals(device: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    goals = []
    for what, rival, op, key, bounds in _RATIOS[device]:
        for length, bound in bounds.items():
            row = next((row for row in rows if row["op"] == op and row["length"] == length), {})
            goals.append(goal(device, f"{what}, times as fast as {rival}", bound, _ratio(row, key), length=length))
    return goals


def _ratio(row: Row, key: str) -> float | None:
    """Return a ratio of ours, or with "KEY by NAME" that of an implementation, each timed in turn with ours."""
    key, _, name = key.partition(" by ")
    of_rival = row.get(key)
    if not name or name == row.get("chosen"):
        return of_rival
    of_ours = row.get(f"{key.rpartition('_')[0]}_{name}")
    return None if of_rival is None or of_ours is None else of_rival / of_ours


def _growth(rows: Sequence[Row], op: str, key: str) -> float | None:
    """Return the exponent of a time in the length from 512 on."""
    mine = [row for row in rows if row["op"] == op and row["length"] >= 512 and row.get(key) is not None]
    return slope([row["length"] for row in mine], [row[key] for row in mine])


def _cpu_goals(rows: Sequence[Row], kept: Sequence[Row]) -> list[dict[str, Any]]:
    others = [row["vs_rfft"] for row in rows if row["op"] == "toeplitz" and 128 <= row["length"] <= 8192]
    what = "causal Toeplitz, times as fast as torch.fft, least"
    goals = [goal("CPU", what, 1.0, min(others, default=None), length="128 to 8192")]
    found = {row["dtype"]: row for row in kept}
    for dtype, bound in (("float32", 4.0), ("bfloat16", 7.0)):
        row = found.get(dtype, {})
        what = f"bytes kept, {dtype}, batch {row['batch']}" if row else f"bytes kept, {dtype}"
        length = row.get("length", "")
        goals.append(goal("CPU", f"{what}: over x and kernel", 1.01, row.get("over_inputs"), most=True, length=length))
        goals.append(goal("CPU", f"{what}: torch.fft over ours", bound, row.get("times_fewer"), length=length))
    native = any(row.get("chosen") == "native" for row in rows if row["op"] == "ski")
    for what, op, key, bound in (
        ("causal Toeplitz", "toeplitz", "ours_ms", 1.15),
        ("SKI", "ski", "ours_ms", 1.1),
        ("native SKI, forward", "ski", "ours_forward_ms" if native else "native_forward_ms", 1.0),
    ):
        measured = _growth(rows, op, key)
        goals.append(goal("CPU", f"exponent of time in length, 512 on: {what}", bound, measured, most=True))
    return goals


def _gpu_goals(rows: Sequence[Row], kept: Sequence[Row]) -> list[dict[str, Any]]:
    ski = [row for row in rows if row["op"] == "ski" and row["length"] >= 512]
    half = next((row for row in kept if row["dtype"] == "bfloat16"), {})
    peaks = [row["rfft_peak_mib"] / row["ours_peak_mib"] for row in rows if row["op"] == "toeplitz"]
    least = {
        "SKI, times as fast as torch.fft, least": (10.0, [row["vs_rfft"] for row in ski]),
        "SKI, % of the memory floor's speed, least": (45.0, [100 * row["floor_ms"] / row["ours_ms"] for row in ski]),
        "bytes kept by the product, torch.fft over ours": (7.0, [half["times_fewer"]] if half else []),
        "peak bytes of a step, torch.fft over ours, least": (7.0, peaks),
    }
    return [goal("GPU", what, bound, min(found, default=None)) for what, (bound, found) in least.items()]
