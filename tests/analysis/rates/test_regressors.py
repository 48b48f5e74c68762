"""Models of this package that learn targets of the theory, and saved ones."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForTokenClassification

from hf_seqmix import TNNConfig, TNNForTokenClassification
from hf_seqmix.analysis.rates import LinearTarget, MixerRegressor, TokenRegressor, TrainSettings, train_on_target

MIXERS: dict[str, dict[str, Any]] = {
    "attention": {"num_heads": 2},
    "tnn": {"rpe_hidden_size": 8},
    "fd_tnn": {"rpe_hidden_size": 8},
    "ipa": {"num_centers": 4},
    "poly_transformer": {"num_attention_heads": 2},
    "short_conv": {},
}


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_number_for_each_token_and_no_look_ahead(mixer, is_causal):
    own = {"taps": 3, **MIXERS[mixer]} if mixer == "short_conv" else MIXERS[mixer]
    model = MixerRegressor(mixer, hidden_size=16, is_causal=is_causal, **own).double()
    x = torch.rand(2, 7, 1, dtype=torch.float64)
    y = model(x)
    assert y.shape == (2, 7)
    changed = x.clone()
    changed[:, 4] += 1
    moved = (model(changed) - y).abs().amax(dim=0)
    assert (moved[:3].max() > 1e-9) == (not is_causal and mixer != "short_conv")
    assert moved[4] > 1e-9
    wide = MixerRegressor(mixer, 3, hidden_size=16, is_causal=is_causal, num_outputs=2, **own)
    assert wide(torch.rand(2, 5, 3)).shape == (2, 5, 2)


def test_seeds_train_one_after_another_as_alone():
    target = LinearTarget.from_kernel("exponential", length=8)

    def train(steps: int, *seeds: int) -> list[float]:
        settings = TrainSettings(rows=64, test_rows=32, max_steps=steps, check_every=10)
        make = functools.partial(MixerRegressor, "tnn", hidden_size=8, max_length=8, rpe_hidden_size=4)
        return [trained.test_error for trained in train_on_target(make, target, settings, seeds)]

    both, (alone,), (begun,) = train(30, 0, 1), train(30, 1), train(1, 1)
    assert both[1] == pytest.approx(alone, rel=1e-3)
    assert alone < begun / 2


@pytest.mark.parametrize("num_outputs", [None, 2])
def test_a_saved_regressor_is_the_regressor(tmp_path: Path, num_outputs: int | None) -> None:
    model = MixerRegressor("short_conv", 3, hidden_size=8, max_length=7, num_outputs=num_outputs, taps=3).eval()
    model.save_pretrained(tmp_path)
    loaded = TokenRegressor.from_pretrained(tmp_path, num_outputs)
    x = torch.rand(2, 7, 3)
    assert torch.equal(loaded(x), model(x)) and not loaded.training
    with pytest.raises(ValueError, match=f'and {num_outputs or 1} labels; give "regression" and 5'):
        TokenRegressor.from_pretrained(tmp_path, 5)


def test_a_saved_regressor_has_its_own_embedding_in_its_dtype(tmp_path: Path) -> None:
    model = MixerRegressor("short_conv", 3, hidden_size=8, max_length=7, taps=3).eval().double()
    model.save_pretrained(tmp_path)
    x = torch.rand(2, 7, 3, dtype=torch.float64)
    assert torch.equal(TokenRegressor.from_pretrained(tmp_path)(x), model(x))
    biasless = TokenRegressor(model.model, nn.Linear(3, 8, bias=False, dtype=torch.float64))
    biasless.save_pretrained(tmp_path)
    assert torch.equal(TokenRegressor.from_pretrained(tmp_path)(x), biasless(x))
    TokenRegressor(model.model).save_pretrained(tmp_path)
    assert TokenRegressor.from_pretrained(tmp_path).embedding is None


def test_a_model_that_reads_its_inputs_as_they_are(tmp_path: Path) -> None:
    config = TNNConfig(vocab_size=1, hidden_size=8, num_hidden_layers=1, num_labels=1, problem_type="regression")
    model = TNNForTokenClassification(config).eval()
    model.save_pretrained(tmp_path)
    x = torch.rand(2, 5, 8)
    assert torch.equal(TokenRegressor.from_pretrained(tmp_path)(x), model(inputs_embeds=x).logits[..., 0])
    narrow = TokenRegressor(model, nn.Linear(2, 8))
    assert narrow(x[..., :2]).shape == (2, 5)


def test_other_models_are_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1}
    TNNForTokenClassification(TNNConfig(vocab_size=1, num_labels=3, **sizes)).save_pretrained(tmp_path / "classes")
    with pytest.raises(ValueError, match="the model has problem_type None and 3 labels"):
        TokenRegressor.from_pretrained(tmp_path / "classes")
    others = BertConfig(vocab_size=9, num_attention_heads=1, intermediate_size=4, max_position_embeddings=4, **sizes)
    BertForTokenClassification(others).save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="the model has problem_type None and 2 labels"):
        TokenRegressor.from_pretrained(tmp_path / "bert")
