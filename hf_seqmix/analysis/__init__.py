"""Evaluation and inspection of models: language modelling at several context lengths, tables, plots.

`plots` is not imported here, since it needs matplotlib: `from hf_seqmix.analysis import plots`.
"""

from .language_modeling import LanguageModelScore, evaluate_language_model
from .report import markdown_table, run_environment, write_json

__all__ = ["LanguageModelScore", "evaluate_language_model", "markdown_table", "run_environment", "write_json"]
