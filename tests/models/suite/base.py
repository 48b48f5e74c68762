"""What the tests of a family are made with: configurations, models, batches."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_seqmix import Family, SeqMixConfig

VOCAB = 61
PADS = {
    "left": [[0, 0, 0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 1]],
    "right": [[1, 1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 0]],
    "inside": [[1, 1, 0, 0, 1, 1, 0, 1, 1], [0, 1, 1, 0, 1, 1, 1, 1, 0]],
}


def perturb(model: nn.Module, scale: float = 0.1) -> nn.Module:
    """Move every parameter away from where initialization put it: zero biases hide what leaks through pads."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


class SuiteBase:
    """A family, and what its tests make of it."""

    family: Family
    directions: tuple[bool, ...] = (True, False)

    def config(self, is_causal: bool = True, **kwargs: Any) -> SeqMixConfig:
        raise AssertionError("a suite says how its configurations are made")

    def head_names(self, is_causal: bool) -> list[str]:
        left_out = "ForMaskedLM" if is_causal else "ForCausalLM"
        return [suffix for suffix in self.family.classes if suffix != left_out]

    def heads(self) -> list[tuple[str, bool]]:
        return [(name, is_causal) for is_causal in self.directions for name in self.head_names(is_causal)]

    def some_heads(self) -> list[tuple[str, bool]]:
        """Every head once: by turns a causal one and a bidirectional one."""
        heads = self.heads()
        turns = {name: place % 2 == 0 for place, name in enumerate(self.family.classes)}
        return [
            (name, is_causal)
            for name, is_causal in heads
            if is_causal == turns[name] or (name, turns[name]) not in heads
        ]

    def takes_images(self, suffix: str) -> bool:
        return self.family.classes[suffix].main_input_name == "pixel_values"

    def head_config(self, suffix: str, is_causal: bool = True, **kwargs: Any) -> SeqMixConfig:
        """A configuration with what a head asks for: one for images names their size."""
        image = {"image_size": [6, 4], "patch_size": 2, "num_channels": 1} if self.takes_images(suffix) else {}
        return self.config(is_causal, **{**image, **kwargs})

    def make(
        self, suffix: str = "Model", is_causal: bool = True, dtype: torch.dtype = torch.float64, **kwargs: Any
    ) -> PreTrainedModel:
        model = perturb(self.family.classes[suffix](self.head_config(suffix, is_causal, **kwargs)))
        return model.to(dtype).eval()

    def batch(self, suffix: str, rows: int = 2, length: int = 9) -> dict[str, Tensor]:
        """Inputs and labels that a head can be trained on."""
        if self.takes_images(suffix):
            return {"pixel_values": torch.randn(rows, 1, 6, 4), "labels": torch.arange(rows) % 2}
        inputs = {"input_ids": torch.randint(VOCAB, (rows, length))}
        if suffix in ("ForCausalLM", "ForMaskedLM"):
            inputs["labels"] = inputs["input_ids"].clone()
        elif suffix == "ForSequenceClassification":
            inputs["labels"] = torch.arange(rows) % 2
        elif suffix == "ForTokenClassification":
            inputs["labels"] = inputs["input_ids"] % 2
        elif suffix == "ForQuestionAnswering":
            inputs["start_positions"] = torch.arange(rows) % length
            inputs["end_positions"] = (torch.arange(rows) + 1) % length
        return inputs

    @pytest.fixture(params=[True, False], ids=["causal", "bidirectional"])
    def is_causal(self, request: pytest.FixtureRequest) -> bool:
        if request.param not in self.directions:
            with pytest.raises(ValueError, match="is_causal"):
                self.config(request.param)
            pytest.skip("this direction is refused, as just checked")
        return request.param

    def in_chunks(
        self, model: PreTrainedModel, ids: Tensor, mask: Tensor | None, sizes: list[int], cache: Any
    ) -> Tensor:
        parts, past = [], 0
        for size in sizes:
            seen = None if mask is None else mask[:, : past + size]
            parts.append(model(ids[:, past : past + size], seen, past_key_values=cache, use_cache=True).logits)
            past += size
        return torch.cat(parts, dim=1)
