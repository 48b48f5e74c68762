"""What IPA's column operation is made of: its parameters, the projections, and the operation on them."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...modules.short_convolution import ShortConvolution
from ...ops.common.dispatch import without_autocast
from ...ops.piecewise.column import piecewise_column
from ...ops.piecewise.weights import piecewise_weights
from ..configuration import check_choice, check_range
from .merged_norm import MergedNorm
from .options import COUPLINGS, KERNEL_NORMS
from .row import OutputLinear

__all__ = ["IPAColumn"]


class IPAColumn(nn.Module):
    """The parameters of `IPAMixer`, which says what they mean and takes the same arguments, and the operation on them.

    y_l = merge_p 1/l sum_(j <= l) K^p_{l,j} a^p_{l,j} (V^p x_j + b^p), with kernels that are normalized over the
    centers. The expansion of the paper has no 1/l: the mean over tokens is a departure, see `IPAMixer`. Pads, packed
    sequences and caches are the mixer's business.
    """

    def __init__(
        self,
        hidden_size: int,
        num_centers: int = 8,
        rank: int | None = None,
        kernel_rank: int | None = None,
        coupling: str = "shared",
        kernel_norm: str = "p",
        max_relative_distance: int = 512,
        token_shift: int = 0,
        output_norm: bool = True,
        norm_eps: float = 1e-6,
        is_causal: bool = True,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        check_range("num_centers", num_centers, low=1)
        check_range("rank", rank, low=1)
        check_range("kernel_rank", kernel_rank, low=1)
        check_range("max_relative_distance", max_relative_distance, low=1)
        check_range("token_shift", token_shift, low=0)
        check_choice("coupling", coupling, COUPLINGS)
        check_choice("kernel_norm", kernel_norm, KERNEL_NORMS)
        if rank is None:
            if hidden_size % num_centers:
                raise ValueError(
                    f"num_centers is {num_centers}, which does not divide hidden_size {hidden_size}: choose one that "
                    "does, or give the rank of the maps."
                )
            rank = hidden_size // num_centers
        self.num_centers, self.rank = num_centers, rank
        self.kernel_rank = rank if kernel_rank is None else kernel_rank
        self.coupling, self.kernel_norm = coupling, kernel_norm
        self.max_relative_distance = max_relative_distance
        self.is_causal, self.layer_idx = is_causal, layer_idx
        offsets = max_relative_distance if is_causal else 2 * max_relative_distance - 1
        merged = num_centers * rank

        self.q_proj = nn.Linear(hidden_size, num_centers * self.kernel_rank)
        self.k_proj = nn.Linear(hidden_size, num_centers * self.kernel_rank)
        self.relative_bias = nn.Parameter(0.02 * torch.randn(num_centers, offsets))
        self.mix_logit = nn.Parameter(torch.zeros(1)) if kernel_norm == "mix" else None
        self.coupling_table = nn.Parameter(torch.ones(num_centers, offsets)) if coupling == "toeplitz" else None
        self.v_proj = nn.Linear(hidden_size, merged)
        self.o_proj = OutputLinear(merged, hidden_size)
        self.output_norm = MergedNorm(merged, norm_eps) if output_norm else None
        self.token_shift = ShortConvolution(hidden_size, token_shift) if token_shift > 0 else None

    def init_weights(self, config: Any) -> None:
        """Draw the parameters that no submodule owns: relative biases N(0, 0.02), couplings 1."""
        init.normal_(self.relative_bias, mean=0.0, std=0.02)
        if self.mix_logit is not None:
            init.zeros_(self.mix_logit)
        if self.coupling_table is not None:
            init.ones_(self.coupling_table)

    def _project(self, hidden_states: Tensor, key_inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (batch, length, centers, width)."""
        query, key, value = self.q_proj(hidden_states), self.k_proj(key_inputs), self.v_proj(hidden_states)
        kernel_width, width = (self.num_centers, self.kernel_rank), (self.num_centers, self.rank)
        return query.unflatten(-1, kernel_width), key.unflatten(-1, kernel_width), value.unflatten(-1, width)

    def _column(self, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Tensor:
        """Apply the op to (batch, centers, positions, width) each.

        Returns:
            (batch, positions, centers x rank), the results of the centers side by side.
        """
        mixed = piecewise_column(query, key, value, **self._settings(), **kwargs)
        return mixed.transpose(1, 2).flatten(2)

    def _weights(self, query: Tensor, key: Tensor, **kwargs: Any) -> Tensor:
        """Return what `_column` multiplies the values with, (batch, centers, queries, keys), in float32 at least."""
        dtype = torch.promote_types(query.dtype, torch.float32)
        settings: dict[str, Any] = {
            name: x.to(dtype) if isinstance(x, Tensor) else x for name, x in self._settings().items()
        }
        with without_autocast(query.device.type):
            return piecewise_weights(query.to(dtype), key.to(dtype), **settings, **kwargs)

    def _settings(self) -> dict[str, Any]:
        return {
            "bias": self.relative_bias,
            "coupling": self.coupling_table,
            "mix": None if self.mix_logit is None else self.mix_logit.sigmoid(),
            "kernel_norm": self.kernel_norm,
            "scale": self.kernel_rank**-0.5,
            "causal": self.is_causal,
        }

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return (
            f"num_centers={self.num_centers}, rank={self.rank}, kernel_rank={self.kernel_rank}, "
            f"coupling={self.coupling!r}, kernel_norm={self.kernel_norm!r}, is_causal={self.is_causal}"
        )
