"""Layers from elsewhere that the package's are timed against, with as many parameters.

"llama" and "mamba" are a layer of the library's models, "gla" is a mixer of flash-linear-attention in a block of ours.
Each is as wide as the layer that it stands against, and what is between its projections is as wide as makes its
parameters as many.
"""

from collections.abc import Callable
from typing import Any

import torch
from timing.parameters import count, in_tiles
from torch import Tensor, nn

from hf_seqmix.modules.glu import GatedLinearUnit

__all__ = ["HEAD_WIDTH", "RIVALS", "build_rival"]

HEAD_WIDTH = 64


def build_rival(family: str, causal: bool, length: int, hidden_size: int, parameters: int) -> nn.Module:
    """Build a layer of `RIVALS` with random weights.

    Args:
        family: which.
        causal: whether a token sees no later ones.
        length: tokens that it will see.
        hidden_size: channels in and out.
        parameters: how many it should have.

    Raises:
        RuntimeError: if that is missed by more than 2 %.
    """
    make = RIVALS[family]
    # The number of parameters is linear in the inner width.
    small, large = (count(make(hidden_size, size, length, causal)) for size in (8, 16))
    inner_size = in_tiles(8 + 8 * (parameters - small) / (large - small), hidden_size)
    module = make(hidden_size, inner_size, length, causal)
    if abs(count(module) / parameters - 1) > 0.02:
        raise RuntimeError(f"a rival has {count(module)} parameters where {parameters} are wanted.")
    return module


class _Llama(nn.Module):
    """A decoder layer of the library's Llama; the rotations, which its layers share, are made once."""

    def __init__(self, hidden_size: int, inner_size: int, length: int, causal: bool) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaModel

        fields: dict[str, Any] = {"attn_implementation": "sdpa"}
        config = LlamaConfig(
            vocab_size=8,
            hidden_size=hidden_size,
            intermediate_size=inner_size,
            num_hidden_layers=1,
            num_attention_heads=max(1, hidden_size // HEAD_WIDTH),
            num_key_value_heads=max(1, hidden_size // HEAD_WIDTH),
            max_position_embeddings=length,
            **fields,
        )
        model: Any = LlamaModel(config)
        self.layer = model.layers[0]
        self.layer.self_attn.is_causal = causal
        rotations = model.rotary_emb(torch.zeros(1, length, hidden_size), torch.arange(length).unsqueeze(0))
        self.register_buffer("cos", rotations[0], persistent=False)
        self.register_buffer("sin", rotations[1], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, hidden_size) to the same shape."""
        return self.layer(x, position_embeddings=(self.cos, self.sin))


def _mamba(hidden_size: int, inner_size: int, length: int, causal: bool) -> nn.Module:
    """Return a layer of the library's Mamba, without a feed-forward, as its models are."""
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(vocab_size=8, hidden_size=hidden_size, num_hidden_layers=1)
    config.intermediate_size = inner_size
    return MambaModel(config).layers[0]


class _GatedLinearAttention(nn.Module):
    """A mixer of flash-linear-attention with the package's gated linear unit."""

    def __init__(self, hidden_size: int, inner_size: int, length: int, causal: bool) -> None:
        super().__init__()
        from fla.layers import GatedLinearAttention

        self.mixer = GatedLinearAttention(hidden_size=hidden_size, num_heads=max(1, hidden_size // HEAD_WIDTH))
        self.mlp = GatedLinearUnit(hidden_size, inner_size)
        self.mixer_norm, self.mlp_norm = nn.RMSNorm(hidden_size), nn.RMSNorm(hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, hidden_size) to the same shape."""
        x = x + self.mixer(self.mixer_norm(x))[0]
        return x + self.mlp(self.mlp_norm(x))


RIVALS: dict[str, Callable[[int, int, int, bool], nn.Module]] = {
    "llama": _Llama,
    "mamba": _mamba,
    "gla": _GatedLinearAttention,
}
