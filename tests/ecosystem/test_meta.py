"""Models on the meta device, whose tensors have shapes and no numbers: counts of operations, and dry runs."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model

pytestmark = pytest.mark.ecosystem


def on_meta(family: str, suffix: str, **overrides: Any) -> PreTrainedModel:
    with torch.device("meta"):
        return tiny_model(family, suffix, **overrides).eval()


@pytest.mark.parametrize(
    ("family", "suffix", "overrides"),
    [
        *[(family, "ForCausalLM", {}) for family in CAUSAL],
        *[(family, "ForSequenceClassification", {"is_causal": False}) for family in EVERY],
        ("poly_transformer", "ForCausalLM", {"mixing": "triangular"}),
        ("tnn", "ForCausalLM", {"copy_head": True, "short_conv_taps": 3, "ngram_sizes": [2]}),
        ("tnn", "ForCausalLM", {"position_embedding_type": "learned"}),
    ],
)
def test_forward_and_backward(family: str, suffix: str, overrides: dict[str, Any]) -> None:
    model = on_meta(family, suffix, **overrides)
    ids = torch.ones(2, 13, dtype=torch.long, device="meta")
    for given in ({}, {"attention_mask": ids}, {"position_ids": ids}):
        logits = model(ids, **given).logits
        logits.sum().backward()
        assert logits.device.type == "meta"
        assert logits.shape == ((2, 13, 300) if suffix == "ForCausalLM" else (2, 2))
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("given", [(), ("attention_mask",), ("position_ids",)])
def test_operations_are_counted(given: tuple[str, ...]) -> None:
    ids = torch.ones(1, 13, dtype=torch.long)
    places = torch.arange(13)[None]
    counts = []
    for model, device in ((tiny_model("tnn").eval(), "cpu"), (on_meta("tnn", "ForCausalLM"), "meta")):
        more = {name: (ids if name == "attention_mask" else places).to(device) for name in given}
        with FlopCounterMode(display=False) as counter:
            model(ids.to(device), **more).logits.sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
