"""What makes the library's entries to continuous batching lead to a `RowBatchingManager`."""

from typing import Any

import torch
from transformers import ContinuousBatchingConfig, ContinuousMixin, GenerationConfig
from transformers.utils import logging

from .manager import RowBatchingManager

__all__ = ["RowBatchingMixin"]

logger = logging.get_logger(__name__)


class RowBatchingMixin(ContinuousMixin):
    """A causal language model whose requests are batched as rows; stands before `GenerationMixin` among the bases.

    `generate_batch` and `continuous_batching_context_manager` are the library's own.
    """

    @torch.no_grad()
    def init_continuous_batching(
        self,
        generation_config: GenerationConfig | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        workload_hints: Any = None,
    ) -> Any:
        """Return a `RowBatchingManager`, or the one that was kept for the next session, with its own configurations.

        Args:
            generation_config: how tokens are chosen; the model's own by default.
            continuous_batching_config: see `RowBatchingManager`.
            workload_hints: of no use here: rows are allocated as requests come.
        """
        kept = getattr(self, "_cached_continuous_batching_manager", None)
        if kept is not None:
            if generation_config not in (None, kept.generation_config):
                logger.warning(
                    "the manager that was kept for this session has the configuration it was made with: call "
                    "destroy_cached_continuous_batching_manager() for one with that given here."
                )
            return kept
        return RowBatchingManager(self, generation_config or self.generation_config, continuous_batching_config)

    def destroy_cached_continuous_batching_manager(self) -> None:
        """End the manager that was kept for the next session, and forget it."""
        kept = vars(self).pop("_cached_continuous_batching_manager", None)
        if kept is not None:
            kept.destroy()
