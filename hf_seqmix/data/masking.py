"""Masks for masked language models that a resumed run draws exactly as the interrupted run would have."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import datasets
import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase, default_data_collator

from .._labels import IGNORED_LABEL
from .labeled.special_tokens import SpecialTokens
from .rewriting import pair_with_rewriting

__all__ = ["ReproducibleMaskingCollator", "mask_blocks"]

AnyDataset = TypeVar("AnyDataset", datasets.Dataset, datasets.IterableDataset)

DRAWS = 1000
"""Of masks at most, for a batch that has none: enough for one token in a hundred and rows of a few."""


@dataclass
class ReproducibleMaskingCollator(DataCollatorForLanguageModeling):
    """Mask the tokens of a batch by a function of `seed` and these tokens.

    [`~transformers.DataCollatorForLanguageModeling`] draws from a random stream. Loaders that fetch ahead or skip
    batches change the state of that stream, so a resumed run would see other masks. Here the same batch always gets
    the same masks. A block gets a new mask whenever other blocks share its batch, that is in every epoch of a shuffled
    data set. Rows that have `labels` already (see [`mask_blocks`]) are only stacked.

    Attributes:
        seed: another seed gives other masks.
        pair_share: share of the rows that become a text and its rewriting ([`pair_with_rewriting`]) before they are
            masked, from 0 to 1. A hidden token of one text often stands in the other, so that a model learns to
            compare two texts, as pairs of sentences need.
        never_empty: masks are drawn anew where no token of a batch is hidden, up to `DRAWS` times: an update has no
            loss then.
    """

    seed: int | None = 0
    pair_share: float = 0.0
    never_empty: bool = False

    def __post_init__(self) -> None:
        """Check the shares; the library checks the tokenizer.

        Raises:
            ValueError: `pair_share` does not lie between 0 and 1, or batches are not to be PyTorch's.
        """
        super().__post_init__()
        if self.return_tensors != "pt":
            raise ValueError(
                f"return_tensors is {self.return_tensors!r}; masks are drawn by PyTorch, so it must be 'pt'."
            )
        if not 0 <= self.pair_share <= 1:
            raise ValueError(f"pair_share is {self.pair_share}; it must lie between 0 and 1.")
        self._special = SpecialTokens.of(self.tokenizer) if self.pair_share else None

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        """Make a batch of `input_ids` and `labels`, (rows, length) each.

        Raises:
            ValueError: the labels of the rows are their tokens, of which none is masked.
        """
        examples = [row if isinstance(row, Mapping) else {"input_ids": row} for row in examples]
        if "labels" in examples[0]:
            batch = default_data_collator(examples)
            if torch.equal(batch["labels"], batch["input_ids"]):
                raise ValueError(
                    "labels are the tokens themselves, which are not masked: pack rows with causal=False, or "
                    "leave their labels out."
                )
            return batch
        digest = hashlib.sha256(str(self.seed).encode())
        for example in examples:
            digest.update(torch.as_tensor(example["input_ids"], dtype=torch.int64).numpy().tobytes())
        self.generator = torch.Generator().manual_seed(int.from_bytes(digest.digest()[:7], "big"))
        if self._special is not None:
            paired = torch.rand(len(examples), generator=self.generator) < self.pair_share
            examples = [
                {**row, **_as_pair(row, self._special, self.generator)} if pair else row
                for row, pair in zip(examples, paired.tolist(), strict=True)
            ]
        for _ in range(DRAWS):
            batch = dict(super().torch_call(examples))
            if not self.never_empty or (batch["labels"] != IGNORED_LABEL).any():
                break
        return batch

    def create_rng(self, *args: Any, **kwargs: Any) -> None:
        """Leave the generator of the batch, in whose place the library puts one of its own in each new process."""


def _as_pair(row: Mapping[str, Any], special: SpecialTokens, generator: torch.Generator) -> dict[str, Any]:
    """Return the tokens of a row as a text and its rewriting; positions, where a row has them, are of one text."""
    ids = pair_with_rewriting(row["input_ids"], special, generator)
    positions = {"position_ids": list(range(len(ids)))} if "position_ids" in row else {}
    return {"input_ids": ids, **positions}


def mask_blocks(
    blocks: AnyDataset, tokenizer: PreTrainedTokenizerBase, *, mlm_probability: float = 0.15, seed: int = 0
) -> AnyDataset:
    """Mask evaluation blocks once and for all, each by itself, so that every evaluation answers the same questions.

    Args:
        blocks: rows with `input_ids`, as [`pack_for_evaluation`] gives.
        tokenizer: says which token masks, and which are special and never masked.
        mlm_probability: share of the tokens to predict; of these tokens 80 % are masked, 10 % replaced and 10 % kept.
        seed: another seed gives other masks.

    Returns:
        The rows with masked `input_ids`, and `labels` of -100 where nothing was masked.
    """
    collator = ReproducibleMaskingCollator(tokenizer=tokenizer, mlm_probability=mlm_probability, seed=seed)

    def mask(row: dict[str, Any]) -> dict[str, Any]:
        masked = collator([{"input_ids": row["input_ids"]}])
        return {name: masked[name][0].tolist() for name in ("input_ids", "labels")}

    return blocks.map(mask)
