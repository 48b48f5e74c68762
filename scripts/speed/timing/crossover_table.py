"""Makes the table of crossovers, which implementation serves which lengths, from times at some lengths."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hf_seqmix.ops.common.crossovers import IMPLEMENTATIONS

__all__ = ["CrossoverRows", "best_rows", "crossing", "table_of", "table_text"]

CrossoverRows = list[tuple[int | None, str]]
"""(longest length, name), the last without a limit."""


def best_rows(times: Mapping[int, Mapping[str, float]], names: Sequence[str], margin: float) -> CrossoverRows:
    """Return the rows by which the total of the logarithms of the times is least.

    Args:
        times: length -> name -> time; a name may be missing where it was not tried.
        names: which may be chosen; the earlier of two equal ones is.
        margin: what a change of name costs, as part of the time at one length.
    """
    lengths = sorted(times)
    switch = math.log1p(margin)

    def cost(length: int, name: str) -> float:
        return math.log(times[length][name]) if name in times[length] else math.inf

    totals = {name: cost(lengths[0], name) for name in names}
    steps: list[dict[str, str]] = []
    for length in lengths[1:]:
        before = {}
        for new in names:
            reached = {old: totals[old] + switch * (old != new) for old in names}
            before[new] = min(names, key=reached.__getitem__)
        totals = {name: totals[old] + switch * (old != name) + cost(length, name) for name, old in before.items()}
        steps.append(before)
    chosen_names = [min(names, key=totals.__getitem__)]
    for before in reversed(steps):
        chosen_names.append(before[chosen_names[-1]])
    chosen_names.reverse()
    rows: CrossoverRows = []
    for (short, name), (long, following) in itertools.pairwise(zip(lengths, chosen_names, strict=True)):
        if name != following:
            rows.append((crossing(short, long, times, name, following), name))
    return [*rows, (None, chosen_names[-1])]


def crossing(short: int, long: int, times: Mapping[int, Mapping[str, float]], name: str, following: str) -> int:
    """Return the greatest length at which `name` is no slower, between two measured lengths, on log scales."""
    if not {name, following} <= times[short].keys() & times[long].keys():
        return short
    first, last = (math.log(times[length][following] / times[length][name]) for length in (short, long))
    if not first > 0 > last:  # a choice for the sake of others
        return short
    share = first / (first - last)
    return min(long - 1, math.floor(short * (long / short) ** share))


def table_of(points: Sequence[Mapping[str, Any]], margin: float) -> dict[str, dict[str, CrossoverRows]]:
    """Return the table of crossovers that the measurements make, where several implementations were timed."""
    table: dict[str, dict[str, CrossoverRows]] = {}
    for op, kind in dict.fromkeys((point["op"], point["kind"]) for point in points):
        mine = [point for point in points if (point["op"], point["kind"]) == (op, kind)]
        timed = {name for point in mine for name in point["implementations"]}
        names = [name for name in IMPLEMENTATIONS[op] if name in timed]
        if len(names) < 2:
            continue
        times: dict[int, dict[str, float]] = {}
        for length in sorted({point["length"] for point in mine}):
            at = [point["ms"] for point in mine if point["length"] == length]
            # Several dtypes share a kind: the geometric mean of their times.
            common = [name for name in names if all(name in ms for ms in at)]
            if common:
                times[length] = {name: statistics.geometric_mean([ms[name] for ms in at]) for name in common}
        if times:
            table.setdefault(op, {})[kind] = best_rows(times, names, margin)
    return table


def table_text(table: Mapping[str, Mapping[str, CrossoverRows]]) -> str:
    """Return a table as crossovers.py writes it."""
    lines = []
    for op, entry in table.items():
        lines.append(f'"{op}": {{')
        for kind, rows in entry.items():
            text = ", ".join(f'({longest}, "{name}")' for longest, name in rows)
            lines.append(f'    "{kind}": [{text}],')
        lines.append("},")
    return "\n".join(lines) or "Nothing had more than one implementation to time."
