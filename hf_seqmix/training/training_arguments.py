"""The library's training arguments, and what ours add: Muon, and a rate of their own for kernel networks."""

import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers.training_args import OptimizerNames

from .optimizers import MUON, RoleOptimizers
from .precision import AutoPrecisionArguments, gpu_has_bfloat16
from .scoring import LOWER_IS_BETTER
from .spelling import allowed_names

__all__ = ["SeqMixTrainingArguments"]

_BELOW = {
    "adam_beta1": 1.0,
    "adam_beta2": 1.0,
    "adam_epsilon": math.inf,
    "weight_decay": math.inf,
    "label_smoothing_factor": 1.0,
}
"""Arguments of optimizers and losses -> what they must be below; all are at least 0."""

logger = logging.getLogger(__name__)

_ADAMW = (OptimizerNames.ADAMW_TORCH, OptimizerNames.ADAMW_TORCH_FUSED)


@dataclass
class SeqMixTrainingArguments(AutoPrecisionArguments):
    """The arguments of the library's `Trainer`, with `optim="muon"` among its optimizers and `bf16="auto"`.

    Args:
        muon_learning_rate: of the hidden matrices under Muon; `learning_rate` is then that of all else, by AdamW. Both
            follow the same schedule.
        kernel_learning_rate: of kernel networks; None for `learning_rate`.

    Raises:
        ValueError: Muon together with DeepSpeed, FSDP on CPUs, a rate that is not positive, or a rate of kernel
            networks for an optimizer other than AdamW and Muon.
    """

    # Not the library's names too, of which the parser would make the only choices.
    optim: str = field(
        default=AutoPrecisionArguments.optim, metadata={"help": "The optimizer: muon, or any of the library."}
    )
    # Not the library's False, of which nobody could tell whether it was given.
    do_train: bool = field(default=True, metadata={"help": "Train; there is no other way, and false is refused."})
    muon_learning_rate: float = field(
        default=0.02, metadata={"help": "Of hidden matrices with --optim muon; --learning-rate is of all else."}
    )
    kernel_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Of kernel networks (tnn, fd_tnn, ski_tnn); by default as of the rest."},
    )

    def __post_init__(self) -> None:
        self.names_best_metric = self.metric_for_best_model is not None
        """Whether the user says by what the best model is chosen, where the library fills in "loss" otherwise."""
        by_muon = self.optim == MUON
        if by_muon and self.deepspeed:
            raise ValueError(
                "--optim muon takes matrices, and DeepSpeed flattens parameters: take FSDP of version 2, or another "
                "optimizer."
            )
        if self.fsdp and (self.use_cpu or not torch.accelerator.is_available()):
            raise ValueError(
                "--fsdp needs accelerators, and the run is on the CPU, where every process would have the whole "
                "model: leave it out."
            )
        if by_muon:
            self.optim = OptimizerNames.ADAMW_TORCH  # the library knows no Muon
        known = [MUON, *(name.value for name in OptimizerNames)]
        if self.optim not in known:
            raise ValueError(f"--optim {self.optim} is unknown; {allowed_names([self.optim], known)}")
        if self.greater_is_better is None and (self.metric_for_best_model or "").removeprefix("eval_") in (
            LOWER_IS_BETTER
        ):
            self.greater_is_better = False
        for name, most in _BELOW.items():
            if not 0 <= (number := float(getattr(self, name))) < most:
                raise ValueError(f"--{name.replace('_', '-')} is {number}; it must be at least 0 and below {most:g}.")
        super().__post_init__()
        for name in ("muon_learning_rate", "kernel_learning_rate"):
            if (rate := getattr(self, name)) is not None and not 0 < rate < math.inf:
                raise ValueError(f"--{name.replace('_', '-')} is {rate}; it must be positive and finite.")
        if self.kernel_learning_rate is not None and self.optim not in _ADAMW:
            raise ValueError(
                f"--kernel-learning-rate goes with --optim muon, adamw_torch or adamw_torch_fused, not with "
                f"{OptimizerNames(self.optim).value}."
            )
        if by_muon:
            self.optim = MUON
        elif self.muon_learning_rate != type(self).muon_learning_rate:
            logger.warning(
                f"--muon-learning-rate {self.muon_learning_rate:g} is not used: --optim is "
                f"{OptimizerNames(self.optim).value}, not muon."
            )

    def warn_of_fine_tuning_rate(self, default: float) -> None:
        """Warn that random weights are to learn at the default rate; call this where weights are random."""
        if self.learning_rate == default and self.process_index == 0:
            logger.warning(
                f"--learning-rate is {self.learning_rate:g}, the default, which is for fine-tuning: random "
                "weights hardly learn by it. Give --optim muon --learning-rate 4e-3, as the recipes do."
            )

    def optimizer_factory(self, decays: Callable[[nn.Module], Collection[str]]) -> Any:
        """Return what the `Trainer` takes as `optimizer_cls_and_kwargs`; None where the library's own way serves.

        Args:
            decays: called with the model, gives the names of the parameters that decay.
        """
        by_muon = self.optim == MUON
        if not by_muon and self.kernel_learning_rate is None:
            return None
        adamw = {
            "lr": self.learning_rate,
            "betas": (self.adam_beta1, self.adam_beta2),
            "eps": self.adam_epsilon,
            # None and not False, or torch would update one parameter after another on a GPU, too.
            "fused": by_muon or self.optim == OptimizerNames.ADAMW_TORCH_FUSED or None,
        }
        return RoleOptimizers, {
            "decays": decays,
            "adamw": adamw,
            "weight_decay": self.weight_decay,
            "kernel_learning_rate": self.kernel_learning_rate,
            "muon": {"lr": self.muon_learning_rate} if by_muon else None,
            # Processors and older GPUs emulate products in bfloat16, more slowly than float32.
            "muon_dtype": torch.bfloat16 if self.bf16 or self._has_bfloat16() else torch.float32,
        }

    def _has_bfloat16(self) -> bool:
        return self.device.type == "cuda" and gpu_has_bfloat16()
