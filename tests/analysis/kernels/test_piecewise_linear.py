"""Proposition 1: what normalization does to a piecewise linear encoder."""

import pytest
import torch

from hf_seqmix.analysis.kernels.piecewise_linear import NORMALIZATIONS, linearity, normalized_encoder, plot_linearity


@pytest.mark.parametrize("seed", [0, 1])
def test_without_normalization_it_is_piecewise_linear(seed):
    result = linearity(normalized_encoder("none", seed=seed, hidden_size=24), cells=4096)
    assert len(result.kinks) > 20
    assert result.bend < 1e-13
    assert result.sag < 1e-13
    assert result.to_dict()["order"] is None


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("normalization", ["simple_rms", "layer"])
def test_with_normalization_it_is_not(normalization, seed):
    result = linearity(normalized_encoder(normalization, seed=seed, hidden_size=24), cells=4096)
    assert result.bend > 1e-8
    assert result.sag > 1e-4
    # Differences shrink like h^2, as those of a curved function do; rounding would not.
    assert result.order == pytest.approx(2, abs=0.05)
    assert result.curvature.nan_to_num(0).max() > 0.01


def test_a_kink_is_left_out():
    encoder = normalized_encoder("none", hidden_size=8, num_layers=0)
    result = linearity(encoder, -3, 3, cells=512)
    # One hidden layer: the kinks are where its units are zero.
    roots = -encoder.in_proj.bias / encoder.in_proj.weight[:, 0]
    expected = roots[(roots > -3) & (roots < 3)].sort().values.detach()
    torch.testing.assert_close(result.kinks, expected)
    step = result.points[1] - result.points[0]
    for kink in expected:
        assert result.curvature[(result.points - kink).abs() < step].isnan().all()
    assert result.curvature.isnan().sum() <= 2 + 2 * len(expected)


def test_norms_share_weights():
    weights = [normalized_encoder(name, hidden_size=4).out_proj.weight for name in NORMALIZATIONS]
    assert all(torch.equal(weights[0], other) for other in weights)


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="normalization is 'batch'; it must be one of none, simple_rms, layer"):
        normalized_encoder("batch")
    with pytest.raises(ValueError, match="float32 with ReLU; float64"):
        linearity(normalized_encoder("none", hidden_size=4).float())
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_linearity({}, tmp_path / "no.png")


def test_plot(tmp_path):
    results = {name: linearity(normalized_encoder(name, hidden_size=8), cells=256) for name in NORMALIZATIONS}
    plot_linearity(results, tmp_path / "plot.png", title="title")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
