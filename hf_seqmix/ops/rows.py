"""Operations on rows that hold one sequence each, and the same as operators for graphs in which rows are packed.

Where sequences begin is data. To lay each in a row of its own makes shapes that depend on the data, which no graph
holds. So a graph holds opaque operators, which look at the data when they run, and do what a call without a graph
does: rows of one sequence are mixed as they stand. One operator plans how sequences are laid out, once for all layers
and for the backward pass, in tensors whose shapes depend on the number of tokens alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .common.operator import define_operator, differentiable_operator, recorded
from .packing import group_by_length, mix_groups

__all__ = ["RowOperation", "packed_plan"]

_ARGUMENTS = "Tensor values, Tensor sizes, Tensor places, Tensor[] tensors, int[] settings"
_MOST_GROUPS = 64  # one for each power of two that a length may have

# Shapes within depend on the data, so that a CUDA graph cannot hold the operator; older releases have no such tag.
_TAGS = [torch.Tag.cudagraph_unsafe] if hasattr(torch.Tag, "cudagraph_unsafe") else []


def _empty_plan(mask: Tensor | None, sequence_ids: Tensor) -> tuple[Tensor, Tensor]:
    sizes = torch.empty((_MOST_GROUPS, 2), dtype=torch.long, device="cpu")
    return sizes, sequence_ids.new_empty(3 * sequence_ids.shape[0] * sequence_ids.shape[1])


@define_operator(
    "hf_seqmix::packed_plan_v1",
    "(Tensor? mask, Tensor sequence_ids) -> (Tensor, Tensor)",
    fake=_empty_plan,
    tags=_TAGS,
)
def _plan(mask: Tensor | None, sequence_ids: Tensor) -> tuple[Tensor, Tensor]:
    sizes, places = (x.zero_() for x in _empty_plan(mask, sequence_ids))
    one = (sequence_ids == sequence_ids[:, :1]).all()
    if bool(one if mask is None else one & mask.all()):
        return sizes, places
    gather, gathered, scatter = group_by_length(mask, sequence_ids)
    start = 0
    for number, (group, there) in enumerate(zip(gather, gathered, strict=True)):
        sizes[number] = torch.tensor(group.shape)
        places[start : start + group.numel()] = torch.where(there, group, ~group).flatten()
        start += group.numel()
    # All groups together have at most twice as many places as there are tokens.
    places[2 * scatter.numel() :] = scatter.flatten()
    return sizes, places


def packed_plan(mask: Tensor | None, sequence_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Plan how packed sequences are laid out in rows of their own, by an operator.

    Args:
        mask: (batch, length) bool, True at real tokens; None when all are.
        sequence_ids: (batch, length) long, equal for the tokens of one sequence of a row.

    Returns:
        sizes: (64, 2) long on the CPU: rows and length of each group of `group_by_length`, zeros for further groups.
            Without groups, rows are mixed as they stand.
        places: (3 batch length,) long: entries of the groups' `gather`, one group after another, negative (~)
            where no token stands; in the last third, `scatter`.
    """
    plan: tuple[Tensor, Tensor] = _plan(True, mask, sequence_ids)
    return plan


def _apply_plan(
    function: "RowFunction", values: Tensor, sizes: Tensor, places: Tensor, tensors: Sequence[Tensor], *rest: Any
) -> Tensor:
    batch, length = values.shape[:2]
    groups = [(rows, longest) for rows, longest in sizes.tolist() if rows]
    if not groups:
        return function(values, tensors, *rest)
    used = [rows * longest for rows, longest in groups]
    parts = places[: sum(used)].split(used)
    gather = tuple(part.view(shape) for part, shape in zip(parts, groups, strict=True))
    gathered = tuple(part >= 0 for part in gather)
    scatter = places[2 * batch * length :].view(batch, length)
    return mix_groups(
        function,
        values,
        tuple(torch.where(part < 0, ~part, part) for part in gather),
        gathered,
        scatter,
        tensors,
        *rest,
    )


RowFunction = Callable[..., Tensor]
Shape = Callable[[Tensor, Sequence[Tensor], Sequence[int]], tuple[int, torch.dtype]]


class RowOperation:
    """An operation that mixes the positions of rows, each one sequence, and its form for packed rows in a graph.

    Args:
        name: "namespace::name" of the operator.
        function: (rows, tensors, settings, *modules) -> mixed. Rows are (rows, positions, channels), and may end in
            zeros, which are no tokens. `mixed` is (rows, positions, any number of channels). Everything else that is
            differentiated is among the tensors. Modules, which a user may have changed, compute what `function` does
            without them; the operator takes none.
        result: (values, tensors, settings) -> number of channels and dtype of `mixed`; those of the rows by default.
    """

    def __init__(self, name: str, function: RowFunction, result: Shape | None = None) -> None:
        self.function = function

        def empty(values: Tensor, sizes: Any, places: Any, *given: Any) -> Tensor:
            channels, dtype = (values.shape[2], values.dtype) if result is None else result(values, *given)
            return values.new_empty((*values.shape[:2], channels), dtype=dtype)

        def compute(values: Tensor, *given: Any) -> Tensor:
            return _apply_plan(function, values, *given).contiguous()

        def gradients(upstream: Tensor, values: Tensor, *given: Any) -> list[Tensor]:
            sizes, places, tensors, settings = given
            with recorded():
                leaves = [x.detach().requires_grad_() for x in (values, *tensors)]
                mixed = compute(leaves[0], sizes, places, leaves[1:], settings)
                found = torch.autograd.grad(mixed, leaves, upstream, materialize_grads=True)
            return [x.contiguous() for x in found]

        def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            *first, tensors, ctx.settings = inputs
            ctx.save_for_backward(*first, *tensors)

        def differentiate(traced: bool, ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
            saved = ctx.saved_tensors
            found = backward(traced, upstream, *saved[:3], list(saved[3:]), ctx.settings)
            # torch takes an empty list for a list of tensors.
            return found[0], None, None, list(found[1:]), None if ctx.settings else []

        backward = define_operator(
            f"{name}_gradients",
            f"(Tensor upstream, {_ARGUMENTS}) -> Tensor[]",
            fake=lambda _, values, sizes, places, tensors, settings: [
                x.new_empty(x.shape) for x in (values, *tensors)
            ],
            tags=_TAGS,
        )(gradients)
        self.operator = differentiable_operator(
            name,
            f"({_ARGUMENTS}) -> Tensor",
            fake=empty,
            save=save,
            backward=differentiate,
            once=True,
            tags=_TAGS,
        )(compute)

    def __call__(self, rows: Tensor, tensors: Sequence[Tensor], settings: Sequence[int], *modules: Any) -> Tensor:
        """Mix rows that hold one sequence each."""
        return self.function(rows, tensors, settings, *modules)

    def packed(
        self, values: Tensor, plan: tuple[Tensor, Tensor], tensors: Sequence[Tensor], settings: Sequence[int], *_: Any
    ) -> Tensor:
        """Mix each sequence of packed rows alone, by an operator.

        Args:
            values: (batch, length, channels).
            plan: what `packed_plan` returns.
            tensors: as `function` takes them.
            settings: as `function` takes them.
            *_: modules, which an operator does not take.

        Returns:
            (batch, length, channels); pad positions are undefined. A backward pass computes the operation again.
        """
        mixed: Tensor = self.operator(True, values, *plan, list(tensors), list(settings))
        return mixed
