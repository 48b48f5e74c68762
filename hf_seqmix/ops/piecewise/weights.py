"""The kernels of IPA's column operation, all in memory at once: its definition."""

import torch
from torch import Tensor

__all__ = ["piecewise_weights", "relative_values"]


def piecewise_weights(
    query: Tensor,
    key: Tensor,
    bias: Tensor | None = None,
    coupling: Tensor | None = None,
    mix: Tensor | None = None,
    *,
    kernel_norm: str = "p",
    scale: float = 1.0,
    causal: bool = True,
    key_mask: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    visible: Tensor | None = None,
) -> Tensor:
    """Return what `piecewise_column` multiplies the values with: K[p, l, j] a[p, l, j], divided by |V[l]| where it is.

    Args:
        query: (batch, centers, n, r).
        key: (batch, centers, N, r).
        bias: as for `piecewise_column`, like all that follows.
        coupling: a.
        mix: for the norm "mix".
        kernel_norm: one of `KERNEL_NORMS`.
        scale: factor on q . k.
        causal: whether keys after a query are hidden.
        key_mask: (batch, N) bool.
        query_positions: (batch or 1, n) long.
        key_positions: (batch or 1, N) long.
        visible: (batch or 1, n, N) bool.

    Returns:
        (batch, centers, n, N), 0 at hidden keys.
    """
    n, total = query.shape[2], key.shape[2]
    if query_positions is None:
        query_positions = torch.arange(total - n, total, device=query.device)[None]
        key_positions = torch.arange(total, device=query.device)[None]
        visible = torch.ones((1, n, total), dtype=torch.bool, device=query.device)
        if causal:
            visible = key_positions[:, None] <= query_positions[:, :, None]
        if key_mask is not None:
            visible = visible & key_mask[:, None]
    assert key_positions is not None and visible is not None
    logits = scale * query @ key.transpose(-1, -2)
    if bias is not None:
        logits = logits + relative_values(bias, query_positions, key_positions, causal)
    seen = visible[:, None]
    counts = seen.sum(dim=-1, keepdim=True).clamp(min=1)
    # The definition; what runs without a graph is `blocks.py`.
    over_centers = logits.softmax(dim=1) * seen
    if kernel_norm == "p":
        kernels = over_centers / counts
    elif kernel_norm == "none":
        kernels = logits * seen
    else:
        if kernel_norm == "prod":
            logits = logits + logits.log_softmax(dim=1)
        kernels = logits.masked_fill(~seen, float("-inf")).softmax(dim=-1).nan_to_num(0)
        if kernel_norm == "mix":
            assert mix is not None
            kernels = mix * kernels + (1 - mix) * over_centers / counts
    if coupling is not None:
        kernels = kernels * relative_values(coupling, query_positions, key_positions, causal)
    return kernels


def relative_values(table: Tensor, query_positions: Tensor, key_positions: Tensor, causal: bool) -> Tensor:
    """Read a table of offsets for all pairs, as `piecewise_column` reads `bias`.

    Args:
        table: (centers, M) when causal, else (centers, 2 M - 1).
        query_positions: (batch or 1, n) long.
        key_positions: (batch or 1, N) long.
        causal: how `table` is laid out.

    Returns:
        (batch or 1, centers, n, N).
    """
    offsets = query_positions[:, :, None] - key_positions[:, None]  # (batch or 1, n, N)
    size = table.shape[1] if causal else (table.shape[1] + 1) // 2
    index = offsets.clamp(0, size - 1) if causal else offsets.clamp(1 - size, size - 1) + size - 1
    return table[:, index].transpose(0, 1)
