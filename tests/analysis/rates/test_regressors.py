"""Models of this package that learn targets of the theory."""

import functools
from typing import Any

import pytest
import torch

from hf_seqmix.analysis.rates import LinearTarget, MixerRegressor, TrainSettings, train_on_target

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
