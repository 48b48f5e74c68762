"""Separation rank and degree of polynomial networks: exact ranks, how they grow with depth, depths of equal size."""

from .budget import best_degree, budget_table, match_depth
from .separation_rank import (
    ExactRank,
    SeparationSpectrum,
    exact_separation_rank,
    generic_separation_rank,
    separation_spectrum,
)

__all__ = [
    "ExactRank",
    "SeparationSpectrum",
    "best_degree",
    "budget_table",
    "exact_separation_rank",
    "generic_separation_rank",
    "match_depth",
    "separation_spectrum",
]
