"""Token classifiers as models of the theory: a sequence of numbers in, a number a token out; made or loaded."""

import os
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForTokenClassification, PreTrainedModel

from ...models.hybrid.configuration_hybrid import SeqMixHybridConfig
from ...models.hybrid.modeling_hybrid import SeqMixHybridForTokenClassification
from .targets import require_at_least

__all__ = ["MixerRegressor", "TokenRegressor"]

_EMBEDDING_FILE = "input_embedding.safetensors"


class TokenRegressor(nn.Module):
    """A token classification model with `problem_type` "regression", from inputs (batch, length, d) to its numbers.

    Args:
        model: the model, of this package or not, which takes (batch, length, hidden_size) as `inputs_embeds`.
        embedding: from d to hidden_size; None where inputs have hidden_size numbers a token.
        num_outputs: labels of the model; None for one label and outputs (batch, length).

    Raises:
        ValueError: the model is no regressor, or has another number of labels.
    """

    def __init__(
        self, model: PreTrainedModel, embedding: nn.Linear | None = None, num_outputs: int | None = None
    ) -> None:
        super().__init__()
        config = model.config
        if config.problem_type != "regression" or config.num_labels != (num_outputs or 1):
            raise ValueError(
                f'the model has problem_type {config.problem_type!r} and {config.num_labels} labels; give "regression"'
                f" and {num_outputs or 1}."
            )
        self.num_outputs, self.embedding, self.model = num_outputs, embedding, model

    @staticmethod
    def from_pretrained(folder: str | os.PathLike[str], num_outputs: int | None = None) -> "TokenRegressor":
        """Load what `save_pretrained` wrote, or a token classification model alone.

        Args:
            folder: with the model, and with the embedding if there is one.
            num_outputs: as for the class.

        Raises:
            ValueError: as for the class.
        """
        model = AutoModelForTokenClassification.from_pretrained(folder)
        file, embedding = Path(folder) / _EMBEDDING_FILE, None
        if file.exists():
            values = load_file(file)
            weight = values["weight"]
            embedding = nn.Linear(weight.shape[1], len(weight), "bias" in values, dtype=weight.dtype)
            embedding.load_state_dict(values)
        return TokenRegressor(model, embedding, num_outputs).eval()

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write the model as the library does, and the embedding into a file beside."""
        self.model.save_pretrained(folder)
        file = Path(folder) / _EMBEDDING_FILE
        if self.embedding is not None:
            save_file(self.embedding.state_dict(), file)
        else:  # nor that of another regressor, which was here before
            file.unlink(missing_ok=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (batch, length) or (batch, length, num_outputs) of inputs (batch, length, d)."""
        embedded = inputs if self.embedding is None else self.embedding(inputs)
        logits = cast("Tensor", self.model(inputs_embeds=embedded).logits)
        return logits.squeeze(-1) if self.num_outputs is None else logits


class MixerRegressor(TokenRegressor):
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
        require_at_least(input_size=(input_size, 1), hidden_size=(hidden_size, 1), num_layers=(num_layers, 1))
        embedding = nn.Linear(input_size, hidden_size)
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
        super().__init__(SeqMixHybridForTokenClassification(config), embedding, num_outputs)
