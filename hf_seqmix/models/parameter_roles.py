"""Which parameters of a model are hidden matrices and which belong to kernel networks: the one place that says so.

Optimizers treat the two apart. The rules hold for models of the zoo and for other models of transformers.
"""

from torch import nn
from transformers import PreTrainedModel

__all__ = ["hidden_matrices", "kernel_parameters"]

_KERNEL = "kernel"
"""Name of the submodule of a mixer that holds the network of its kernel."""


def hidden_matrices(model: nn.Module) -> set[str]:
    """Return the names of the matrices that map hidden states to hidden states: what Muon orthogonalizes.

    They are the weights of linear layers (`torch.nn.Linear`) inside the repeated blocks of a model, but for those of
    kernel networks, whose inputs are lags or frequencies. Embeddings, heads, biases, norms, taps of convolutions and
    tables of positions are none. Blocks are the modules that a model names in `_no_split_modules`, as the models of
    transformers do. Source of the rule: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".

    Args:
        model: a model, or a wrapper around one, as adapters and data parallelism make it.

    Raises:
        ValueError: for a model that names no blocks, or none that it has.
    """
    kinds = {
        kind
        for module in model.modules()
        if isinstance(module, PreTrainedModel)
        for kind in module._no_split_modules or ()
    }
    names = {
        f"{block_name}.{name}.weight".lstrip(".")
        for block_name, block in model.named_modules()
        if kinds & {parent.__name__ for parent in type(block).__mro__}
        for name, module in block.named_modules()
        if isinstance(module, nn.Linear) and _KERNEL not in name.split(".")
    }
    if not names:
        found = f"names {', '.join(sorted(kinds))}" if kinds else "names none"
        raise ValueError(
            f"{type(model).__name__} has no hidden matrices: they are linear layers inside the blocks of "
            f"_no_split_modules, which {found}. Take another optimizer, such as --optim adamw_torch_fused."
        )
    return names & dict(model.named_parameters()).keys()


def kernel_parameters(model: nn.Module) -> set[str]:
    """Return the names of the parameters of kernel networks, and of the taps of polynomial "toeplitz" mixing."""
    return {name for name, _ in model.named_parameters() if _KERNEL in name.split(".")[:-1]}
