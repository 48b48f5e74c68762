"""Kernels of a model, as numbers and as a plot."""

import pytest
import torch

from hf_seqmix import SeqMixHybridConfig, SeqMixHybridModel, TNNConfig, TNNModel
from hf_seqmix.analysis.kernels import LearnedKernels, learned_kernels, plot_kernels, typical_channels


def tiny(is_causal: bool = True) -> TNNModel:
    return TNNModel(
        TNNConfig(vocab_size=5, hidden_size=8, num_hidden_layers=2, rpe_hidden_size=4, is_causal=is_causal)
    )


@pytest.mark.parametrize("is_causal", [True, False])
def test_kernels_of_every_layer(is_causal):
    model = tiny(is_causal)
    kernels = learned_kernels(model, 6)
    assert [k.name for k in kernels] == ["layers.0.mixer.operator", "layers.1.mixer.operator"]
    assert kernels[0].lags.tolist() == list(range(0 if is_causal else -5, 6))
    torch.testing.assert_close(kernels[1].taps, model.layers[1].mixer.operator.kernel(6).detach())


@pytest.mark.parametrize("is_causal", [True, False])
def test_response_of_a_known_kernel(is_causal):
    # A delay of one step has magnitude 1; the sum of a step back and a step ahead is 2 cos w.
    taps = torch.tensor([[0.0, 1.0, 0.0]]) if is_causal else torch.tensor([[1.0, 0.0, 1.0]])
    frequencies, response = LearnedKernels("x", is_causal, taps).response(9)
    expected = torch.ones(9) if is_causal else (2 * frequencies.cos()).abs()
    torch.testing.assert_close(response[0], expected)


def test_reach():
    taps = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 2.0], [1.0, 0.0, 1.0]])
    assert LearnedKernels("x", True, taps).reach().tolist() == [0.0, 2.0, 1.0]
    assert LearnedKernels("x", False, taps).reach().tolist() == [1.0, 1.0, 1.0]
    assert typical_channels(LearnedKernels("x", True, taps), 1) in ([0], [1], [2])


def test_plot(tmp_path):
    plot_kernels(learned_kernels(tiny(), 40), tmp_path / "kernels.png")
    assert (tmp_path / "kernels.png").stat().st_size > 10_000


def test_nothing_to_see():
    attention = SeqMixHybridModel(SeqMixHybridConfig(vocab_size=5, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(ValueError, match="SeqMixHybridModel has no Toeplitz layer"):
        learned_kernels(attention, 4)
    with pytest.raises(ValueError, match="length is 0"):
        learned_kernels(tiny(), 0)
