"""Goals for speed and memory beside what came out: of operations here and of layers in `layer_goals`.

A goal is of one kind of device; a run on the other kind, at other lengths, or in another precision leaves it unmeasured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hf_seqmix.training.timing import slope

__all__ = ["COLUMNS", "goal_row", "op_goals"]

COLUMNS = {
    "goal": "goal",
    "what": "what",
    "length": "length",
    "bound_text": "at least or most",
    "measured_text": "measured",
    "verdict": "met",
}

Row = Mapping[str, Any]

FEWEST_ELEMENTS = 16_000_000
"""Elements of a stream from which on the goals of a GPU hold."""


def goal_row(
    goal: str, what: str, bound: float, measured: float | None, *, most: bool = False, length: int | str = ""
) -> dict[str, Any]:
    """Return a line of the table of goals: `bound` is the least value wanted, or the most."""
    met = None if measured is None else (measured <= bound if most else measured >= bound)
    return {
        "goal": goal,
        "what": what,
        "length": length,
        "bound": bound,
        "bound_text": f"{'<=' if most else '>='} {bound:g}",
        "measured": measured,
        "measured_text": "unmeasured" if measured is None else f"{measured:.2f}",
        "met": met,
        "verdict": "unmeasured" if met is None else "yes" if met else "no",
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
        *_cpu_goals(rows if on_cpu else [], kept if kind == "cpu" else []),
        *_gpu_goals(rows if on_gpu else [], kept if on_gpu else []),
    ]


def _find(rows: Sequence[Row], op: str, length: int) -> Row:
    return next((row for row in rows if row["op"] == op and row["length"] == length), {})


def _ratio(row: Row, rival: str, name: str, forward: bool = False) -> float | None:
    """How many times as fast as `rival` an implementation of ours is, each timed in turn with ours."""
    prefix = "forward_vs_" if forward else "vs_"
    of_rival = row.get(f"{prefix}{rival}")
    if name == row.get("chosen"):
        return of_rival
    of_ours = row.get(f"{prefix}{name}")
    return None if of_rival is None or of_ours is None else of_rival / of_ours


def _growth(rows: Sequence[Row], op: str, key: str) -> float | None:
    """Exponent of a time in the length from 512 on."""
    mine = [row for row in rows if row["op"] == op and row["length"] >= 512 and row.get(key) is not None]
    return slope([row["length"] for row in mine], [row[key] for row in mine])


def _cpu_goals(rows: Sequence[Row], kept: Sequence[Row]) -> list[dict[str, Any]]:
    goals = []
    against = "causal Toeplitz, times as fast as"
    for length, bound in {512: 1.4, 2048: 1.4, 4096: 1.6, 8192: 2.2}.items():
        measured = _find(rows, "toeplitz", length).get("vs_rfft")
        goals.append(goal_row("C1", f"{against} torch.fft", bound, measured, length=length))
    others = [row["vs_rfft"] for row in rows if row["op"] == "toeplitz" and 128 <= row["length"] <= 8192]
    goals.append(goal_row("C1", f"{against} torch.fft, least", 1.0, min(others, default=None), length="128 to 8192"))
    for length, bound in {512: 2.5, 1024: 2.0, 2048: 2.5, 4096: 2.5, 8192: 2.5}.items():
        measured = _find(rows, "toeplitz", length).get("vs_strided")
        goals.append(goal_row("C2", f"{against} the strided form", bound, measured, length=length))
    for length, bound in {512: 1.4, 2048: 1.7, 4096: 1.7, 8192: 1.7}.items():
        measured = _ratio(_find(rows, "ski", length), "rfft", "torch")
        goals.append(goal_row("C3", "SKI in torch, times as fast as torch.fft", bound, measured, length=length))
    for length in (512, 2048, 8192):
        measured = _ratio(_find(rows, "ski", length), "rfft", "native", forward=True)
        goals.append(goal_row("C3", "native SKI, forward, times as fast as torch.fft", 5.0, measured, length=length))
    found = {row["dtype"]: row for row in kept}
    for dtype, bound in (("float32", 4.0), ("bfloat16", 7.0)):
        row = found.get(dtype, {})
        where = f"{dtype}, batch {row['batch']}" if row else dtype
        goals.append(
            goal_row(
                "C7",
                f"bytes kept, {where}: over x and kernel",
                1.01,
                row.get("over_inputs"),
                most=True,
                length=row.get("length", ""),
            )
        )
        goals.append(
            goal_row(
                "C7",
                f"bytes kept, {where}: torch.fft over ours",
                bound,
                row.get("times_fewer"),
                length=row.get("length", ""),
            )
        )
    what = "exponent of time in length, 512 on:"
    goals.append(goal_row("C8", f"{what} causal Toeplitz", 1.15, _growth(rows, "toeplitz", "ours_ms"), most=True))
    goals.append(goal_row("C8", f"{what} SKI", 1.1, _growth(rows, "ski", "ours_ms"), most=True))
    native = any(row.get("chosen") == "native" for row in rows if row["op"] == "ski")
    key = "ours_forward_ms" if native else "native_forward_ms"
    goals.append(goal_row("C8", f"{what} native SKI, forward", 1.0, _growth(rows, "ski", key), most=True))
    return goals


def _gpu_goals(rows: Sequence[Row], kept: Sequence[Row]) -> list[dict[str, Any]]:
    goals = []
    for length, bound in {512: 8.0, 1024: 5.0, 2048: 4.0, 4096: 3.0, 8192: 2.0, 16384: 2.0}.items():
        measured = _find(rows, "toeplitz", length).get("vs_rfft")
        goals.append(goal_row("G1", "causal Toeplitz, times as fast as torch.fft", bound, measured, length=length))
    mine = [row for row in rows if row["op"] == "ski" and row["length"] >= 512]
    ratios = [row["vs_rfft"] for row in mine]
    shares = [100 * row["floor_ms"] / row["ours_ms"] for row in mine]
    goals.append(goal_row("G2", "SKI, times as fast as torch.fft, least", 10.0, min(ratios, default=None)))
    goals.append(goal_row("G2", "SKI, % of the memory floor's speed, least", 45.0, min(shares, default=None)))
    half = next((row for row in kept if row["dtype"] == "bfloat16"), {})
    goals.append(goal_row("G6", "bytes kept by the product, torch.fft over ours", 7.0, half.get("times_fewer")))
    peaks = [row["rfft_peak_mib"] / row["ours_peak_mib"] for row in rows if row["op"] == "toeplitz"]
    goals.append(goal_row("G6", "peak bytes of a step, torch.fft over ours, least", 7.0, min(peaks, default=None)))
    for degree in (3, 4):
        for length, bound in {2048: 0.6, 16384: 3.0}.items():
            measured = _find(rows, f"degree_{degree}", length).get("vs_attention")
            what = f"product of degree {degree}, times as fast as fused attention"
            goals.append(goal_row("G7", what, bound, measured, length=length))
    return goals
