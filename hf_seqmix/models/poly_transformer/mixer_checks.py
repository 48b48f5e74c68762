"""What the settings of a polynomial mixer may be together."""

import math
from collections.abc import Iterable

from ...ops.polynomial.product import DEGREE_FORMS
from ..configuration import check_choice

__all__ = ["MIXINGS", "NORM_TYPES", "check_form", "check_mixer", "has_gate"]

MIXINGS = ("content", "toeplitz", "triangular")
NORM_TYPES = {"rms": ("simple_rms", "layer"), "static": ("static",), "batch": ("batch",), "none": ("none",)}
"""Normalization of the mixers -> the norms of the blocks that go with it, the default first."""


def check_mixer(
    hidden_size: int, num_heads: int, degrees: list[float], degree_form: str, mixing: str, normalization: str
) -> None:
    """Raise a `ValueError` that names what a mixer cannot have; the arguments are those of `PolynomialMixer`."""
    if num_heads < 1 or hidden_size % num_heads:
        raise ValueError(f"num_heads {num_heads} must divide hidden_size {hidden_size}.")
    if len(degrees) != num_heads:
        raise ValueError(
            f"head_degrees names {len(degrees)} heads, but num_heads is {num_heads}: give one degree a head."
        )
    for degree in degrees:
        if not 2 <= degree < math.inf:
            raise ValueError(f"degree is {degree}; it must be at least 2.")
    check_form(degrees, degree_form, mixing)
    check_choice("normalization", normalization, tuple(NORM_TYPES))


def check_form(degrees: Iterable[float], degree_form: str, mixing: str) -> None:
    """Refuse a form of the degree, or a mixing, by name where some heads cannot have it.

    Args:
        degrees: of the heads of a mixer, or of a whole model.
        degree_form: of them all.
        mixing: of them all.

    Raises:
        ValueError: naming the setting, what contradicts it, and what to do.
    """
    check_choice("degree_form", degree_form, DEGREE_FORMS)
    check_choice("mixing", mixing, MIXINGS)
    if degree_form == "cumsum":
        return
    if mixing != "content":
        raise ValueError(
            f"degree_form is {degree_form!r}, but mixing {mixing!r} has one form only: leave degree_form out."
        )
    distinct = sorted(set(degrees))
    given = ", ".join(map(str, distinct))
    if degree_form == "soft" and distinct != [4]:
        raise ValueError(
            f"degree_form is 'soft', which mixes degrees 2, 3 and 4, but the degree is {given}: set degree to 4, the "
            "highest, and leave other degrees out."
        )
    if degree_form == "gate" and not has_gate(distinct):
        raise ValueError(
            f"degree_form is 'gate', which only even degrees from 4 on have, but the degree is {given}: leave "
            "degree_form out."
        )


def has_gate(degrees: Iterable[float]) -> bool:
    """Return whether one of some degrees, rounded up, is even and at least 4."""
    return any(math.ceil(d) >= 4 and math.ceil(d) % 2 == 0 for d in degrees)
