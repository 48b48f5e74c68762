"""Operations with two faces over one computation: a function of autograd, and an operator of `torch.library`.

The operator is opaque to `torch.compile` and `torch.export`; the function of autograd costs less to call. At length
128 the call of an operator takes a sixth of a whole Toeplitz product. A derivative is written once and serves both
faces.

Exported model code may be loaded several times in a process, from several folders. So an operator is defined once a
process: a definition anew would free the operator that others hold. Equal names must mean equal code, and so a name
carries a version, to be raised with any change of meaning. Exported code carries a hash of itself instead.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .once import once as differentiable_once

__all__ = ["DifferentiableOperator", "Operator", "define_operator", "differentiable_operator", "recorded"]


class Operator:
    """A computation, and the same as an operator for tracing. Neither is differentiated.

    Args:
        name: "namespace::name".
        schema: of arguments and results, as `torch.library` writes them.
        compute: the computation.
        fake: of the same arguments: empty results of the right shape, dtype and layout.
        tags: what torch is to know of it.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        compute: Callable[..., Any],
        fake: Callable[..., Any],
        tags: Sequence[torch.Tag] = (),
    ) -> None:
        self.compute = compute
        namespace, short = name.split("::")
        packet: Any = getattr(getattr(torch.ops, namespace), short, None)
        self.is_new = not hasattr(packet, "definition")
        if self.is_new:
            made = torch.library.custom_op(name, compute, mutates_args=(), schema=schema, tags=tags)
            made.register_fake(fake)
            packet = getattr(getattr(torch.ops, namespace), short)
            # Kept as long as the process lives: PyTorch frees an operator with its definition.
            packet.definition = made
        self.traced: Any = packet.definition

    def __call__(self, traced: bool, *args: Any) -> Any:
        """Compute; `traced` says whether a graph is made."""
        return (self.traced if traced else self.compute)(*args)


class DifferentiableOperator(Operator):
    """A computation, the same as a function of autograd, and the same as an operator for tracing.

    Args:
        name: "namespace::name".
        schema: of arguments and results.
        compute: the computation, without a derivative.
        fake: of the same arguments: empty results.
        save: (ctx, inputs, output) -> None, keeps what backward needs.
        backward: (traced, ctx, *upstream) -> gradients of all arguments. `traced` is to be handed on to the operators
            that the formula calls.
        eager: keyword arguments of `compute` without tracing.
        batched: whether the batch is the first dimension of every tensor among arguments and results, so that
            `torch.func.vmap` may fold its own dimension into the batch. Else `torch.func` is refused.
        once: whether gradients cannot be differentiated again, which is then refused.
        tags: what torch is to know of the operator.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        compute: Callable[..., Any],
        fake: Callable[..., Any],
        save: Callable[..., None],
        backward: Callable[..., tuple[Tensor | None, ...]],
        eager: Mapping[str, Any],
        batched: bool,
        once: bool,
        tags: Sequence[torch.Tag] = (),
    ) -> None:
        super().__init__(name, schema, compute, fake, tags)
        if self.is_new:
            self.traced.register_autograd(lambda ctx, *upstream: backward(True, ctx, *upstream), setup_context=save)
        self.eager, self.batched = dict(eager), batched
        self.function = _function(compute, save, backward, self.eager, batched, once)

    def __call__(self, traced: bool, *args: Any) -> Any:
        """Compute, differentiably; `traced` says whether a graph is made."""
        if traced:
            return self.traced(*args)
        # `vmap` has to see the function, whether or not gradients are wanted.
        if self.batched or torch.is_grad_enabled():
            return self.function.apply(*args)
        return self.compute(*args, **self.eager)


def define_operator(
    name: str, schema: str, *, fake: Callable[..., Any], tags: Sequence[torch.Tag] = ()
) -> Callable[[Callable[..., Any]], Operator]:
    """Return a decorator that makes an `Operator` of a computation; see there for the arguments."""
    return lambda compute: Operator(name, schema, compute, fake, tags)


def differentiable_operator(
    name: str,
    schema: str,
    *,
    fake: Callable[..., Any],
    save: Callable[..., None],
    backward: Callable[..., tuple[Tensor | None, ...]],
    eager: Mapping[str, Any] | None = None,
    batched: bool = False,
    once: bool = False,
    tags: Sequence[torch.Tag] = (),
) -> Callable[[Callable[..., Any]], DifferentiableOperator]:
    """Return a decorator that makes a `DifferentiableOperator` of a computation; see there for the arguments."""
    return lambda compute: DifferentiableOperator(
        name, schema, compute, fake, save, backward, eager or {}, batched, once, tags
    )


@contextmanager
def recorded() -> Iterator[None]:
    """Record operations for a backward pass, within an operator, which torch calls with autograd left out."""
    left_out = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "ADInplaceOrView"):
        left_out = left_out.remove(getattr(torch._C.DispatchKey, key))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), left_out), torch.enable_grad():
        yield


def _function(
    compute: Callable[..., Any],
    save: Callable[..., None],
    backward: Callable[..., tuple[Tensor | None, ...]],
    eager: Mapping[str, Any],
    batched: bool,
    once: bool,
) -> Any:
    def differentiate(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        return backward(False, ctx, *upstream)

    formula: Callable[..., Any] = differentiable_once(differentiate) if once else differentiate

    if batched:

        class Batched(torch.autograd.Function):
            setup_context = staticmethod(save)
            backward = staticmethod(formula)

            @staticmethod
            def forward(*args: Any) -> Any:
                return compute(*args, **eager)

            @staticmethod
            def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
                found = Batched.apply(*_folded(info.batch_size, in_dims, args))
                if isinstance(found, Tensor):
                    return _unfolded(found, info.batch_size), 0
                return tuple(_unfolded(x, info.batch_size) for x in found), (0,) * len(found)

        return Batched

    class Function(torch.autograd.Function):
        # Without `setup_context`, which has torch bind the arguments by their names at every call.
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            found = compute(*args, **eager)
            save(ctx, args, found)
            return found

        backward = staticmethod(formula)

    return Function


def _folded(size: int, in_dims: Sequence[int | None], args: Sequence[Any]) -> list[Any]:
    """Move the dimension of `vmap` into the batch, which comes first, of every tensor among the arguments."""
    flat = []
    for x, dim in zip(args, in_dims, strict=True):
        if isinstance(x, Tensor):
            x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
            x = x.flatten(0, 1)
        flat.append(x)
    return flat


def _unfolded(x: Tensor, size: int) -> Tensor:
    return x.unflatten(0, (size, len(x) // size))
