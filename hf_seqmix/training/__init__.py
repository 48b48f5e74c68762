"""What runs and what comes of it: runs and results, recipes, checkpoints, resuming, run folders, scores, tables.

The package needs the extra `train`. `segments` and `folders.resumable` need `datasets` too, so nothing here imports
these.
"""

from .environment import run_environment
from .folders.checkpoints import choose_checkpoint, fault_of, fault_of_files, last_complete_checkpoint
from .folders.run_folder import explain_write_error, prepare_run_folder
from .load_errors import explain_model_error, fault_of_model
from .recipes import (
    check_fields,
    config_from_overrides,
    merge_recipes,
    parse_overrides,
    read_recipe,
    recipe_arguments,
    run_from_recipe,
    tokenizer_fields,
    without_replaced,
)
from .result_files import ResultFile, read_results, write_results
from .results import Kind, Result, Summary, group_results, summarize
from .run import Run
from .scoring import block_scores, corpus_metrics
from .tables import markdown_table, results_table

__all__ = [
    "Kind",
    "Result",
    "ResultFile",
    "Run",
    "Summary",
    "block_scores",
    "check_fields",
    "choose_checkpoint",
    "config_from_overrides",
    "corpus_metrics",
    "explain_model_error",
    "explain_write_error",
    "fault_of",
    "fault_of_files",
    "fault_of_model",
    "group_results",
    "last_complete_checkpoint",
    "markdown_table",
    "merge_recipes",
    "parse_overrides",
    "prepare_run_folder",
    "read_recipe",
    "read_results",
    "recipe_arguments",
    "results_table",
    "run_environment",
    "run_from_recipe",
    "summarize",
    "tokenizer_fields",
    "without_replaced",
    "write_results",
]
