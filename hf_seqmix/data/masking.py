"""Masks for masked language models that a resumed run draws exactly as the interrupted run would have."""

import hashlib
from dataclasses import dataclass
from typing import Any, TypeVar

import datasets
import torch
from torch import Tensor
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase, default_data_collator

from .labelled.special_tokens import SpecialTokens
from .rewriting import pair_with_rewriting

__all__ = ["ReproducibleMaskingCollator", "mask_blocks"]

Rows = TypeVar("Rows", datasets.Dataset, datasets.IterableDataset)


@dataclass
class ReproducibleMaskingCollator(DataCollatorForLanguageModeling):
    """Mask the tokens of a batch by a function of `seed` and these tokens.

    [`~transformers.DataCollatorForLanguageModeling`] draws from a random stream. Loaders that fetch ahead or skip
    batches change the state of that stream, so a resumed run would see other masks. Here the same batch always gets
    the same masks. A block gets a new mask whenever other blocks share its batch, that is in every epoch of a shuffled
    data set. Rows that have `labels` already (see [`mask_blocks`]) are only stacked.

    Attributes:
        mlm_probability: share of the tokens to predict.
        seed: another seed gives other masks.
        mean_span: mean length of the runs of hidden tokens; each token is hidden by itself, in runs of
            1 / (1 - mlm_probability), by default. A single hidden byte is known by its neighbors, a word is not.
        pair_share: share of the rows that become a text and its rewriting ([`pair_with_rewriting`]) before they are
            masked, from 0 to 1. A hidden token of one text often stands in the other, so that a model learns to
            compare two texts, as pairs of sentences need.
    """

    mlm_probability: float = 0.15
    seed: int | None = 0
    pair_share: float = 0.0
    mean_span: float | None = None

    def __post_init__(self) -> None:
        """Check shares and spans; the library checks the tokenizer.

        Raises:
            ValueError: `pair_share` does not lie between 0 and 1, or `mean_span` is shorter than the runs of tokens
                that are hidden each by itself.
        """
        super().__post_init__()
        if self.mean_span is not None and not self.mean_span * (1 - self.mlm_probability) >= 1:
            least = 1 / (1 - self.mlm_probability)
            raise ValueError(
                f"mean_span is {self.mean_span}; where {self.mlm_probability:g} of the tokens are hidden, runs have "
                f"{least:.3g} on average even if each token is hidden by itself. Give more, or None for these."
            )
        if not 0 <= self.pair_share <= 1:
            raise ValueError(f"pair_share is {self.pair_share}; it must lie between 0 and 1.")
        self._special = SpecialTokens.of(self.tokenizer) if self.pair_share else None

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        """Make a batch of `input_ids` and `labels`, (rows, length) each."""
        if "labels" in examples[0]:
            return default_data_collator(examples)
        digest = hashlib.sha256(str(self.seed).encode())
        for example in examples:
            digest.update(torch.as_tensor(example["input_ids"], dtype=torch.int64).numpy().tobytes())
        self.generator = torch.Generator().manual_seed(int.from_bytes(digest.digest()[:7], "big"))
        if self._special is not None:
            paired = torch.rand(len(examples), generator=self.generator) < self.pair_share
            examples = [
                {**row, "input_ids": pair_with_rewriting(row["input_ids"], self._special, self.generator)}
                if pair
                else row
                for row, pair in zip(examples, paired.tolist(), strict=True)
            ]
        return dict(super().torch_call(examples))

    def torch_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        """Return masked inputs and labels, (rows, length) each."""
        if self.mean_span is None:
            return super().torch_mask_tokens(inputs, special_tokens_mask, offset_mapping)
        if special_tokens_mask is None:
            special_tokens_mask = [
                self.tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) for row in inputs.tolist()
            ]
        shown = torch.as_tensor(special_tokens_mask).bool() | ~self._spans(inputs.shape)
        everything = DataCollatorForLanguageModeling(tokenizer=self.tokenizer, mlm_probability=1.0)
        everything.generator = self.generator
        return everything.torch_mask_tokens(inputs, special_tokens_mask=shown)

    def _spans(self, shape: tuple[int, int]) -> Tensor:
        """Draw which places are hidden, (rows, length): a Markov chain whose runs of hidden places are geometric.

        The chain leaves a run with probability 1 / mean_span and begins one so that `mlm_probability` of the places
        are hidden. One number a place decides: below the second, a run begins or goes on; above one minus the first,
        the run ends or none begins; between, all stays as it is, so that the last decision counts.
        """
        assert self.mean_span is not None
        rows, length = shape
        begin = self.mlm_probability / (self.mean_span * (1 - self.mlm_probability))
        drawn = torch.rand(rows, length + 1, generator=self.generator)
        hidden = drawn < begin
        decided = hidden | (drawn >= 1 - 1 / self.mean_span)
        hidden[:, 0], decided[:, 0] = drawn[:, 0] < self.mlm_probability, True
        last = torch.where(decided, torch.arange(length + 1), 0).cummax(dim=1).values
        return hidden.gather(1, last)[:, 1:]


def mask_blocks(
    blocks: Rows,
    tokenizer: PreTrainedTokenizerBase,
    *,
    mlm_probability: float = 0.15,
    seed: int = 0,
    mean_span: float | None = None,
) -> Rows:
    """Mask evaluation blocks once and for all, each by itself, so that every evaluation answers the same questions.

    Args:
        blocks: rows with `input_ids`, as [`pack_for_evaluation`] gives.
        tokenizer: says which token masks, and which are special and never masked.
        mlm_probability: share of the tokens to predict; of these tokens 80 % are masked, 10 % replaced and 10 % kept.
        seed: another seed gives other masks.
        mean_span: mean length of the runs of hidden tokens, as in [`ReproducibleMaskingCollator`].

    Returns:
        The rows with masked `input_ids`, and `labels` of -100 where nothing was masked.
    """
    collator = ReproducibleMaskingCollator(
        tokenizer=tokenizer, mlm_probability=mlm_probability, seed=seed, mean_span=mean_span
    )

    def mask(row: dict[str, Any]) -> dict[str, Any]:
        masked = collator([{"input_ids": row["input_ids"]}])
        return {name: masked[name][0].tolist() for name in ("input_ids", "labels")}

    return blocks.map(mask)
