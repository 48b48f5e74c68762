"""Budgets: equal sizes, which degree wins in which accounting, and what cannot be matched."""

import math

import pytest

from hf_seqmix.analysis.degree.budget import best_degree, budget_table, degree_headroom, match_depth, mixture_score


@pytest.mark.parametrize(
    ("overhead", "real", "whole"),
    [(0, 2.71828, 3), (1, 3.59112, 4), (2, 4.31914, 4), (5, 6.13833, 6), (9, 8.17436, 8)],
)
def test_best_degree(overhead, real, whole):
    found = best_degree(overhead)
    assert found[0] == pytest.approx(real, abs=1e-5)
    assert found[1] == whole
    assert found[0] * (math.log(found[0]) - 1) == pytest.approx(overhead)
    every = {degree: math.log(degree) / (degree + overhead) for degree in range(2, 40)}
    assert found[1] == max(every, key=every.get)


def test_degrees_two_and_four_tie():
    two, three, four = (match_depth(12, degree) for degree in (2, 3, 4))
    assert [row.depth for row in (two, three, four)] == [6, 4, 3]
    assert [round(math.exp(row.log_degree)) for row in (two, three, four)] == [64, 81, 64]
    assert two.log_degree == pytest.approx(four.log_degree)


def test_both_accountings():
    rows = budget_table(60, [2, 3, 4])
    assert [row["depth"] for row in rows] == [30, 20, 15, 20, 15, 12]
    matrices, total = rows[:3], rows[3:]
    assert max(matrices, key=lambda row: row["score"])["degree"] == 3
    assert max(total, key=lambda row: row["score"])["degree"] == 4
    assert {row["accounting"] for row in total} == {"d + 1"}
    assert [row["needs"] is None for row in budget_table(12, [2, 3, 4])] == [True] * 5 + [False]


def test_fractional_degrees():
    assert match_depth(12, 2.4).depth == 5
    assert degree_headroom() == pytest.approx(1.0046, abs=5e-5)
    assert 1 < degree_headroom(1) < 1.02


def test_mixing_whole_degrees_never_helps():
    assert mixture_score({2: 2, 3: 5}) == pytest.approx(0.3621, abs=5e-5)
    best = max(math.log(degree) / degree for degree in range(2, 9))
    for pair in [(2, 3), (2, 4), (3, 5), (4, 8)]:
        for counts in [(1, 1), (5, 2), (1, 9)]:
            assert mixture_score(dict(zip(pair, counts, strict=True))) <= best + 1e-12


def test_budgets_that_cannot_be_met():
    with pytest.raises(ValueError, match=r"nearest that are: 10 \(depth 2\) and 15 \(depth 3\)"):
        match_depth(12, 4, overhead=1)
    with pytest.raises(ValueError, match=r"nearest that are: 4 \(depth 1\)"):
        match_depth(3, 4)
    with pytest.raises(ValueError, match="degree is 1"):
        match_depth(12, 1)
    with pytest.raises(ValueError, match="overhead is -1"):
        best_degree(-1)
    with pytest.raises(ValueError, match="budget is 0"):
        match_depth(0, 2)
    with pytest.raises(ValueError, match="at least one degree"):
        mixture_score({3: 0})
