"""Evaluation and inspection of models: language modeling at several context lengths, separation ranks, tables, plots.

`plots` is not imported here, since it needs matplotlib: `from hf_seqmix.analysis import plots`.
"""

from .couplings import coupling, jacobian_norms, queries_and_keys
from .degree_budget import best_degree, budget_table, match_depth
from .language_modeling import evaluate_language_model, iter_language_model_scores
from .properties import check_causal, check_equivariance, polynomial_degree
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
    "check_causal",
    "check_equivariance",
    "coupling",
    "evaluate_language_model",
    "exact_separation_rank",
    "generic_separation_rank",
    "iter_language_model_scores",
    "jacobian_norms",
    "match_depth",
    "polynomial_degree",
    "queries_and_keys",
    "sample_matrix",
    "separation_spectrum",
    "uniform_rank_bounds",
]
