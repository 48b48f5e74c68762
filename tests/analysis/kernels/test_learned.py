"""Kernels of a model, as numbers and as a plot."""

import pytest
import torch

from hf_seqmix import SeqMixHybridConfig, SeqMixHybridModel, TNNConfig, TNNModel
from hf_seqmix.analysis.kernels import (
    LearnedKernels,
    learned_kernels,
    plot_kernels,
    ski_taps,
    toeplitz_operators,
    typical_channels,
)
from hf_seqmix.models.fd_tnn.mixer import FDTNNMixer
from hf_seqmix.models.ski_tnn.mixer import SKITNNMixer
from hf_seqmix.models.tnn.mixer import TNNMixer
from hf_seqmix.ops.layout import TokenLayout


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


@pytest.mark.parametrize("degree", ["linear", "cubic"])
@pytest.mark.parametrize("length", [1, 5, 23])
def test_ski_taps_are_the_diagonals_of_the_matrix(degree, length):
    mixer = SKITNNMixer(4, 17, 6, num_inducing_points=5, conv_kernel_size=7, interpolation=degree).double()
    with torch.no_grad():
        units = torch.eye(length, dtype=torch.float64)[:, :, None].expand(length, length, 6)
        columns = mixer.operator(units.contiguous(), TokenLayout())  # (input, output, channels)
    matrix = columns.permute(2, 1, 0)
    taps = ski_taps(mixer.operator, length)
    assert taps.shape == (6, 2 * length - 1)
    for lag in range(1 - length, length):
        torch.testing.assert_close(taps[:, lag + length - 1], matrix.diagonal(-lag, 1, 2).mean(dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ski_taps_do_not_depend_on_the_default_dtype(dtype):
    operator = SKITNNMixer(4, 24, 6, num_inducing_points=8, conv_kernel_size=7).to(dtype).operator
    with torch.no_grad():  # a kernel that changes with the lag, and a spacing, 23 / 7, that no binary number is
        for knots in (operator.kernel.past_knots, operator.kernel.future_knots):
            knots.copy_(torch.randn(knots.shape, generator=torch.Generator().manual_seed(0)))
    before = torch.get_default_dtype()
    found = {}
    try:
        for default in (torch.bfloat16, torch.float32, torch.float64):
            torch.set_default_dtype(default)
            found[default] = ski_taps(operator, 24)
    finally:
        torch.set_default_dtype(before)
    assert {taps.dtype for taps in found.values()} == {dtype}
    assert torch.equal(found[torch.bfloat16], found[torch.float64])
    assert torch.equal(found[torch.float32], found[torch.float64])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.one_in(2)
def test_kernels_of_half_precision_are_float32(tmp_path, dtype):
    mixers = [TNNMixer(4, 8), FDTNNMixer(4, 8), SKITNNMixer(4, 8, num_inducing_points=3, conv_kernel_size=3)]
    kernels = [learned_kernels(mixer.to(dtype), 6)[0] for mixer in mixers]
    for kernel in kernels:
        assert kernel.taps.dtype == torch.float32
        assert kernel.response()[1].isfinite().all()
    plot_kernels(kernels, tmp_path / "kernels.png")


@pytest.mark.parametrize("is_causal", [True, False])
def test_frequency_kernels_are_found(is_causal):
    mixer = FDTNNMixer(4, 8, is_causal=is_causal, rpe_hidden_size=4)
    (kernels,) = learned_kernels(mixer, 8)
    torch.testing.assert_close(kernels.taps, mixer.operator.kernel(8).detach())
    if is_causal:
        # The real part of the response is what the encoder gave, but for the tap at lag 8.
        frequencies, response = learned_kernels(mixer, 9)[0].complex_response(9)
        torch.testing.assert_close(response.real, mixer.operator.kernel.response().detach(), rtol=1e-4, atol=1e-5)
        assert frequencies[-1].item() == pytest.approx(3.14159265)


@pytest.mark.parametrize("family", ["tnn", "fd", "ski"])
def test_each_axis_of_a_grid_has_its_own(family):
    build = {
        "tnn": lambda: TNNMixer(4, is_causal=False, rpe_hidden_size=4, grid_size=(3, 5)),
        "fd": lambda: FDTNNMixer(4, 15, is_causal=False, rpe_hidden_size=4, grid_size=(3, 5)),
        "ski": lambda: SKITNNMixer(4, 15, num_inducing_points=2, conv_kernel_size=3, grid_size=(3, 5)),
    }
    rows, columns = learned_kernels(build[family](), 100)
    assert (rows.name, columns.name) == ("operator.row_operator", "operator.column_operator")
    assert rows.lags.tolist() == list(range(-4, 5))
    assert columns.lags.tolist() == list(range(-2, 3))
    assert [places for *_, places in toeplitz_operators(build[family]())] == [5, 3]


def test_typical_channels_differ():
    for channels in range(1, 8):
        chosen = typical_channels(LearnedKernels("x", True, torch.randn(channels, 5)), 2)
        assert len(set(chosen)) == len(chosen) == min(2, channels)
