"""Continuous batching: requests that join and leave a running batch, behind the library's request interface."""

from .batch import RequestBatch
from .manager import RowBatchingManager
from .mixin import RowBatchingMixin

__all__ = ["RequestBatch", "RowBatchingManager", "RowBatchingMixin"]
