"""Networks of kernels that have died are found, and living ones are not."""

import pytest
import torch

from hf_seqmix import FDTNNConfig, FDTNNModel, SeqMixHybridConfig, SeqMixHybridModel, TNNConfig, TNNModel
from hf_seqmix.analysis.kernels import LiveUnits, dead_encoders, learned_kernels, live_units
from hf_seqmix.models.tnn.mixer import TNNMixer

SIZES = {"vocab_size": 5, "hidden_size": 8, "num_hidden_layers": 2, "rpe_hidden_size": 16, "is_causal": False}
PATHS = [f"layers.{layer}.mixer.operator.kernel.encoder" for layer in range(2)]


@pytest.mark.parametrize("build", [lambda: TNNModel(TNNConfig(**SIZES)), lambda: FDTNNModel(FDTNNConfig(**SIZES))])
def test_new_networks_live(build):
    torch.manual_seed(0)
    units = live_units(build(), 12)
    assert [found.name for found in units] == PATHS
    assert all(found.total == 16 and found.live > 8 for found in units)


def test_a_layer_of_relus_that_never_fire_kills_a_network():
    torch.manual_seed(0)
    model = TNNModel(TNNConfig(**SIZES))
    encoder = model.layers[1].mixer.operator.kernel.encoder
    with torch.no_grad():
        encoder.layers[1].bias.fill_(-100.0)
    found = live_units(model, 12)
    assert found[0].live > 8 and found[1] == LiveUnits(PATHS[1], 0, 16)
    assert dead_encoders(model, 12) == PATHS[1:]
    # Then kernels are a constant a channel, times the decay.
    taps = learned_kernels(model, 12)[1].taps / learned_kernels(model, 12)[1].lags.abs().mul(-0.01005034).exp()
    torch.testing.assert_close(taps, taps[:, :1].expand_as(taps), rtol=1e-4, atol=1e-6)
    # No gradient reaches what lies before the dead layer, so that training does not bring the lag back.
    encoder(torch.arange(-5.0, 6.0)).sum().backward()
    assert not encoder.in_proj.weight.grad.any() and encoder.out_proj.bias.grad.any()


def test_one_unit_is_counted():
    torch.manual_seed(0)
    model = TNNModel(TNNConfig(**SIZES, rpe_num_layers=0))
    with torch.no_grad():
        model.layers[0].mixer.operator.kernel.encoder.in_proj.weight[3:] = 0
        model.layers[0].mixer.operator.kernel.encoder.in_proj.bias[3:] = -1
    assert live_units(model, 12)[0].live == 3


def test_axes_of_one_place_and_other_models():
    torch.manual_seed(0)
    mixer = TNNMixer(8, is_causal=False, grid_size=(1, 9), rpe_hidden_size=16)
    assert [found.name for found in live_units(mixer, 9)] == ["operator.row_operator.kernel.encoder"]
    attention = SeqMixHybridModel(SeqMixHybridConfig(vocab_size=5, hidden_size=16, num_hidden_layers=1))
    assert dead_encoders(attention, 12) == [] and dead_encoders(mixer, 1) == []
    with pytest.raises(ValueError, match="has no Toeplitz layer"):
        live_units(attention, 12)
    with pytest.raises(ValueError, match="length is 1; give at least 2"):
        live_units(mixer, 1)
