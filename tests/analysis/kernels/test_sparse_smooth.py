"""The split of a kernel into a few taps and a smooth rest."""

import pytest
import torch

from hf_seqmix.analysis.kernels import LearnedKernels
from hf_seqmix.analysis.kernels.sparse_smooth import plot_split, rank_to, split_kernel, split_row, two_sided
from hf_seqmix.ops.toeplitz.product import toeplitz_matrix


@pytest.mark.parametrize("half_width", [0, 2, 5])
def test_parts_add_up_and_the_rest_is_straight(half_width):
    taps = torch.randn(3, 15, dtype=torch.float64)
    sparse, smooth = split_kernel(taps, half_width)
    torch.testing.assert_close(sparse + smooth, taps)
    outside = (torch.arange(15) - 7).abs() > half_width
    assert torch.equal(sparse[:, outside], torch.zeros(3, int(outside.sum()), dtype=torch.float64))
    under = smooth[:, 7 - half_width - 1 : 7 + half_width + 2]
    assert under.diff(n=2, dim=1).abs().max() < 1e-12


def test_smooth_plus_spikes():
    # A kernel made of three spikes and an exponential of rank one on each side.
    lags = torch.arange(-63, 64, dtype=torch.float64)
    smooth = torch.exp(-(lags.abs() / 40)) * (1 + 0.3 * lags.sign())
    smooth[63 - 3 : 63 + 4] = torch.linspace(smooth[63 - 3], smooth[63 + 3], 7, dtype=torch.float64)
    spikes = torch.zeros(127, dtype=torch.float64)
    spikes[62:65] = torch.tensor([10.0, -30.0, 20.0])
    row = split_row((smooth + spikes)[None], half_width=2)
    assert row["rank"] > 50
    assert row["smooth_rank"] < 15
    assert row["sparse_energy"] == pytest.approx((spikes.square().sum() / (smooth + spikes).square().sum()).item())
    assert row["sparse_norm"] > 0.5
    assert row["channels"] == 1
    assert row["length"] == 64


def test_norms_and_ranks_are_those_of_the_matrices():
    taps = torch.randn(1, 17)
    row = split_row(taps, half_width=1, tolerance=0.3)
    whole = toeplitz_matrix(taps.double(), 9, causal=False)[0]
    smooth = toeplitz_matrix(split_kernel(taps.double(), 1).smooth, 9, causal=False)[0]
    norm = torch.linalg.matrix_norm(whole, 2)
    assert row["smooth_norm"] == pytest.approx((torch.linalg.matrix_norm(smooth, 2) / norm).item())
    for key, matrix in (("rank", whole), ("smooth_rank", smooth)):
        u, s, vh = torch.linalg.svd(matrix)
        rank = int(row[key])
        best = (u[:, :rank] * s[:rank]) @ vh[:rank]
        assert torch.linalg.matrix_norm(matrix - best, 2) <= 0.3 * norm
        assert rank == 0 or s[rank - 1] > 0.3 * norm


def test_causal_kernels_get_their_zeros():
    taps = torch.tensor([[1.0, 2.0, 3.0]])
    assert two_sided(taps, True).tolist() == [[0, 0, 1, 2, 3]]
    assert two_sided(taps, False) is taps
    assert rank_to(torch.tensor([3.0, 2.0, 0.1]), 0.5) == 2


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="taps has 4 lags"):
        split_kernel(torch.zeros(1, 4), 1)
    with pytest.raises(ValueError, match="half_width is 3; with 7 lags it must be at least 0 and below 3"):
        split_kernel(torch.zeros(1, 7), 3)
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_split([], tmp_path / "no.png")


@pytest.mark.parametrize("is_causal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_plot(tmp_path, is_causal):
    taps = torch.randn(4, 24 if is_causal else 47)
    plot_split([LearnedKernels("a", is_causal, taps)] * 2, tmp_path / "split.png", half_width=3, title="title")
    assert (tmp_path / "split.png").stat().st_size > 10_000
