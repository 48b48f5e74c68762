"""Corpora of text as `datasets` objects with one column, `text`.

`load_corpus` reads files, folders and data sets of the Hub. The other loaders know the splits and the documents of one
corpus.
"""

from .corpora import Corpus, hold_out, load_corpus
from .enwik8 import load_enwik8
from .gutenberg import is_gutenberg, strip_gutenberg
from .novels import load_novels
from .stdlib_corpus import python_stdlib, split_of
from .wikitext import load_wikitext, wikitext_articles

__all__ = [
    "Corpus",
    "hold_out",
    "is_gutenberg",
    "load_corpus",
    "load_enwik8",
    "load_novels",
    "load_wikitext",
    "python_stdlib",
    "split_of",
    "strip_gutenberg",
    "wikitext_articles",
]
