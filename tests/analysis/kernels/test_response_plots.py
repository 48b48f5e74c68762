"""The figures of theory: responses with their decay."""

import pytest
import torch

from hf_seqmix.analysis.kernels.decay import random_encoders, resonance, resonance_taps
from hf_seqmix.analysis.kernels.response_plots import plot_responses, response_example


@pytest.mark.parametrize("is_causal", [True, False])
def test_envelopes_follow_the_prediction(is_causal):
    encoders = random_encoders("gelu", range(3), channels=4, hidden_size=16)
    example = response_example(encoders, "omega", is_causal, fft_length=2**13)
    assert example.taps.shape == (1025,)
    assert example.envelope[0] <= 1
    far = example.lags >= 64
    torch.testing.assert_close(example.envelope[far], example.predicted[far], rtol=0.2, atol=0)
    assert response_example(encoders, "cosine", is_causal, fft_length=2**13).predicted is None


def test_plot_of_responses(tmp_path):
    examples = {
        mode: {
            name: response_example(random_encoders(name, [0], hidden_size=8), mode, fft_length=2**12) for name in names
        }
        for mode, names in {"omega": ["relu", "gelu"], "cosine": ["silu"]}.items()
    }
    target = (resonance(torch.linspace(0, 3.14159, 1025, dtype=torch.float64)), resonance_taps(torch.arange(1024)))
    plot_responses(examples, tmp_path / "plot.png", title="title", target=target)
    assert (tmp_path / "plot.png").stat().st_size > 20_000
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_responses({"omega": {}}, tmp_path / "no.png")
