"""What IPA's column operation is made of: its parameters, the projections, and the operation on them."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ...ops.piecewise.column import piecewise_column
from .merged_norm import MergedNorm
from .options import check_options, check_sizes, distance_factor
from .position_maps import PairMaps, PositionLinear
from .row import OutputLinear
from .token_shift import TokenShift

__all__ = ["IPAColumn"]


class IPAColumn(nn.Module):
    """The parameters of `IPAMixer`, which says what they mean and takes the same arguments, and the operation on them.

    It knows no pads, no packed sequences and no cache: these are the mixer's.
    """

    def __init__(
        self,
        hidden_size: int,
        num_centers: int = 8,
        rank: int | None = None,
        kernel_rank: int | None = None,
        coupling: str = "shared",
        kernel_type: str = "bilinear",
        kernel_norm: str = "p",
        max_positions: int = 512,
        max_relative_distance: int | None = None,
        token_shift: int = 0,
        output_norm: bool = True,
        norm_eps: float = 1e-6,
        is_causal: bool = True,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(
            token_shift,
            num_centers=num_centers,
            rank=rank,
            kernel_rank=kernel_rank,
            max_positions=max_positions,
            max_relative_distance=max_relative_distance,
        )
        if rank is None:
            if hidden_size % num_centers:
                raise ValueError(
                    f"num_centers is {num_centers}, which does not divide hidden_size {hidden_size}: choose one that does, "
                    "or give the rank of the maps."
                )
            rank = hidden_size // num_centers
        check_options(coupling, kernel_type, kernel_norm, output_norm, max_positions)
        self.num_centers, self.rank = num_centers, rank
        self.kernel_rank = rank if kernel_rank is None else kernel_rank
        self.coupling, self.kernel_type, self.kernel_norm = coupling, kernel_type, kernel_norm
        self.max_positions = max_positions
        self.max_relative_distance = max_positions if max_relative_distance is None else max_relative_distance
        self.is_causal, self.layer_idx = is_causal, layer_idx
        distance = self.max_relative_distance
        offsets = distance if is_causal else 2 * distance - 1
        merged = num_centers * rank

        self.q_proj: nn.Linear | None = None
        self.k_proj: nn.Linear | None = None
        if kernel_type != "static":
            width = num_centers * (1 if kernel_type == "separable" else self.kernel_rank)
            self.q_proj = nn.Linear(hidden_size, width)
            self.k_proj = nn.Linear(hidden_size, width)
        self.relative_bias: nn.Parameter | None = None
        if kernel_type != "separable":
            self.relative_bias = nn.Parameter(0.02 * torch.randn(num_centers, offsets))
        if kernel_type == "rbf":
            self.query_centers = nn.Parameter(0.5 * torch.randn(num_centers, self.kernel_rank))
            self.key_centers = nn.Parameter(0.5 * torch.randn(num_centers, self.kernel_rank))
            self.log_widths = nn.Parameter(torch.zeros(num_centers))
        self.mix_logit = nn.Parameter(torch.zeros(1)) if kernel_norm == "mix" else None
        self.coupling_table: nn.Parameter | None = None
        if coupling == "toeplitz":
            self.coupling_table = nn.Parameter(torch.ones(num_centers, offsets))
        elif coupling == "absolute_scalar":
            pairs = max_positions * (max_positions + 1) // 2 if is_causal else max_positions**2
            self.coupling_table = nn.Parameter(torch.ones(num_centers, pairs))
        self.pair_maps: PairMaps | None = None
        self.v_proj: nn.Linear | PositionLinear | None = None
        self.o_proj: nn.Linear | PositionLinear | None = None
        if coupling == "full":
            self.pair_maps = PairMaps(max_positions, hidden_size, num_centers, rank, is_causal)
        elif coupling == "separable":
            self.v_proj = PositionLinear(max_positions, hidden_size, merged)
            self.o_proj = PositionLinear(max_positions, merged, hidden_size, is_output=True)
        else:
            self.v_proj = nn.Linear(hidden_size, merged)
            self.o_proj = OutputLinear(merged, hidden_size)
        self.output_norm = MergedNorm(merged, norm_eps) if output_norm else None
        self.token_shift = TokenShift(hidden_size, token_shift) if token_shift > 0 else None

    @property
    def is_absolute(self) -> bool:
        """Whether positions are limited."""
        return self.coupling in ("absolute_scalar", "separable", "full")

    @property
    def key_width(self) -> int:
        """Channels of a centre's key in a cache."""
        return {"bilinear": self.kernel_rank, "rbf": 2}.get(self.kernel_type, 1)

    def init_weights(self, config: Any) -> None:
        """Draw the parameters that no submodule owns: relative biases N(0, 0.02), couplings 1."""
        if self.relative_bias is not None:
            init.normal_(self.relative_bias, mean=0.0, std=0.02)
        if self.kernel_type == "rbf":
            init.normal_(self.query_centers, mean=0.0, std=0.5)
            init.normal_(self.key_centers, mean=0.0, std=0.5)
            init.zeros_(self.log_widths)
        if self.mix_logit is not None:
            init.zeros_(self.mix_logit)
        if self.coupling_table is not None:
            init.ones_(self.coupling_table)

    def set_context_length(self, length: int) -> None:
        """Refuse another length where there are parameters for each position; elsewhere nothing depends on it."""
        if self.is_absolute and length != self.max_positions:
            raise ValueError(
                f"the context length was to be {length}, but coupling {self.coupling!r} has parameters for exactly "
                f"max_position_embeddings = {self.max_positions} positions, so that the context length cannot be changed: "
                "shorter inputs need no change; for longer ones use coupling 'shared' or 'toeplitz'."
            )

    def _project(self, hidden_states: Tensor, key_inputs: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the op's logits and values are made of, each (batch, length, centres, width)."""
        centres = self.num_centers
        if self.pair_maps is not None:
            value = hidden_states.unsqueeze(2)
        elif isinstance(self.v_proj, PositionLinear):
            value = self.v_proj(hidden_states, positions).unflatten(-1, (centres, self.rank))
        else:
            assert self.v_proj is not None
            value = self.v_proj(hidden_states).unflatten(-1, (centres, self.rank))
        if self.q_proj is None or self.k_proj is None:
            nothing = value.new_zeros((*hidden_states.shape[:2], centres, 1))
            return nothing, nothing, value
        query, key = self.q_proj(hidden_states), self.k_proj(key_inputs)
        dtype = torch.promote_types(query.dtype, torch.float32)
        if self.kernel_type == "separable":
            query = torch.softmax(query, dim=-1, dtype=dtype).to(value.dtype).unsqueeze(-1)
            return query, torch.softmax(key, dim=-1, dtype=dtype).to(value.dtype).unsqueeze(-1), value
        query = query.unflatten(-1, (centres, self.kernel_rank))
        key = key.unflatten(-1, (centres, self.kernel_rank))
        if self.kernel_type == "rbf":
            widths = self.log_widths.to(dtype).exp()
            query = distance_factor(query.to(dtype), self.query_centers.to(dtype), widths)
            key = distance_factor(key.to(dtype), self.key_centers.to(dtype), widths).flip(-1)
        return query.to(value.dtype), key.to(value.dtype), value

    def _column(self, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Tensor:
        """Apply the op to (batch, centres, positions, width); return the merged result (batch, positions, centres x rank)."""
        norm = "mean" if self.kernel_type == "separable" else self.kernel_norm
        mixed = piecewise_column(
            query,
            key,
            value,
            self.relative_bias,
            self.coupling_table,
            None if self.mix_logit is None else self.mix_logit.sigmoid(),
            kernel_norm=norm,
            scale=self.kernel_rank**-0.5 if self.kernel_type == "bilinear" else 1.0,
            causal=self.is_causal,
            absolute_positions=self.max_positions if self.coupling == "absolute_scalar" else 0,
            **kwargs,
        )
        return mixed.transpose(1, 2).flatten(2)

    def extra_repr(self) -> str:
        return (
            f"num_centers={self.num_centers}, rank={self.rank}, kernel_rank={self.kernel_rank}, coupling={self.coupling!r}, "
            f"kernel_type={self.kernel_type!r}, kernel_norm={self.kernel_norm!r}, is_causal={self.is_causal}"
        )
