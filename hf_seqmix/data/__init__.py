"""Data for sequence models as `datasets` objects, tokenizers and packing (needs the extra `train`).

`text` has corpora, `lra` the Long Range Arena, `synthetic` tasks that test one ability each, and `labeled` labeled
examples as model inputs. Here are tokenizers, packing into blocks, masking, and the baselines of text: n-grams and
compressors. The public names of `text`, `lra` and `synthetic` are names of this package, too.
"""

from .compression import bits_per_byte_gzip, bits_per_byte_xz
from .lra import (
    PathfinderScene,
    PathfinderSettings,
    listops,
    listops_values,
    load_documents,
    pathfinder,
    pathfinder_scenes,
    same_document_pairs,
)
from .masking import ReproducibleMaskingCollator, mask_blocks
from .ngram import ByteNGram
from .packing import pack_for_evaluation, pack_for_training, total_bytes
from .rewriting import rewritten_pairs
from .synthetic import (
    SEPARATION_TASKS,
    SeparationTask,
    associative_recall,
    changing_recall,
    lagged_copy,
    noisy_recall,
    rare_word_repetition,
    running_count,
    separation_task,
)
from .text import (
    hold_out,
    is_gutenberg,
    load_corpus,
    load_enwik8,
    load_novels,
    load_wikitext,
    python_stdlib,
    strip_gutenberg,
    wikitext_articles,
)
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
    "bits_per_byte_xz",
    "build_tokenizer",
    "changing_recall",
    "count_bytes",
    "hold_out",
    "is_gutenberg",
    "lagged_copy",
    "listops",
    "listops_values",
    "load_corpus",
    "load_documents",
    "load_enwik8",
    "load_novels",
    "load_wikitext",
    "mask_blocks",
    "noisy_recall",
    "pack_for_evaluation",
    "pack_for_training",
    "pathfinder",
    "pathfinder_scenes",
    "python_stdlib",
    "rare_word_repetition",
    "rewritten_pairs",
    "running_count",
    "same_document_pairs",
    "separation_task",
    "strip_gutenberg",
    "token_bytes",
    "total_bytes",
    "train_bpe",
    "wikitext_articles",
]
