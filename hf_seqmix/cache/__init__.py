"""Cache layers on the library's own base classes, and what mixers do with them."""

from .history import HISTORY, HistoryLayer, HistoryStaticLayer, append_history, cached_taps, past_length
from .sums import SUMS, SumsLayer, SumsStaticLayer, append_sums, read_sums

__all__ = [
    "HISTORY",
    "SUMS",
    "HistoryLayer",
    "HistoryStaticLayer",
    "SumsLayer",
    "SumsStaticLayer",
    "append_history",
    "append_sums",
    "cached_taps",
    "past_length",
    "read_sums",
]
