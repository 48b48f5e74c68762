"""What gates, powers and denominators of polynomial mixers go with."""

import math
from collections.abc import Sequence

from ...ops.polynomial.symmetric_power import LARGEST_POWER

__all__ = ["check_gated"]

_MOST_FEATURES = 2**14
"""Of a head: a state of 2^14 x 128 numbers takes 8 MiB in float32."""


def check_gated(
    degrees: Sequence[float | int],
    degree_form: str,
    mixing: str,
    is_causal: bool,
    head_dim: int,
    forget_gate: bool,
    kernel_power: int,
    denominator: bool,
) -> None:
    """Refuse gates, powers and denominators by name where a mixer has none.

    Args:
        degrees: of all heads.
        degree_form: of the mixer, and so on as `PolynomialMixer` has them.
        mixing: see there.
        is_causal: see there.
        head_dim: channels of a head.
        forget_gate: see there.
        kernel_power: see there.
        denominator: see there.

    Raises:
        ValueError: naming the setting, what contradicts it, and what to do.
    """
    if not 1 <= kernel_power <= LARGEST_POWER:
        raise ValueError(f"kernel_power is {kernel_power}; it must be from 1 to {LARGEST_POWER}.")
    given = [
        name
        for name, is_set in (
            ("forget_gate", forget_gate),
            (f"kernel_power {kernel_power}", kernel_power > 1),
            ("denominator", denominator),
        )
        if is_set
    ]
    if not given:
        return
    what = " and ".join(given)
    if mixing != "content":
        raise ValueError(f"{what} asks for mixing 'content', but mixing is {mixing!r}: leave one of the two out.")
    if degree_form == "soft":
        raise ValueError(f"{what} does not go with degree_form 'soft': choose a degree.")
    if any(degree != int(degree) for degree in degrees):
        fractions = ", ".join(map(str, sorted({degree for degree in degrees if degree != int(degree)})))
        raise ValueError(f"{what} asks for integer degrees, but a degree is {fractions}: round it.")
    if forget_gate and not is_causal:
        raise ValueError(
            "forget_gate is True, but is_causal is False: gates let the past fade, and bidirectional sums have no "
            "past; set forget_gate to False."
        )
    if (kernel_power > 1 or denominator) and set(degrees) != {3}:
        others = ", ".join(map(str, sorted(set(degrees) - {3})))
        raise ValueError(
            f"{what} asks for degree 3, whose product <q, k> v it changes, but a degree is {others}: set degree to 3 "
            "and leave layer_degrees and head_degrees out."
        )
    if denominator and kernel_power % 2:
        raise ValueError(
            f"denominator is True, but kernel_power is {kernel_power}: weights of an odd power may be negative and "
            "their sum zero; take kernel_power 2 or 4, or set denominator to False."
        )
    features = math.comb(head_dim + kernel_power - 1, kernel_power)
    if features > _MOST_FEATURES:
        raise ValueError(
            f"kernel_power is {kernel_power} with heads of {head_dim} channels, which makes a state of {features:,} x "
            f"{head_dim} numbers a head; at most {_MOST_FEATURES:,} features are allowed: use more heads, or a lower "
            "power."
        )
