"""Registering an operator with PyTorch once a process, however often its module is loaded."""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["define_operator"]


def define_operator(name: str, schema: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator as `torch.library.custom_op` has it, which keeps an operator that is there already.

    Exported model code may be loaded several times in a process, from several folders. Defining a name anew would free the
    operator under the feet of those who hold it.

    Args:
        name: "namespace::name"; equal names must mean equal code.
        schema: of the arguments and results; by default from the function's annotations.
    """
    namespace, short = name.split("::")

    def define(function: Callable[..., Any]) -> Any:
        packet = getattr(getattr(torch.ops, namespace), short, None)
        held = getattr(packet, "definition", None)
        if held is not None:
            return held
        made = torch.library.custom_op(name, function, mutates_args=(), schema=schema)
        # Kept as long as the process lives: PyTorch frees an operator with its definition.
        getattr(getattr(torch.ops, namespace), short).definition = made
        return made

    return define
