"""What runs and what comes of it: runs and results, recipes, checkpoints, resuming, run folders, scores.

`streaming` and `resumable` need the extra `train`, so nothing here imports the two.
"""

from .checkpoints import choose_checkpoint, fault_of, fault_of_files, last_complete_checkpoint
from .recipes import (
    config_from_overrides,
    merge_recipes,
    parse_overrides,
    read_recipe,
    recipe_arguments,
    run_from_recipe,
    tokenizer_fields,
    without_replaced,
)
from .run_folder import explain_write_error, prepare_run_folder
from .scoring import block_scores, corpus_metrics

__all__ = [
    "block_scores",
    "choose_checkpoint",
    "config_from_overrides",
    "corpus_metrics",
    "explain_write_error",
    "fault_of",
    "fault_of_files",
    "last_complete_checkpoint",
    "merge_recipes",
    "parse_overrides",
    "prepare_run_folder",
    "read_recipe",
    "recipe_arguments",
    "run_from_recipe",
    "tokenizer_fields",
    "without_replaced",
]
