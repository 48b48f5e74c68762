"""What SKI loses, and the bound on it."""

import math

import pytest
import torch

from hf_seqmix.analysis.kernels.ski_error import (
    derivative_bound,
    gaussian_kernel,
    learned_ski_errors,
    plot_ski_error,
    ski_error,
    two_exponentials,
)
from hf_seqmix.models.fd_tnn.mixer import FDTNNMixer
from hf_seqmix.models.ski_tnn.mixer import SKITNNMixer
from hf_seqmix.models.tnn.mixer import TNNMixer
from hf_seqmix.ops.ski.interpolation import InducingGrid, interpolation_matrix
from hf_seqmix.ops.toeplitz.product import toeplitz_matrix


def test_kernels_are_smooth_and_asymmetric():
    lags = torch.linspace(-1e-3, 1e-3, 3, dtype=torch.float64)
    for kernel in (two_exponentials(64), gaussian_kernel(64)):
        left, middle, right = kernel(lags)
        assert (right - middle).item() == pytest.approx((middle - left).item(), rel=1e-3)
        assert abs(kernel(torch.tensor(9.0)) - kernel(torch.tensor(-9.0))) > 0.01
        assert abs(kernel(torch.tensor(9.0)) + kernel(torch.tensor(-9.0))) > 0.01


def test_sixteen_points_are_enough_for_a_smooth_kernel():
    result = ski_error(two_exponentials(256), 256, 16)
    assert result["points"] == 16
    assert result["spacing"] == 17
    assert result["best"] <= result["ski"] < 0.02
    assert ski_error(two_exponentials(256), 256, 16, degree=3)["ski"] < 0.005


@pytest.mark.parametrize("degree", [1, 3])
@pytest.mark.parametrize("length", [2 * 16, 61])
def test_errors_are_those_of_the_matrices(degree, length):
    kernel, points = gaussian_kernel(length), 7
    result = ski_error(kernel, length, points, degree)
    grid = InducingGrid(length, points, degree)
    weights = interpolation_matrix(length, grid)
    count = weights.shape[1]
    lags = torch.arange(1 - length, length, dtype=torch.float64)
    dense = toeplitz_matrix(kernel(lags)[None], length, causal=False)[0]
    spacings = torch.arange(1 - count, count, dtype=torch.float64) * grid.spacing
    inducing = toeplitz_matrix(kernel(spacings)[None], count, causal=False)[0]
    error = weights @ inducing @ weights.T - dense
    norm = torch.linalg.matrix_norm(dense, 2)
    assert result["ski"] == pytest.approx((torch.linalg.matrix_norm(error, 2) / norm).item())
    assert result["best"] == pytest.approx((torch.linalg.svdvals(dense)[count] / norm).item())
    assert result["ski"] <= result["nystrom"] + result["interpolation_part"] + 1e-12


@pytest.mark.parametrize(("make", "degree"), [(two_exponentials, 1), (gaussian_kernel, 1), (gaussian_kernel, 3)])
def test_theorem_1_holds(make, degree):
    length = 64
    kernel = make(length)
    derivative = derivative_bound(kernel, degree + 1, 1.4 * length)
    for points in (4, 8, 16, 32):
        result = ski_error(kernel, length, points, degree, derivative=derivative)
        assert result["left_side"] <= result["kept_bound"] * (1 + 1e-9)
        assert result["left_side"] <= result["bound"] * (1 + 1e-9)
        if result["condition"] > 1e-9:
            assert result["kept_bound"] == pytest.approx(result["bound"])


@pytest.mark.parametrize("degree", [1, 3])
def test_singular_inducing_matrix(degree):
    # Rank two: the pseudo-inverse makes Nystrom exact, and what remains is interpolation.
    length, period = 60, 45

    def kernel(lags: torch.Tensor) -> torch.Tensor:
        return torch.cos(2 * math.pi * lags / period + 0.3)

    derivative = (2 * math.pi / period) ** (degree + 1)
    result = ski_error(kernel, length, 12, degree, derivative=derivative)
    assert result["condition"] < 1e-12
    assert result["nystrom"] < 1e-10
    assert result["ski"] == pytest.approx(result["interpolation_part"])
    assert result["left_side"] <= result["kept_bound"] < 1e3
    assert result["bound"] > 1e6 * result["kept_bound"]


def test_a_constant_is_exact_whatever_its_singular_values():
    result = ski_error(torch.ones_like, 20, 4, derivative=0.0)
    assert result["ski"] < 1e-14
    assert result["left_side"] <= result["kept_bound"] + 1e-14
    assert math.isfinite(result["bound"])
    assert (
        ski_error(torch.ones_like, 20, 4, derivative=1.0)["bound"] > 1e12
    )  # as stated: over a singular value of zero


@pytest.mark.parametrize("order", [1, 2, 4])
def test_derivative_bound(order):
    bound = derivative_bound(lambda t: torch.sin(t / 2), order, 10.0)
    assert bound == pytest.approx(0.5**order, rel=1e-4)


def test_learned_kernels():
    ski = SKITNNMixer(4, 48, 6, num_inducing_points=12, conv_kernel_size=3)
    tnn = TNNMixer(4, 6, is_causal=False, rpe_hidden_size=8)
    for mixer in (ski, tnn):
        errors = [learned_ski_errors(mixer.operator, 48, points, channels=2)["ski"] for points in (4, 24)]
        assert 0 < errors[1] < errors[0]
    assert learned_ski_errors(tnn.operator, 48, 6, channels=99)["channels"] == 6
    causal = learned_ski_errors(TNNMixer(4, 6, rpe_hidden_size=8).operator, 48, 24, channels=3)
    assert causal["best"] > 0.01  # the edge at lag 0 has no low rank
    for mixer in (
        SKITNNMixer(4, 48, 6, num_inducing_points=12, conv_kernel_size=3, channel_decays=[0.8, 0.95]),
        TNNMixer(4, 6, is_causal=False, rpe_hidden_size=8, channel_decays=[0.8, 0.95]),
    ):
        one = learned_ski_errors(mixer.operator, 48, 12, channels=1)["ski"]  # the first channel
        mixer.operator.kernel.decay = 0.8
        assert one == pytest.approx(learned_ski_errors(mixer.operator, 48, 12, channels=1)["ski"])
        mixer.operator.kernel.decay = 0.95
        assert one != pytest.approx(learned_ski_errors(mixer.operator, 48, 12, channels=1)["ski"])
    for is_causal in (True, False):
        mixer = TNNMixer(4, 1, is_causal=is_causal, rpe_hidden_size=8, kernel_max_lag=3)
        matrix = toeplitz_matrix(mixer.operator.kernel(16).double(), 16, causal=is_causal)[0]
        norm = torch.linalg.matrix_norm(matrix, ord=2).item()
        assert learned_ski_errors(mixer.operator, 16, 4)["norm"] == pytest.approx(norm, rel=1e-5)
    with pytest.raises(ValueError, match="FrequencyKernel has values at integer lags only"):
        learned_ski_errors(FDTNNMixer(4, 16).operator, 16, 4)


def test_plot(tmp_path):
    kernel = gaussian_kernel(32)
    bound = derivative_bound(kernel, 2, 40)
    rows = {str(n): [ski_error(kernel, 32, p, derivative=bound) for p in (4, 8, 16)] for n in range(3)}
    plot_ski_error(rows, tmp_path / "ski.png", title="title")
    assert (tmp_path / "ski.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_ski_error({"a": []}, tmp_path / "no.png")
