"""Log-ranks by depth: what is known of them, where a curve ends, and what is refused."""

from typing import Any

import pytest

from hf_seqmix.analysis.degree.log_rank import log_rank_curve, threshold_depth
from hf_seqmix.analysis.degree.separation_rank import generic_separation_rank


def test_threshold_depth() -> None:
    assert threshold_depth(2, 16) == pytest.approx(4)
    assert threshold_depth(3, 81) == pytest.approx(4)
    assert threshold_depth(4, 8) == pytest.approx(1.5)
    assert threshold_depth(3, 1) == 0
    for degree, width in ((1, 4), (2, 0)):
        with pytest.raises(ValueError, match=f"degree is {degree} and width {width}; give"):
            threshold_depth(degree, width)


@pytest.mark.parametrize(
    ("degree", "width", "ranks"),
    [(2, 2, [3, 5, 9, 17, 33]), (3, 4, [6, 30]), (4, 3, [5, 17, 65]), (2, 8, [4, 20, 105])],
)
def test_fully_connected_nets(degree: int, width: int, ranks: list[int]) -> None:
    curve = log_rank_curve("fully-connected", degree, width, max_size=110, max_depth=5)
    assert [point.rank for point in curve] == ranks
    assert [point.depth for point in curve] == list(range(1, len(ranks) + 1))
    # One product of d sums l(a) + l'(b) has 2^d terms; deeper nets attain the bound.
    bounds = [
        generic_separation_rank(degree**depth, width // 2, width - width // 2) for depth in range(1, len(ranks) + 1)
    ]
    assert [point.bound for point in curve] == bounds
    assert ranks[0] == min(2**degree, bounds[0])
    assert ranks[1:] == bounds[1:]


@pytest.mark.parametrize(
    ("degree", "affine", "ranks"),
    [(2, False, [2, 4, 8, 16, 32]), (3, False, [2, 5, 14, 41]), (3, True, [2, 6, 25, 79]), (4, False, [4, 16, 64])],
)
def test_attention_form_of_two_scalar_tokens(degree: int, affine: bool, ranks: list[int]) -> None:
    curve = log_rank_curve("attention", degree, 1, affine=affine, max_size=100, max_depth=5)
    assert [point.rank for point in curve] == ranks
    assert [point.bound for point in curve] == [degree**point.depth + 1 for point in curve]


def test_a_curve_ends_before_a_rank_that_fills_the_sample() -> None:
    ranks = [point.rank for point in log_rank_curve("fully-connected", 2, 2, max_size=65)]
    assert ranks == [3, 5, 9, 17, 33]  # 65 would be complete in 66 rows only
    assert [point.rank for point in log_rank_curve("fully-connected", 2, 2, max_size=66)] == [*ranks, 65]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "mlp"}, "form is 'mlp'; give one of 'fully-connected', 'attention'"),
        ({"degree": 1}, "degree is 1, width 4, max_size 600 and max_depth 12; give at least 2, 2, 64 and 1"),
        ({"max_size": 63}, "max_size 63"),
        ({"max_depth": 0}, "max_depth 0"),
        ({"width": 1}, "width 1, max_size 600 and max_depth 12; give at least 2, 2"),
        ({"form": "attention", "num_tokens": 3}, "num_tokens is 3"),
        ({"form": "attention", "degree": 5}, "5 projections"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        log_rank_curve(**{"form": "fully-connected", "degree": 2, "width": 4, **arguments})
