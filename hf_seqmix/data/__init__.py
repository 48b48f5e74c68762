"""Text corpora, tokenizers, packing and yardsticks, as `datasets` objects (needs the extra `train`)."""

from .checkpoints import choose_checkpoint, fault_of, fault_of_files, last_complete_checkpoint
from .compression import bits_per_byte_gzip, bits_per_byte_xz
from .corpora import hold_out, load_corpus
from .document_pairs import load_document_pairs
from .enwik8 import load_enwik8
from .gutenberg import is_gutenberg, strip_gutenberg
from .listops import evaluate_listops, listops
from .masking import ReproducibleMaskingCollator, mask_blocks
from .ngram import ByteNGram, bits_per_byte_ngram
from .novels import load_novels
from .packing import pack_for_evaluation, pack_for_training, total_bytes
from .passage_pairs import load_documents, same_document_pairs
from .pathfinder import pathfinder
from .pathfinder_geometry import PathfinderScene, pathfinder_scenes
from .pathfinder_settings import PathfinderSettings
from .recall import associative_recall, lagged_copy
from .recipes import config_from_overrides, parse_overrides, read_recipe, recipe_arguments, without_replaced
from .repetition import rare_word_repetition
from .run_folder import explain_write_error, prepare_run_folder
from .scoring import block_scores, corpus_metrics
from .separation_tasks import SEPARATION_TASKS, SeparationTask, separation_dataset, separation_task
from .stdlib_corpus import python_stdlib
from .streaming import EndlessStream
from .tokenization import build_tokenizer, count_bytes, token_bytes, train_bpe
from .whole_files import whole_files, write_json
from .wikitext import load_wikitext, wikitext_articles

__all__ = [
    "SEPARATION_TASKS",
    "ByteNGram",
    "EndlessStream",
    "PathfinderScene",
    "PathfinderSettings",
    "ReproducibleMaskingCollator",
    "SeparationTask",
    "associative_recall",
    "bits_per_byte_gzip",
    "bits_per_byte_ngram",
    "bits_per_byte_xz",
    "block_scores",
    "build_tokenizer",
    "choose_checkpoint",
    "config_from_overrides",
    "corpus_metrics",
    "count_bytes",
    "evaluate_listops",
    "explain_write_error",
    "fault_of",
    "fault_of_files",
    "hold_out",
    "is_gutenberg",
    "lagged_copy",
    "last_complete_checkpoint",
    "listops",
    "load_corpus",
    "load_document_pairs",
    "load_documents",
    "load_enwik8",
    "load_novels",
    "load_wikitext",
    "mask_blocks",
    "pack_for_evaluation",
    "pack_for_training",
    "parse_overrides",
    "pathfinder",
    "pathfinder_scenes",
    "prepare_run_folder",
    "python_stdlib",
    "rare_word_repetition",
    "read_recipe",
    "recipe_arguments",
    "same_document_pairs",
    "separation_dataset",
    "separation_task",
    "strip_gutenberg",
    "token_bytes",
    "total_bytes",
    "train_bpe",
    "whole_files",
    "wikitext_articles",
    "without_replaced",
    "write_json",
]
