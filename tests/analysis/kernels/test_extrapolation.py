"""Kernels beyond the length they were trained for."""

import pytest
import torch

from hf_seqmix import FDTNNConfig, FDTNNModel
from hf_seqmix.analysis.kernels.extrapolation import extrapolate, extrapolate_model, plot_extrapolation
from hf_seqmix.analysis.kernels.learned import ski_taps
from hf_seqmix.models.fd_tnn.mixer import FDTNNMixer
from hf_seqmix.models.ski_tnn.mixer import SKITNNMixer
from hf_seqmix.models.tnn.mixer import TNNMixer
from hf_seqmix.ops.ski.interpolation import InducingGrid


@pytest.mark.parametrize("is_causal", [True, False])
def test_tnn_keeps_its_first_taps(is_causal):
    mixer = TNNMixer(4, is_causal=is_causal, decay=0.9, rpe_hidden_size=8)
    (result,) = extrapolate(mixer.operator, 11, 30)
    assert (result.length, result.longer) == (11, 30)
    torch.testing.assert_close(result.first, result.before)
    energy, largest = result.beyond()
    trained = result.before.square().sum(dim=1) / result.after.square().sum(dim=1)
    torch.testing.assert_close(energy, 1 - trained)
    assert (energy > 0).all() and (energy < 1).all()
    assert largest.max() < 0.9**10 * 100


@pytest.mark.parametrize("is_causal", [True, False])
def test_fd_moves_by_what_was_aliased(is_causal):
    operator = FDTNNMixer(4, 16, is_causal=is_causal, rpe_hidden_size=8).operator.double()
    zeros, finer = extrapolate(operator, 16, 32)
    assert zeros.moved().max() == 0
    new = zeros.after.shape[1] - (17 if is_causal else 33)
    assert (zeros.after == 0).sum(dim=1).min() >= new  # all but lag 16, which the grid still holds
    assert finer.moved().min() > 0
    # The coarse kernel folds lags 32 - t onto t: what it differs by is what the fine one has there.
    if is_causal:
        folded = finer.after[:, 1:16] + finer.after[:, 17:32].flip(1)
        torch.testing.assert_close(finer.before[:, 1:16], folded)
    assert operator.kernel.max_length == 16


def test_ski_maps_new_lags_into_the_trained_interval():
    operator = SKITNNMixer(4, 24, num_inducing_points=8, conv_kernel_size=3).operator.double()
    more, spread = extrapolate(operator, 24, 70)
    assert more.moved().max() < 0.2 < spread.moved().max()
    # Far from zero the kernel follows its first knot down to zero.
    sizes = more.after.abs()
    assert sizes[:, -1].max() < sizes[:, 70 - 1 + 30].max()
    assert spread.after.shape == more.after.shape == (12, 139)
    # Of half the trained length, too, the spacing grows as the length does.
    spread = extrapolate(operator, 12, 36)[1]
    torch.testing.assert_close(spread.after, ski_taps(operator, 36, InducingGrid(70, 8, operator.grid.degree)))


def test_every_layer_and_axis():
    config = FDTNNConfig(
        vocab_size=5, hidden_size=4, num_hidden_layers=2, max_position_embeddings=8, rpe_hidden_size=4
    )
    results = extrapolate_model(FDTNNModel(config), 8, 16)
    assert [(r.layer, r.way) for r in results] == [
        (f"layers.{layer}.mixer.operator", way) for layer in (0, 1) for way in ("zeros beyond the grid", "finer grid")
    ]
    mixer = TNNMixer(4, is_causal=False, rpe_hidden_size=4, grid_size=(3, 5))
    axes = extrapolate_model(mixer, 15, 30)
    assert [(r.layer, r.length, r.longer) for r in axes] == [
        ("operator.row_operator", 5, 10),
        ("operator.column_operator", 3, 6),
    ]
    assert set(axes[0].to_dict()) >= {"layer", "way", "moved", "moved_worst", "beyond_energy", "beyond_largest"}


def test_refusals(tmp_path):
    operator = TNNMixer(4, rpe_hidden_size=4).operator
    with pytest.raises(ValueError, match="length is 8 and longer 8"):
        extrapolate(operator, 8, 8)
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_extrapolation([], tmp_path / "no.png")


def test_plot(tmp_path):
    results = []
    for name, mixer in {
        "tnn": TNNMixer(4, rpe_hidden_size=4),
        "fd": FDTNNMixer(4, 16, is_causal=False, rpe_hidden_size=4),
        "ski": SKITNNMixer(4, 16, num_inducing_points=4),
    }.items():
        results += extrapolate(mixer.operator, 16, 32, name)
    plot_extrapolation(results, tmp_path / "plot.png", title="title")
    assert (tmp_path / "plot.png").stat().st_size > 20_000
