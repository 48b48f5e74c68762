"""Evaluation and inspection of models: language modeling at several context lengths, separation ranks, tables, plots.

`plots` is not imported here, since it needs matplotlib: `from hf_seqmix.analysis import plots`.
"""

from .degree_budget import best_degree, budget_table, match_depth
from .language_modeling import evaluate_language_model, iter_language_model_scores
from .scores import LanguageModelScore
from .separation_rank import (
    ExactRank,
    SeparationSpectrum,
    exact_separation_rank,
    generic_separation_rank,
    sample_matrix,
    separation_spectrum,
    uniform_rank_bounds,
)

__all__ = [
    "ExactRank",
    "LanguageModelScore",
    "SeparationSpectrum",
    "best_degree",
    "budget_table",
    "evaluate_language_model",
    "exact_separation_rank",
    "generic_separation_rank",
    "iter_language_model_scores",
    "match_depth",
    "sample_matrix",
    "separation_spectrum",
    "uniform_rank_bounds",
]
