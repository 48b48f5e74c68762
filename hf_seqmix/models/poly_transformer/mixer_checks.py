"""What the settings of a polynomial mixer may be together."""

import math

from ...ops.polynomial.product import DEGREE_FORMS
from .configuration_poly_transformer import MIXINGS, NORM_TYPES

__all__ = ["check_mixer"]


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
    for name, value, allowed in (
        ("degree_form", degree_form, DEGREE_FORMS),
        ("mixing", mixing, MIXINGS),
        ("normalization", normalization, NORM_TYPES),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")
    if degree_form != "cumsum" and mixing != "content":
        raise ValueError(f"degree_form is {degree_form!r}, but mixing {mixing!r} has one form only: use 'cumsum'.")
    whole = {math.ceil(degree) for degree in degrees}
    if degree_form == "gate" and not any(d % 2 == 0 and d >= 4 for d in whole):
        raise ValueError(
            "degree_form is 'gate', which only even degrees from 4 on have, but the degrees are "
            f"{sorted(set(degrees))}: use 'cumsum'."
        )
    if degree_form == "soft" and set(degrees) != {4}:
        raise ValueError(
            f"degree_form is 'soft', which mixes degrees 2, 3 and 4, but degree is {sorted(set(degrees))}: set it to "
            "4, the highest."
        )
