"""Taps from a frequency response, against the definition of the discrete Hilbert transform and of the Fourier sum."""

import math

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops.toeplitz.hilbert import causal_taps, hilbert_transform_dense, two_sided_taps
from hf_seqmix.ops.toeplitz.product import toeplitz_matmul, toeplitz_matrix
from tests.tolerances import assert_close

LAST_LAGS = (1, 2, 3, 7, 8, 16, 31, 97)


def fourier(taps: Tensor, lags: Tensor, last: int) -> Tensor:
    """K(omega_q) = sum_t k[t] exp(-i omega_q t) at omega_q = pi q / M, term by term."""
    angles = lags.double()[:, None] * torch.arange(last + 1).double() * (math.pi / last)
    return taps.to(torch.complex128) @ torch.complex(angles.cos(), -angles.sin())


@pytest.mark.parametrize("last", LAST_LAGS)
def test_causal_taps_have_the_given_real_part(last):
    response = torch.randn(3, last + 1, dtype=torch.float64)
    taps = causal_taps(response)
    assert taps.shape == (3, last + 1)
    spectrum = fourier(taps, torch.arange(last + 1), last)
    assert_close(spectrum.real, response)
    torch.testing.assert_close(spectrum.imag, -hilbert_transform_dense(response), rtol=1e-11, atol=1e-12)
    # A kernel that is twice as long has the same response only if everything beyond M is zero.
    full = torch.fft.irfft(spectrum, n=2 * last)
    assert_close(full[:, : last + 1], taps)
    assert full[:, last + 1 :].abs().max() < 1e-12 if last > 1 else True


def test_doubling_the_last_tap_as_published_changes_the_response():
    response = torch.randn(2, 9, dtype=torch.float64)
    taps = causal_taps(response)
    taps[:, -1] *= 2
    assert (fourier(taps, torch.arange(9), 8).real - response).abs().max() > 1e-3


def test_hilbert_transform_by_hand():
    # cos -> sin: the transform of a cosine in omega is the sine, for which the kernel is one tap at lag 1.
    q = torch.arange(17, dtype=torch.float64)
    angles = math.pi * q / 16
    assert_close(hilbert_transform_dense(angles.cos()[None]), angles.sin()[None])
    taps = causal_taps(angles.cos()[None])
    assert_close(taps, torch.nn.functional.one_hot(torch.tensor([1]), 17).double())


@pytest.mark.parametrize("last", LAST_LAGS)
def test_two_sided_taps_have_the_given_response(last):
    response = torch.randn(3, last + 1, dtype=torch.complex128)
    response[:, [0, last]] = response[:, [0, last]].real.to(torch.complex128)
    taps = two_sided_taps(response)
    assert taps.shape == (3, 2 * last + 1)
    assert_close(torch.view_as_real(fourier(taps, torch.arange(-last, last + 1), last)), torch.view_as_real(response))


def test_imaginary_parts_at_zero_and_pi_have_no_effect():
    response = torch.randn(2, 8, dtype=torch.complex128)
    changed = response.clone()
    changed[:, 0] += 3j
    changed[:, -1] -= 2j
    assert_close(two_sided_taps(changed), two_sided_taps(response))


@pytest.mark.parametrize("last", [8, 13])
def test_the_causal_operator_is_the_circular_product_for_inputs_up_to_m(last):
    """The product y = irfft(K rfft(x, 2M)) equals the lower-triangular Toeplitz product of the taps."""
    response = torch.randn(3, last + 1, dtype=torch.float64)
    spectrum = torch.complex(response, -hilbert_transform_dense(response))
    taps = causal_taps(response)
    for length in (1, last - 1, last):
        x = torch.randn(2, 3, length, dtype=torch.float64)
        circular = torch.fft.irfft(spectrum * torch.fft.rfft(x, n=2 * last), n=2 * last)[..., :length]
        assert_close(toeplitz_matmul(x, taps[:, :length]), circular)
        matrix = toeplitz_matrix(taps[:, :length], length)
        assert not matrix.triu(1).any()
        assert_close(torch.einsum("cij,bcj->bci", matrix, x), circular)


@pytest.mark.parametrize("last", [8, 13])
def test_the_bidirectional_operator_is_the_circular_product_for_inputs_up_to_m(last):
    response = torch.randn(3, last + 1, dtype=torch.complex128)
    taps = two_sided_taps(response)
    for length in (1, last - 1, last):
        x = torch.randn(2, 3, length, dtype=torch.float64)
        circular = torch.fft.irfft(response * torch.fft.rfft(x, n=2 * last), n=2 * last)[..., :length]
        kernel = taps[:, last - length + 1 : last + length]
        assert_close(toeplitz_matmul(x, kernel, causal=False), circular)


@pytest.mark.parametrize("last", [1, 4, 5])
def test_gradients(last):
    real = torch.randn(2, last + 1, dtype=torch.float64, requires_grad=True)
    imaginary = torch.randn(2, last + 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(causal_taps, real)
    assert torch.autograd.gradgradcheck(causal_taps, real)
    assert torch.autograd.gradcheck(lambda r, i: two_sided_taps(torch.complex(r, i)), (real, imaginary))


def test_float32():
    response = torch.randn(3, 65)
    assert_close(causal_taps(response), causal_taps(response.double()))
    assert causal_taps(response).dtype == torch.float32


def test_bad_responses_are_refused():
    with pytest.raises(ValueError, match="at least, got 1 of them"):
        causal_taps(torch.randn(2, 1))
    with pytest.raises(ValueError, match="by its real part, got a complex"):
        causal_taps(torch.randn(2, 4, dtype=torch.complex64))
    for wrong, message in (
        (torch.ones(2, 4, dtype=torch.long), "of floating point, got torch.int64"),
        (torch.ones(0, 4), "at least one channel"),
        (torch.ones(4), r"must be \(channels, M \+ 1\)"),
    ):
        for taps in (causal_taps, two_sided_taps):
            with pytest.raises(ValueError, match=message):
                taps(wrong)
    with pytest.raises(ValueError, match="response is complex, but imaginary is given"):
        two_sided_taps(torch.randn(2, 4, dtype=torch.complex64), torch.randn(2, 4))
    with pytest.raises(ValueError, match=r"imaginary has shape \(1, 4\) .* of the shape of response, \(2, 4\)"):
        two_sided_taps(torch.randn(2, 4), torch.randn(1, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    response, imaginary = torch.randn(2, 3, 9).to(dtype)
    assert torch.equal(causal_taps(response), causal_taps(response.float()).to(dtype))
    expected = two_sided_taps(response.float(), imaginary.float()).to(dtype)
    assert torch.equal(two_sided_taps(response, imaginary), expected)
