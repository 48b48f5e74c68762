"""How long the texts are that finetune.py gives to a model, and what the cut leaves out."""

import logging

import datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_seqmix.data.labeled import WAS_CUT, SequenceClassification, TokenClassification
from hf_seqmix.models.configuration import SeqMixConfig

from .arguments import Arguments
from .models import DEFAULT_MAX_LENGTH
from .scoring import Task

__all__ = ["count_cut", "longest_input", "warn_of_cut"]

logger = logging.getLogger("finetune")


def longest_input(arguments: Arguments, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return what `--max-length` says, or what the model and its tokenizer take, at most 512.

    Raises:
        ValueError: `--max-length` is more than the model has positions for.
    """
    if (asked := arguments.data.max_length) is not None:
        limit = model.config.position_limit if isinstance(model.config, SeqMixConfig) else None
        if limit is not None and asked > limit:
            raise ValueError(
                f"--max-length is {asked}, but the model has positions for {limit} tokens (max_position_embeddings): "
                "give at most that many, or a model with more positions."
            )
        return asked
    limits = [DEFAULT_MAX_LENGTH, tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    return min(int(limit) for limit in limits if limit)


def count_cut(task: Task, encoded: datasets.DatasetDict) -> dict[str, int]:
    """Return how many examples of each split have texts or words that the model does not read.

    Question answering reads all of a context, window after window, and has no counts; images have none either.
    """
    if isinstance(task, (SequenceClassification, TokenClassification)):
        return {split: sum(rows[WAS_CUT]) for split, rows in encoded.items()}
    return {}


def warn_of_cut(
    cut: dict[str, int],
    examples: datasets.DatasetDict,
    max_length: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Say in one line how many texts of each split were cut, and which `--max-length` the model allows."""
    if not any(cut.values()):
        return
    counts = ", ".join(f"{split}: {count} of {len(examples[split])}" for split, count in cut.items())
    most = _length_limit(model, tokenizer)
    if most is None:
        advice = "give a larger --max-length (the model sets no limit)"
    elif most > max_length:
        advice = f"give a larger --max-length (at most {most} for this model)"
    else:
        advice = "the model takes no more, so shorten the texts or give a model for longer ones"
    logger.warning(f"{counts} texts are longer than {max_length} tokens and were cut; {advice}")


def _length_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the longest input that model and tokenizer take; None where neither sets a limit."""
    config = model.config
    own = config.position_limit if isinstance(config, SeqMixConfig) else getattr(config, "max_position_embeddings", 0)
    # A tokenizer that knows no limit says 10^30.
    limits = [limit for limit in (own, tokenizer.model_max_length) if limit and limit < 10**9]
    return min(limits, default=None)
