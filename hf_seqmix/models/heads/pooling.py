"""One vector for a sequence, and the head that classifies it."""

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from ..configuration import SeqMixConfig

__all__ = ["ClassificationHead", "number_of_labels", "pool"]


def number_of_labels(config: SeqMixConfig) -> int:
    """Return `config.num_labels`, which the library's types allow to be missing."""
    if not config.num_labels:
        raise ValueError(f"num_labels is {config.num_labels}; a classifier needs at least 1.")
    return config.num_labels


def pool(hidden_states: Tensor, attention_mask: Tensor | None, pooling: str | None) -> Tensor:
    """Reduce each sequence to one vector over its real tokens.

    Args:
        hidden_states: (batch, length, hidden_size).
        attention_mask: (batch, length), or (batch, past + length), nonzero at real tokens; None when all are.
        pooling: "mean", "last" or "first". A row without real tokens gives zeros for the mean, else its last vector.

    Returns:
        (batch, hidden_size).

    Raises:
        ValueError: for rows of length 0.
    """
    batch, length, _ = hidden_states.shape
    if not torch.compiler.is_compiling() and length == 0:
        raise ValueError("rows have length 0, and nothing to pool: give at least one token a row.")
    # Sums over long sequences overflow float16, and counts above 256 are not exact in bfloat16.
    dtype = torch.promote_types(hidden_states.dtype, torch.float32)
    if attention_mask is None:
        if pooling == "mean":  # as with a mask of ones, to the last bit
            return (hidden_states.sum(dim=1, dtype=dtype) / length).to(hidden_states.dtype)
        return hidden_states[:, -1 if pooling == "last" else 0]
    # The last layer may be on another device than the inputs.
    mask = attention_mask[:, -length:].to(hidden_states.device) != 0  # (batch, length)
    if pooling == "mean":
        real = mask.unsqueeze(-1)
        total = hidden_states.masked_fill(~real, 0).sum(dim=1, dtype=dtype)
        return (total / real.sum(dim=1).clamp(min=1)).to(hidden_states.dtype)
    positions = torch.arange(length, device=mask.device)
    if pooling == "last":
        last = torch.where(mask, positions, -1).amax(dim=1)
        index = torch.where(last < 0, length - 1, last)
    else:
        index = torch.where(mask, positions, length - 1).amin(dim=1)
    return hidden_states[torch.arange(batch, device=mask.device), index]


class ClassificationHead(nn.Module):
    """Map pooled vectors to logits.

    With one segment: dropout and a linear layer, or, for `classifier_head` "mlp", dropout, linear, tanh, dropout,
    linear (the published masked model's). With two, [a, b, a - b, a b] -> linear -> GELU -> linear (the published head
    of the Long Range Arena's Retrieval).
    """

    def __init__(self, config: SeqMixConfig) -> None:
        super().__init__()
        assert config.classifier_dropout is not None
        self.num_segments = config.num_segments
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.dense: nn.Linear | None = None
        self.activation: nn.Module | None = None
        if config.num_segments > 1:
            self.dense = nn.Linear(4 * config.hidden_size, config.hidden_size)
            self.activation = ACT2FN["gelu"]
        elif config.classifier_head == "mlp":
            self.dense = nn.Linear(config.hidden_size, config.hidden_size)
            self.activation = ACT2FN["tanh"]
        self.out_proj = nn.Linear(config.hidden_size, number_of_labels(config))

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (batch x num_segments, hidden_size), segments of a pair next to each other, to (batch, num_labels)."""
        if self.num_segments > 1:
            a, b = pooled.unflatten(0, (-1, self.num_segments)).unbind(dim=1)
            pooled = torch.cat([a, b, a - b, a * b], dim=-1)
        if self.dense is not None and self.activation is not None:
            pooled = self.activation(self.dense(self.dropout(pooled)))
        return self.out_proj(self.dropout(pooled))
