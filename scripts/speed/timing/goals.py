"""What the package wants of its speed and memory, beside what came out.

A goal belongs to one kind of device; a run on the other kind, at other lengths or in another precision leaves it
unmeasured.
"""

from typing import Any

__all__ = ["COLUMNS", "goal"]

COLUMNS = {
    "device": "device",
    "what": "what",
    "length": "length",
    "bound_text": "at least or most",
    "measured_text": "measured",
    "verdict": "met",
}


def goal(
    device: str, what: str, bound: float, measured: float | None, *, most: bool = False, length: int | str = ""
) -> dict[str, Any]:
    """Return a line of the table of goals: `bound` is the least value wanted, or the most."""
    met = None if measured is None else (measured <= bound if most else measured >= bound)
    return {
        "device": device,
        "what": what,
        "length": length,
        "bound": bound,
        "bound_text": f"{'<=' if most else '>='} {bound:g}",
        "measured": measured,
        "measured_text": "unmeasured" if measured is None else f"{measured:.2f}",
        "met": met,
        "verdict": "unmeasured" if met is None else "yes" if met else "no",
    }
