"""Both sides of what theorems 3 and 4 and proposition 4 claim of kernels given by their response."""

import math

import numpy as np
import pytest
import torch

from hf_seqmix.analysis.kernels.decay import random_encoders
from hf_seqmix.analysis.kernels.inequalities import inequality_rows, response_derivatives
from hf_seqmix.analysis.kernels.response_tails import response_at


@pytest.mark.parametrize("mode", ["omega", "cosine"])
def test_derivatives_are_those_of_the_chebyshev_interpolant(mode):
    (encoder,) = random_encoders("gelu", [0], channels=2, hidden_size=8, num_layers=1)
    at = torch.linspace(0.3, 2.8, 7, dtype=torch.float64)
    found = response_derivatives(encoder, at, mode, 2)
    assert found.shape == (3, 2, 7)

    def response(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return response_at(encoder, torch.from_numpy((x + 1) * math.pi / 2), mode)[0][1].numpy()

    fit = np.polynomial.Chebyshev.interpolate(response, 120)
    for order in range(3):
        wanted = fit.deriv(order)(at.numpy() * 2 / math.pi - 1) * (2 / math.pi) ** order
        np.testing.assert_allclose(found[order, 1], wanted, atol=1e-6 * max(1, abs(wanted).max()))


def test_smooth_responses_of_the_cosine_satisfy_them_and_those_of_omega_do_not():
    smooth, mirrored, kinked = (
        {row["order"]: row for row in inequality_rows(random_encoders(name, [0, 1], channels=3), mode, (0, 1, 3))}
        for name, mode in (("silu", "cosine"), ("silu", "omega"), ("relu", "cosine"))
    )
    for row in (*smooth.values(), mirrored[0], mirrored[1], kinked[0], kinked[1]):
        assert row["share_that_hold"] == 1 and 0.01 < row["left_over_right_worst"] < 1
    for row in (mirrored[3], kinked[3]):  # the tail is 1 / t^2, so that t^3 times it grows with the lag
        assert row["share_that_hold"] == 0 and row["left_over_right"] > 10
    assert smooth[0]["square_sum_ratio"] == pytest.approx(1, abs=1e-5)  # theorem 4 with its constant
    assert mirrored[0]["square_sum_ratio"] == pytest.approx(1, abs=1e-5)


def test_an_order_below_0_is_refused():
    (encoder,) = random_encoders("gelu", [0], channels=1, hidden_size=4, num_layers=1)
    with pytest.raises(ValueError, match="order is -1; give 0 or more"):
        response_derivatives(encoder, torch.zeros(1, dtype=torch.float64), "omega", -1)
