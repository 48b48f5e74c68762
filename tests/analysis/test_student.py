"""Quantiles of Student's t distribution against closed forms and printed tables."""

import math

import pytest

from hf_seqmix.analysis.student import student_quantile

PRINTED = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
)


def test_the_printed_table() -> None:
    assert [student_quantile(0.975, n) for n in range(1, 17)] == pytest.approx(PRINTED, abs=6e-4)
    assert student_quantile(0.975, 1000) == pytest.approx(1.9623, abs=1e-4)
    assert student_quantile(0.995, 29) == pytest.approx(2.7564, abs=1e-4)


@pytest.mark.parametrize("probability", [0.001, 0.3, 0.5, 0.9, 0.9999])
def test_closed_forms(probability: float) -> None:
    assert student_quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-9)
    two = (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    assert student_quantile(probability, 2) == pytest.approx(two, rel=1e-9)
    assert student_quantile(1 - probability, 7) == pytest.approx(-student_quantile(probability, 7), rel=1e-9)


@pytest.mark.parametrize(("probability", "freedom"), [(0, 3), (1, 3), (math.nan, 3), (0.9, 0)])
def test_wrong_arguments_are_refused(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match=f"probability is {probability} and freedom {freedom}; give"):
        student_quantile(probability, freedom)
