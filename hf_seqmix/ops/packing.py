"""Packed rows: which sequence each token belongs to, and how sequences are laid out to be mixed alone."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .common.dispatch import has_numbers
from .common.running_max import running_max

__all__ = [
    "group_by_length",
    "mix_groups",
    "packed_sequence_ids",
    "refuse_restarts",
    "row_of_each_sequence",
    "sequence_positions",
]


def refuse_other_names(cu_seq_lens_q: Tensor | None, others: Mapping[str, Any]) -> None:
    """Refuse boundaries of packed sequences that would be ignored, since they have another name.

    Args:
        cu_seq_lens_q: the boundaries that are read.
        others: further keyword arguments of a model's forward.

    Raises:
        ValueError: `cu_seqlens` is given (the name in flash-linear-attention and mamba-ssm), or `cu_seq_lens_k` alone.
    """
    for name in ("cu_seqlens", "cu_seq_lens_k"):
        if others.get(name) is not None and (name == "cu_seqlens" or cu_seq_lens_q is None):
            raise ValueError(
                f"{name} was given, which is not read: give the boundaries of packed sequences as cu_seq_lens_q, or "
                "seq_idx, or position_ids that restart."
            )


def packed_sequence_ids(
    mask: Tensor | None,
    batch: int,
    length: int,
    position_ids: Tensor | None,
    cu_seq_lens_q: Tensor | None,
    seq_idx: Tensor | None,
) -> Tensor | None:
    """Number the packed sequences of each row, or return None where no row holds more than one.

    A traced call does not look at positions, and numbers the sequences whether or not there are several. On "meta"
    positions do not count: a dry run is one of rows with one sequence each.

    Args:
        mask: (batch, length) bool, True at real tokens; None when all are.
        batch: rows.
        length: tokens of a row.
        position_ids: (batch or 1, length); a sequence begins where a position does not rise.
        cu_seq_lens_q: (sequences + 1,), boundaries in the rows laid end to end; counts before all else.
        seq_idx: (batch, length), numbers of the sequences; counts before `position_ids`.

    Returns:
        (batch, length) long.

    Raises:
        ValueError: for shapes that do not fit, and boundaries that do not rise from 0 to the number of tokens.
    """
    if cu_seq_lens_q is not None:
        return _ids_from_boundaries(cu_seq_lens_q, batch, length)
    if seq_idx is not None:
        if seq_idx.shape != (batch, length):
            raise ValueError(f"seq_idx has shape {tuple(seq_idx.shape)}, but the tokens ({batch}, {length}).")
        return seq_idx.long()
    if position_ids is None or length <= 1 or position_ids.device.type == "meta":
        return None
    restarts = _restarts(mask, batch, length, position_ids)
    if not has_numbers(restarts) or bool(restarts.any()):
        return restarts.long().cumsum(dim=1)
    return None


def refuse_restarts(mask: Tensor | None, batch: int, length: int, position_ids: Tensor | None) -> None:
    """Have a graph stop where positions restart, in a call whose rows cannot be packed since they fill a cache."""
    if position_ids is None or length <= 1:
        return
    torch._assert_async(
        ~_restarts(mask, batch, length, position_ids).any(),
        "position_ids restart, which means packed sequences, and these cannot fill a cache: pass use_cache=False and "
        "no past_key_values, or one sequence a row.",
    )


def _restarts(mask: Tensor | None, batch: int, length: int, position_ids: Tensor) -> Tensor:
    """Return where a real token's position does not exceed that of the real token before it, (batch, length) bool."""
    if position_ids.ndim != 2 or position_ids.shape[1] != length or position_ids.shape[0] not in (1, batch):
        raise ValueError(
            f"position_ids has shape {tuple(position_ids.shape)}; for {batch} rows of {length} tokens it must be "
            f"({batch}, {length}) or (1, {length})."
        )
    positions = position_ids.expand(batch, length)
    if mask is None:
        # Of the full length, not one less: a graph would have to know that this is not 1.
        previous = torch.nn.functional.pad(positions, (1, 0))[:, :-1]
        return (positions <= previous) & (torch.arange(length, device=positions.device) > 0)
    # Pads have positions of no meaning: compare with the last real token, -1 before the first.
    real = running_max(torch.where(mask, torch.arange(length, device=mask.device), -1))
    before = torch.nn.functional.pad(real, (1, 0), value=-1)[:, :-1]
    previous = torch.where(before < 0, -1, positions.gather(1, before.clamp(min=0)))
    return mask & (before >= 0) & (positions <= previous)


