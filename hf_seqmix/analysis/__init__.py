"""Evaluation and inspection of models: scores at several lengths, couplings and their spectra, separation ranks.

Each folder is one idea: `couplings` and `spectra` (how much each token counts for each other one, and singular values
of that), `inside` (a view of each layer), `kernels`, `text` (scores of language models), `degree` (separation ranks)
and `rates` (targets, floors and models of approximation theory). `plots` is not imported here, since it needs
matplotlib: `from hf_seqmix.analysis import plots`.
"""

from . import rates, spectra
from .couplings import coupling, jacobian_norms, queries_and_keys
from .degree import (
    ExactRank,
    SeparationSpectrum,
    best_degree,
    budget_table,
    exact_separation_rank,
    generic_separation_rank,
    match_depth,
    separation_spectrum,
)
from .properties import check_causal, check_equivariance, polynomial_degree
from .spectra import SpectrumReport, cross_spectrum, fit_decay, fit_power_law, spectrum
from .text import LanguageModelScore, evaluate_language_model, iter_language_model_scores
from .token_order import first_to_end, permuted_tokens

__all__ = [
    "ExactRank",
    "LanguageModelScore",
    "SeparationSpectrum",
    "SpectrumReport",
    "best_degree",
    "budget_table",
    "check_causal",
    "check_equivariance",
    "coupling",
    "cross_spectrum",
    "evaluate_language_model",
    "exact_separation_rank",
    "first_to_end",
    "fit_decay",
    "fit_power_law",
    "generic_separation_rank",
    "iter_language_model_scores",
    "jacobian_norms",
    "match_depth",
    "permuted_tokens",
    "polynomial_degree",
    "queries_and_keys",
    "rates",
    "separation_spectrum",
    "spectra",
    "spectrum",
]
