"""Models of this package as models of the theory: a sequence of numbers in, a number a token out."""

from typing import Any

from torch import Tensor, nn

from ...models.hybrid.configuration_hybrid import SeqMixHybridConfig
from ...models.hybrid.modeling_hybrid import SeqMixHybridForTokenClassification
from .targets import require_at_least

__all__ = ["MixerRegressor"]


class MixerRegressor(nn.Module):
    """Blocks of a mixer between two linear maps, from inputs (batch, length, d) to outputs (batch, length).

    Blocks are those of the models, a mixer and a gated linear unit as residual branches, but without norms, since
    targets have a scale.

    Args:
        mixer: entry of `mixer_types`: "attention", "short_conv" or a family's `model_type`.
        input_size: d.
        hidden_size: channels.
        num_layers: blocks.
        max_length: longest input; places that kernels with a grid are made for.
        is_causal: whether a token sees the past and itself only.
        num_outputs: outputs a token; None for outputs (batch, length).
        **own: fields of the mixer.

    Raises:
        ValueError: a size is below 1, or as `SeqMixHybridConfig`.
    """

    def __init__(
        self,
        mixer: str,
        input_size: int = 1,
        *,
        hidden_size: int = 32,
        num_layers: int = 1,
        max_length: int = 32,
        is_causal: bool = True,
        num_outputs: int | None = None,
        **own: Any,
    ) -> None:
        super().__init__()
        require_at_least(input_size=(input_size, 1), hidden_size=(hidden_size, 1), num_layers=(num_layers, 1))
        self.num_outputs = num_outputs
        self.embedding = nn.Linear(input_size, hidden_size)
        head: dict[str, Any] = {"num_labels": num_outputs or 1, "problem_type": "regression"}
        config = SeqMixHybridConfig(
            vocab_size=1,
            hidden_size=hidden_size,
            intermediate_size=4 * hidden_size,
            num_hidden_layers=num_layers,
            mixer_types=[mixer],
            mixer_configs={mixer: own} if own else None,
            max_position_embeddings=max_length,
            is_causal=is_causal,
            norm_type="none",
            norm_position="pre",
            embedding_scale=1.0,
            hidden_dropout=0.0,
            linear_init="uniform",
            **head,
        )
        self.model = SeqMixHybridForTokenClassification(config)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (batch, length) or (batch, length, num_outputs) of inputs (batch, length, input_size)."""
        logits = self.model(inputs_embeds=self.embedding(inputs)).logits
        return logits.squeeze(-1) if self.num_outputs is None else logits
