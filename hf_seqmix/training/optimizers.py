"""Optimizers that treat hidden matrices, kernel networks and the rest of a model apart, for the `Trainer`."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..models.parameter_roles import hidden_matrices, kernel_parameters

__all__ = ["MUON", "Float32Muon", "MuonWithAdamW", "OptimizerError", "RoleOptimizers", "newton_schulz"]

MUON = "muon"
"""The name by which `--optim` asks for Muon."""

Group = dict[str, Any]


class OptimizerError(ValueError):
    """What was asked of an optimizer does not suit the model, which is known only after data was prepared."""


class Float32Muon(torch.optim.Muon):
    """`torch.optim.Muon` whose Newton-Schulz iterations are in float32 instead of bfloat16.

    Processors without products in bfloat16 emulate them, at less than a tenth of the speed of float32: then the
    iterations of torch take several times as long as the model's forward and backward pass.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update all parameters; `closure`, if given, computes the loss anew, with gradients, and is called once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(gradient)
                average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
                update = gradient.lerp(average, momentum) if group["nesterov"] else average
                update = newton_schulz(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                parameter.mul_(1 - rate * group["weight_decay"])
                parameter.add_(update, alpha=-rate * _scale(group["adjust_lr_fn"], *parameter.shape))
        return loss


def newton_schulz(
    matrix: Tensor,
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
    steps: int = 5,
    eps: float = 1e-7,
) -> Tensor:
    """Return a matrix with nearly the singular vectors of the given one, and singular values near 1.

    X <- a X + b (X X^T) X + c (X X^T)^2 X, `steps` times, from X = matrix / ||matrix||_F. Source: Jordan et al. 2024,
    "Muon: an optimizer for hidden layers in neural networks".

    Args:
        matrix: (rows, columns), of any floating dtype; the iterations are in float32, or in float64 if that is given.
        coefficients: a, b, c.
        steps: iterations.
        eps: least norm that is divided by.

    Returns:
        (rows, columns), of the dtype of the iterations.
    """
    a, b, c = coefficients
    x = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:
        x = x.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if is_tall else x


def _scale(rule: str | None, rows: int, columns: int) -> float:
    """Return what a rate is multiplied by for matrices of a shape, by the rules of `torch.optim.Muon`."""
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


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
        dtype: of the Newton-Schulz iterations, bfloat16 as in torch, or float32.

    Raises:
        OptimizerError: for a group of Muon with parameters that are no matrices, as they are where a strategy flattens
            parameters.
    """

    def __init__(
        self,
        matrices: list[Group],
        others: list[Group],
        lr: float | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        for group in matrices:
            _refuse_other_than_matrices(group)
        muon = torch.optim.Muon if dtype == torch.bfloat16 else Float32Muon
        parts = [(torch.optim.AdamW, others), (muon, matrices)]
        self._parts = [make(groups) for make, groups in parts if groups]
        groups = [group for part in self._parts for group in part.param_groups]
        super().__init__(groups, {"lr": groups[0]["lr"] if lr is None else lr})

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs, the two optimizers among it."""
        return {**super().__getstate__(), "_parts": self._parts}

    def add_param_group(self, param_group: Group) -> None:
        """Add a group: of Muon if it has the options of its groups, else of AdamW, with the options of its class."""
        if "ns_steps" not in param_group:
            adamw = next((part for part in self._parts if isinstance(part, torch.optim.AdamW)), None)
            if adamw is None:
                adamw = torch.optim.AdamW([nn.Parameter(torch.empty(0))])
                self._parts.insert(0, adamw)
            param_group = {**adamw.defaults, **self.defaults, **param_group}
        else:
            _refuse_other_than_matrices(param_group)
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
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


def _refuse_other_than_matrices(group: Group) -> None:
    for parameter in group["params"]:
        if parameter.ndim != 2:
            raise OptimizerError(
                f"Muon takes matrices, and was given a parameter of shape {tuple(parameter.shape)}. Where parameters "
                "are flattened (DeepSpeed, FSDP of version 1) take FSDP of version 2, or another optimizer."
            )


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
        muon_dtype: torch.dtype = torch.bfloat16,
    ) -> torch.optim.Optimizer:
        """Return the optimizer of a model.

        Args:
            model: whose parameters are trained.
            decays: gives the names of the parameters that decay.
            adamw: options of AdamW, the learning rate `lr` among them.
            weight_decay: of the parameters that decay.
            kernel_learning_rate: of kernel networks; None for that of the rest.
            muon: options of Muon for the hidden matrices; None for AdamW there, too.
            muon_dtype: of its Newton-Schulz iterations, bfloat16 or float32.

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
        if muon is not None and not matrices & trained:
            raise OptimizerError(
                f"--optim muon moves hidden matrices, and those of {type(model).__name__} are all frozen: take "
                "--optim adamw_torch."
            )
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
        return MuonWithAdamW(by_muon, by_adamw, lr=adamw["lr"], dtype=muon_dtype)
