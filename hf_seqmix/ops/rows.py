"""Operations on rows that hold one sequence each, and the same as operators for graphs in which rows are packed.

Where sequences begin is data. To lay each in a row of its own makes shapes that depend on the data, which no graph
holds. So a graph holds one opaque operator, which looks at the data when it runs, and does what a call without a graph
does: rows of one sequence are mixed as they stand.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .common.operator import define_operator, differentiable_operator
from .packing import group_by_length, mix_groups

__all__ = ["RowOperation"]

_ARGUMENTS = "Tensor values, Tensor? mask, Tensor sequence_ids, Tensor[] tensors, int[] settings"

# Shapes within depend on the data, so that a CUDA graph cannot hold the operator; older releases have no such tag.
_TAGS = [torch.Tag.cudagraph_unsafe] if hasattr(torch.Tag, "cudagraph_unsafe") else []

RowFunction = Callable[[Tensor, Sequence[Tensor], Sequence[int]], Tensor]
Shape = Callable[[Tensor, Sequence[Tensor], Sequence[int]], tuple[int, torch.dtype]]


class RowOperation:
    """An operation that mixes the positions of rows, each one sequence, and its form for packed rows in a graph.

    Args:
        name: "namespace::name" of the operator.
        function: (rows, tensors, settings) -> mixed. Rows are (rows, positions, channels), and may end in zeros, which
            are no tokens. `mixed` is (rows, positions, any number of channels). Everything else that is differentiated
            is among the tensors.
        result: (values, tensors, settings) -> number of channels and dtype of `mixed`; those of the rows by default.
    """

    def __init__(self, name: str, function: RowFunction, result: Shape | None = None) -> None:
        self.function = function

        def empty(values: Tensor, mask: Any, sequence_ids: Any, *given: Any) -> Tensor:
            channels, dtype = (values.shape[2], values.dtype) if result is None else result(values, *given)
            return values.new_empty((*values.shape[:2], channels), dtype=dtype)

        def compute(values: Tensor, mask: Tensor | None, sequence_ids: Tensor, *given: Any) -> Tensor:
            one = (sequence_ids == sequence_ids[:, :1]).all()
            if bool(one if mask is None else one & mask.all()):
                return function(values, *given).contiguous()
            return mix_groups(function, values, *group_by_length(mask, sequence_ids), *given)

        def gradients(upstream: Tensor, values: Tensor, *args: Any) -> list[Tensor]:
            mask, sequence_ids, tensors, settings = args
            with _autograd():
                leaves = [x.detach().requires_grad_() for x in (values, *tensors)]
                mixed = compute(leaves[0], mask, sequence_ids, leaves[1:], settings)
                found = torch.autograd.grad(mixed, leaves, upstream, materialize_grads=True)
            return [x.contiguous() for x in found]

        def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            values, mask, sequence_ids, tensors, ctx.settings = inputs
            ctx.save_for_backward(values, mask, sequence_ids, *tensors)

        def differentiate(traced: bool, ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
            *first, sequence_ids = ctx.saved_tensors[:3]
            found = backward(traced, upstream, *first, sequence_ids, list(ctx.saved_tensors[3:]), ctx.settings)
            # torch takes an empty list for a list of tensors.
            return found[0], None, None, list(found[1:]), None if ctx.settings else []

        backward = define_operator(
            f"{name}_gradients",
            f"(Tensor upstream, {_ARGUMENTS}) -> Tensor[]",
            fake=lambda _, values, mask, ids, tensors, settings: [x.new_empty(x.shape) for x in (values, *tensors)],
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

    def __call__(self, rows: Tensor, tensors: Sequence[Tensor], settings: Sequence[int]) -> Tensor:
        """Mix rows that hold one sequence each."""
        return self.function(rows, tensors, settings)

    def packed(
        self,
        values: Tensor,
        mask: Tensor | None,
        sequence_ids: Tensor,
        tensors: Sequence[Tensor],
        settings: Sequence[int],
    ) -> Tensor:
        """Mix each sequence of packed rows alone, by an operator.

        Args:
            values: (batch, length, channels).
            mask: (batch, length) bool, True at real tokens; None when all are.
            sequence_ids: (batch, length) long, equal for the tokens of one sequence of a row.
            tensors: as `function` takes them.
            settings: as `function` takes them.

        Returns:
            (batch, length, channels); pad positions are undefined. A backward pass computes the operation again.
        """
        mixed: Tensor = self.operator(True, values, mask, sequence_ids, list(tensors), list(settings))
        return mixed


@contextmanager
def _autograd() -> Iterator[None]:
    """Record operations for a backward pass, within an operator, which torch calls with autograd left out."""
    left_out = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "ADInplaceOrView"):
        left_out = left_out.remove(getattr(torch._C.DispatchKey, key))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), left_out), torch.enable_grad():
        yield
