"""Evaluation and inspection of models: scores at several context lengths, separation ranks, spectra, tables, plots.

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
from .spectra import (
    SHEARED_SINGULAR_VALUES,
    DecayFit,
    PowerLawFit,
    SpectrumReport,
    center,
    cross_spectrum,
    entropy_rank,
    eps_rank,
    fit_decay,
    fit_power_law,
    planted_coupling,
    planted_features,
    sheared_coupling,
    spectrum,
    stable_rank,
    tail_squares,
)

__all__ = [
    "SHEARED_SINGULAR_VALUES",
    "DecayFit",
    "ExactRank",
    "LanguageModelScore",
    "PowerLawFit",
    "SeparationSpectrum",
    "SpectrumReport",
    "best_degree",
    "budget_table",
    "center",
    "check_causal",
    "check_equivariance",
    "coupling",
    "cross_spectrum",
    "entropy_rank",
    "eps_rank",
    "evaluate_language_model",
    "exact_separation_rank",
    "fit_decay",
    "fit_power_law",
    "generic_separation_rank",
    "iter_language_model_scores",
    "jacobian_norms",
    "match_depth",
    "planted_coupling",
    "planted_features",
    "polynomial_degree",
    "queries_and_keys",
    "sample_matrix",
    "separation_spectrum",
    "sheared_coupling",
    "spectrum",
    "stable_rank",
    "tail_squares",
    "uniform_rank_bounds",
]