def _ids_from_boundaries(cu_seq_lens_q: Tensor, batch: int, length: int) -> Tensor:
    ends = cu_seq_lens_q.flatten().long()
    rows_end = torch.arange(1, batch + 1, device=ends.device) * length
    rule = (
        f"cu_seq_lens_q must rise from 0 to the number of tokens, {batch * length}, with a boundary at the end of "
        f"each of the {batch} rows of {length}"
    )
    valid = (ends[:1] == 0).all() & (ends[-1:] == batch * length).all() & (ends.diff() >= 0).all()
    valid = valid & torch.isin(rows_end, ends).all()
    if torch.compiler.is_compiling():
        torch._assert_async(valid, rule)
    elif cu_seq_lens_q.ndim != 1 or len(ends) < 2 or not bool(valid):
        raise ValueError(f"{rule}; got {ends.tolist()[:16]}.")
    positions = torch.arange(batch * length, device=ends.device)
    return torch.bucketize(positions, ends[1:-1], right=True).view(batch, length)


def group_by_length(
    mask: Tensor | None, sequence_ids: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """Lay each packed sequence in a row of its own, in groups of rows of one length.

    Args:
        mask: (batch, length) bool, True at real tokens; None when all are.
        sequence_ids: (batch, length) long, equal for the tokens of one sequence of a row.

    Returns:
        gather: for each group, (sequences, longest) long, positions in the flattened batch.
        gathered: for each group, (sequences, longest) bool, True where `gather` names a token.
        scatter: (batch, length) long, where each token stands among the flattened groups, one after another.
    """
    batch, length = sequence_ids.shape
    device = sequence_ids.device
    row = torch.arange(batch, device=device).unsqueeze(1).expand(batch, length)
    real = torch.ones_like(sequence_ids, dtype=torch.bool) if mask is None else mask
    # Number the sequences over the whole batch, and the tokens within each.
    labels, label = sequence_ids[real].unique(return_inverse=True)
    uniques, sequence = (row[real] * len(labels) + label).unique(return_inverse=True)
    counts = torch.bincount(sequence, minlength=len(uniques))
    order = sequence.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    within = torch.empty_like(sequence)
    within[order] = torch.arange(len(sequence), device=device) - starts[sequence[order]]
    flat = real.flatten().nonzero().squeeze(1)
    gather, gathered = [], []
    scatter = torch.arange(batch * length, device=device)
    offset = 0
    limits = _lengths_of_groups(counts.tolist())
    group_of = torch.bucketize(counts, torch.tensor(limits, dtype=torch.long, device=device))
    for number, longest in enumerate(limits):
        members = (group_of == number).nonzero().squeeze(1)
        row_of = torch.full_like(counts, -1)
        row_of[members] = torch.arange(len(members), device=device)
        chosen = row_of[sequence] >= 0  # (real tokens,)
        index = row_of[sequence[chosen]] * longest + within[chosen]
        # Places without a token read different tokens: gradients of many reads of one token are added one by one.
        where = torch.arange(len(members) * longest, device=device) % (batch * length)
        there = torch.zeros_like(where, dtype=torch.bool)
        where[index], there[index] = flat[chosen], True
        scatter[flat[chosen]] = index + offset
        gather.append(where.view(-1, longest))
        gathered.append(there.view(-1, longest))
        offset += len(where)
    if not gather:  # nothing but pads
        gather, gathered, offset = [flat.new_zeros(1, 1)], [flat.new_zeros(1, 1, dtype=torch.bool)], 1
    if mask is not None:  # pads read different places, too
        scatter = torch.where(real.flatten(), scatter, scatter % offset)
    return tuple(gather), tuple(gathered), scatter.view(batch, length)


def _lengths_of_groups(counts: list[int]) -> list[int]:
    """Return lengths of rows, rising; a sequence of `counts` tokens stands in the shortest row that holds all of it.

    A group has sequences of more than 2^(k-1) and at most 2^k tokens, so all groups together have at most twice as
    many places as tokens. Lengths are multiples of 16, since kernels of a GPU are compiled for what divides a length;
    of 2^(k-1), where that is less. The longest row is as long as the longest sequence. A group joins the next where
    that adds at most a sixteenth of all tokens as padding: another call of an operation would take longer.
    """
    groups: dict[int, tuple[int, int]] = {}  # k -> sequences, tokens of the longest
    for count in counts:
        k = (count - 1).bit_length()
        sequences, longest = groups.get(k, (0, 0))
        groups[k] = (sequences + 1, max(longest, count))
    rows = []
    total, most = sum(counts), max(counts, default=0)
    for k, (sequences, longest) in sorted(groups.items()):
        unit = min(16, 1 << max(k - 1, 0))
        rows.append((sequences, min(-(-longest // unit) * unit, most)))
    room = 2 * total - sum(sequences * longest for sequences, longest in rows)
    limits = []
    for i, (sequences, longest) in enumerate(rows):
        if i + 1 < len(rows):
            more, wide = rows[i + 1]
            padding = sequences * (wide - longest)
            if padding <= min(room, total // 16):
                room -= padding
                rows[i + 1] = (more + sequences, wide)
                continue
        limits.append(longest)
    return limits


def mix_groups(
    operation: Callable[..., Tensor],
    values: Tensor,
    gather: tuple[Tensor, ...],
    gathered: tuple[Tensor, ...],
    scatter: Tensor,
    *given: Any,
) -> Tensor:
    """Apply an operation to groups of rows, each one sequence, and put the tokens back where they stood.

    Args:
        operation: (rows, *given) -> mixed, (rows, positions, channels) each, zeros around a sequence.
        values: (batch, length, channels).
        gather: see `group_by_length`.
        gathered: see `group_by_length`.
        scatter: see `group_by_length`.
        *given: handed to the operation.

    Returns:
        (batch, length, channels of the operation); pad positions are undefined.
    """
    flat = values.flatten(0, 1)
    mixed = []
    for places, there in zip(gather, gathered, strict=True):
        # Gradients of `index_select` are added up in place. Those of an index are sorted first on a GPU: slow.
        rows = flat.index_select(0, places.flatten()).unflatten(0, places.shape)  # (sequences, longest, channels)
        mixed.append(operation(rows.masked_fill(~there.unsqueeze(-1), 0), *given).flatten(0, 1))
    return torch.cat(mixed).index_select(0, scatter.flatten()).unflatten(0, scatter.shape)


def row_of_each_sequence(
    mask: Tensor | None, sequence_ids: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """Lay each packed sequence in a row of its own, in shapes that depend on the number of tokens alone.

    A row of n tokens becomes n rows of n places, most of them empty: for runtimes that know neither shapes from data
    nor the package's operators.

    Args:
        mask: (batch, length) bool, True at real tokens; None when all are.
        sequence_ids: (batch, length) long, equal for the tokens of one sequence of a row.

    Returns:
        What `group_by_length` returns, as a single group of (batch x length, length).
    """
    batch, length = sequence_ids.shape
    places = torch.arange(length, device=sequence_ids.device)
    same = sequence_ids.unsqueeze(2) == sequence_ids.unsqueeze(1)  # (batch, length, length)
    if mask is not None:
        same = same & mask.unsqueeze(1)
    first = torch.where(same, places, length).amin(dim=2)  # of the sequence, by which its row is numbered
    within = (same & (places <= places.unsqueeze(1))).long().sum(dim=2) - 1
    number = length * length
    target = first * length + within  # (batch, length)
    if mask is not None:
        target = torch.where(mask, target, number)  # a place beyond the last
    rows = torch.zeros((batch, number + 1), dtype=torch.long, device=sequence_ids.device)
    offsets = torch.arange(batch, device=sequence_ids.device).unsqueeze(1)
    gather = rows.scatter(1, target, places.expand(batch, length) + offsets * length)[:, :number]
    gathered = rows.scatter(1, target, torch.ones_like(target))[:, :number] != 0
    shape = (batch * length, length)
    scatter = target.clamp(max=number - 1) + offsets * number
    return (gather.reshape(shape),), (gathered.reshape(shape),), scatter


def sequence_positions(sequence_ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Count the real tokens before each token within its packed sequence.

    Args:
        sequence_ids: (batch, length), equal for neighboring tokens of one sequence; of any value at pads.
        mask: (batch, length) bool, True at real tokens; None when all are.

    Returns:
        (batch, length) long; of no meaning at pads.
    """
    places = torch.arange(sequence_ids.shape[1], device=sequence_ids.device).expand_as(sequence_ids)
    before = places
    if mask is not None:
        last_real = running_max(torch.where(mask, places, 0))
        sequence_ids = sequence_ids.gather(1, last_real)
        before = mask.cumsum(dim=1) - mask.long()
    starts = torch.nn.functional.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], (1, 0), value=True)
    return before - running_max(torch.where(starts, before, 0))
