"""Text corpora, tokenizers, packing and yardsticks, as `datasets` objects (needs the extra `train`)."""

from .compression import bits_per_byte_gzip, bits_per_byte_xz
from .lra.document_pairs import load_document_pairs
from .lra.listops import evaluate_listops, listops
from .lra.passage_pairs import load_documents, same_document_pairs
from .lra.pathfinder import pathfinder
from .lra.pathfinder_geometry import PathfinderScene, pathfinder_scenes
from .lra.pathfinder_settings import PathfinderSettings
from .masking import ReproducibleMaskingCollator, mask_blocks
from .ngram import ByteNGram, bits_per_byte_ngram
from .packing import pack_for_evaluation, pack_for_training, total_bytes
from .synthetic.recall import associative_recall, lagged_copy
from .synthetic.repetition import rare_word_repetition
from .synthetic.separation_tasks import SEPARATION_TASKS, SeparationTask, separation_dataset, separation_task
from .text.corpora import hold_out, load_corpus
from .text.enwik8 import load_enwik8
from .text.gutenberg import is_gutenberg, strip_gutenberg
from .text.novels import load_novels
from .text.stdlib_corpus import python_stdlib
from .text.wikitext import load_wikitext, wikitext_articles
from .tokenization import build_tokenizer, count_bytes, token_bytes, train_bpe

__all__ = [
    "SEPARATION_TASKS",
    "ByteNGram",
    "PathfinderScene",
    "PathfinderSettings",
    "ReproducibleMaskingCollator",
    "SeparationTask",
    "associative_recall",
    "bits_per_byte_gzip",
    "bits_per_byte_ngram",
    "bits_per_byte_xz",
    "build_tokenizer",
    "count_bytes",
    "evaluate_listops",
    "hold_out",
    "is_gutenberg",
    "lagged_copy",
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
    "pathfinder",
    "pathfinder_scenes",
    "python_stdlib",
    "rare_word_repetition",
    "same_document_pairs",
    "separation_dataset",
    "separation_task",
    "strip_gutenberg",
    "token_bytes",
    "total_bytes",
    "train_bpe",
    "wikitext_articles",
]
