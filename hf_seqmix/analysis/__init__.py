"""Evaluation and inspection of models: language modelling at several context lengths, tables, plots.

`plots` is not imported here, since it needs matplotlib: `from hf_seqmix.analysis import plots`.
"""

from .language_modeling import evaluate_language_model, iter_language_model_scores
from .report import ResultLog, markdown_table, run_environment
from .scores import LanguageModelScore

__all__ = [
    "LanguageModelScore",
    "ResultLog",
    "evaluate_language_model",
    "iter_language_model_scores",
    "markdown_table",
    "run_environment",
]
