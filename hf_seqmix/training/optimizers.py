"""Optimizers that treat hidden matrices, kernel networks and the rest of a model apart, for the `Trainer`."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn

from ..models.parameter_roles import hidden_matrices, kernel_parameters

__all__ = ["MUON", "MuonWithAdamW", "OptimizerError", "RoleOptimizers"]

MUON = "muon"
"""The name by which `--optim` asks for Muon."""

Group = dict[str, Any]


class OptimizerError(ValueError):
    """What was asked of an optimizer does not suit the model, which is known only after data was prepared."""


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for some groups of parameters and AdamW for the others, as one optimizer.

    Muon makes the update of a matrix orthogonal: W <- W - lr (sqrt(max(1, rows / columns)) O + weight_decay W), where
    O is what five Newton-Schulz iterations make of the momentum G, close to U V^T for G = U S V^T. Source: Jordan et
    al. 2024, "Muon: an optimizer for hidden layers in neural networks"; both optimizers are those of `torch.optim`.
    They read and write the groups and the state of this optimizer, so that saving and loading, schedules and clipping
    are those of any optimizer. The groups of AdamW come first: the `Trainer` logs the rate of the first group.

    Args:
        matrices: groups for Muon, of matrices only; a group may have any option of `torch.optim.Muon`.
        others: groups for AdamW, which may have any option of `torch.optim.AdamW`.
        lr: the rate to which schedules that end at a given rate relate that rate; by default that of the first group.

    Raises:
        OptimizerError: for a group of Muon with parameters that are no matrices, as they are where a strategy flattens
            parameters.
    """

    def __init__(self, matrices: list[Group], others: list[Group], lr: float | None = None) -> None:
        for group in matrices:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise OptimizerError(
                        f"Muon takes matrices, and was given a parameter of shape {tuple(parameter.shape)}. Where "
                        "parameters are flattened (DeepSpeed, FSDP of version 1) take FSDP of version 2, or another "
                        "optimizer."
                    )
        parts = [(torch.optim.AdamW, others), (torch.optim.Muon, matrices)]
        self._parts = [make(groups) for make, groups in parts if groups]
        groups = [group for part in self._parts for group in part.param_groups]
        super().__init__(groups, {"lr": groups[0]["lr"] if lr is None else lr})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters; `closure`, if given, computes the loss anew, with gradients, and is called once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            # Loading puts other groups and another state in the place of those there were.
            is_muon = isinstance(part, torch.optim.Muon)
            part.param_groups = [group for group in self.param_groups if ("ns_steps" in group) == is_muon]
            part.state = self.state
            part.step()
        return loss


class RoleOptimizers:
    """An optimizer factory of the `Trainer`: makes groups by what parameters are for, and the optimizer of the groups.

    The `Trainer` makes a factory and calls it with the model and the options that it was given beside it.
    """

    def __call__(
        self,
        model: nn.Module,
        *,
        decays: Callable[[nn.Module], Collection[str]],
        adamw: Mapping[str, Any],
        weight_decay: float,
        kernel_learning_rate: float | None = None,
        muon: Mapping[str, Any] | None = None,
    ) -> torch.optim.Optimizer:
        """Return the optimizer of a model.

        Args:
            model: whose parameters are trained.
            decays: gives the names of the parameters that decay.
            adamw: options of AdamW, the learning rate `lr` among them.
            weight_decay: of the parameters that decay.
            kernel_learning_rate: of kernel networks; None for that of the rest.
            muon: options of Muon for the hidden matrices; None for AdamW there, too.

        Raises:
            OptimizerError: for a rate of kernel networks where none is trained, or Muon without hidden matrices.
        """
        kernels = kernel_parameters(model)
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        if kernel_learning_rate is not None and not kernels & trained:
            lack = "whose kernel networks are all frozen" if kernels else "which has no kernel networks"
            raise OptimizerError(
                f"--kernel-learning-rate is {kernel_learning_rate}, and the model is {type(model).__name__}, {lack} "
                "(TNN, FD-TNN and SKI-TNN have some): leave it out."
            )
        try:
            matrices = hidden_matrices(model) if muon is not None else set()
        except ValueError as error:
            raise OptimizerError(str(error)) from error
        decaying = set(decays(model))
        groups: dict[tuple[Any, ...], list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                # Parameters on different meshes, or split and whole, cannot share the kernels of a group.
                mesh = getattr(parameter, "device_mesh", None)
                groups.setdefault((name in matrices, name in kernels, name in decaying, mesh), []).append(parameter)
        by_muon: list[Group] = []
        by_adamw: list[Group] = []
        # The rate of the first group is the one that is logged: not that of kernels, where there are others.
        for (is_matrix, is_kernel, decay, _), parameters in sorted(groups.items(), key=lambda entry: entry[0][1]):
            group = {"params": parameters, "weight_decay": weight_decay if decay else 0.0}
            if is_matrix:
                by_muon.append({**(muon or {}), **group})
                continue
            rate = {"lr": kernel_learning_rate} if is_kernel and kernel_learning_rate is not None else {}
            by_adamw.append({**adamw, **rate, **group})
        # Schedules that end at a given rate read the optimizer's own rate, beside those of its groups.
        if muon is None:
            return torch.optim.AdamW(by_adamw, **adamw)
        return MuonWithAdamW(by_muon, by_adamw, lr=adamw["lr"])
