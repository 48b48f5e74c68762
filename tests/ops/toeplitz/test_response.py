"""Products with a frequency response against the same by taps, and their derivatives."""

import pytest
import torch

from hf_seqmix.ops.toeplitz.hilbert import two_sided_taps
from hf_seqmix.ops.toeplitz.product import toeplitz_matmul_dense
from hf_seqmix.ops.toeplitz.response import response_matmul, response_suits
from tests.tolerances import assert_close
from tests.transforms import check_transforms


def inputs(batch: int, channels: int, length: int, last: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(batch, channels, length, dtype=dtype)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    return x, torch.randn(2, channels, last + 1, dtype=real)


def by_taps(x: torch.Tensor, response: torch.Tensor) -> torch.Tensor:
    last, length = response.shape[2] - 1, x.shape[-1]
    taps = two_sided_taps(torch.complex(*response))[:, last - length + 1 : last + length]
    return toeplitz_matmul_dense(x.double(), taps.double(), causal=False)


@pytest.mark.parametrize(("length", "last"), [(1, 1), (1, 4), (7, 7), (6, 8), (12, 13), (64, 64)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equals_the_product_by_taps(length: int, last: int, dtype: torch.dtype) -> None:
    x, response = inputs(2, 3, length, last, dtype)
    y = response_matmul(x, response)
    assert y.dtype == dtype
    assert_close(y, by_taps(x, response))


@pytest.mark.parametrize(("length", "last"), [(1, 1), (5, 5), (4, 6)])
def test_derivatives(length: int, last: int) -> None:
    x, response = inputs(2, 3, length, last, torch.float64)
    x.requires_grad_()
    response.requires_grad_()
    upstream = torch.randn_like(x)
    actual = torch.autograd.grad(response_matmul(x, response, block=2), (x, response), upstream)
    expected = torch.autograd.grad(by_taps(x, response), (x, response), upstream)
    assert_close(actual[0], expected[0])
    assert_close(actual[1], expected[1])
    for block in (None, 2):
        assert torch.autograd.gradcheck(lambda x, r, block=block: response_matmul(x, r, block), (x, response))
        assert torch.autograd.gradgradcheck(lambda x, r, block=block: response_matmul(x, r, block), (x, response))


@pytest.mark.parametrize(("length", "last"), [(1, 1), (5, 5), (4, 6)])
def test_transforms_of_torch_func(length: int, last: int) -> None:
    check_transforms(response_matmul, by_taps, *inputs(2, 3, length, last, torch.float64))


def test_imaginary_parts_at_zero_and_pi_have_no_effect_on_any_device() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"  # cuFFT takes them for numbers
    x, response = (part.to(device) for part in inputs(2, 3, 12, 16, torch.float64))
    changed = response.clone()
    changed[1, :, [0, -1]] = torch.nan
    assert_close(response_matmul(x, changed), response_matmul(x, response))
    assert_close(two_sided_taps(torch.complex(*changed)), two_sided_taps(torch.complex(*response)))


def test_no_positions() -> None:
    x, response = inputs(2, 3, 0, 4, torch.float32)
    assert response_matmul(x, response.requires_grad_()).shape == (2, 3, 0)


def test_wrong_shapes_are_refused() -> None:
    x, response = inputs(2, 3, 5, 4, torch.float32)
    with pytest.raises(ValueError, match="length at most M"):
        response_matmul(x, response)
    with pytest.raises(ValueError, match="length at most M"):
        response_matmul(x[:, :2, :3], response)


def test_integers_are_refused() -> None:
    x, response = inputs(2, 3, 4, 4, torch.float32)
    for given in ((x.long(), response), (x, response.long())):
        with pytest.raises(ValueError, match="x and response must be real floating-point tensors, got torch"):
            response_matmul(*given)


def test_where_a_response_suits() -> None:
    assert response_suits(512, 512)
    assert response_suits(500, 512)
    assert not response_suits(513, 512)  # lags beyond the grid
    assert not response_suits(100, 512)  # a much shorter transform is enough
    assert not response_suits(509, 509)  # 2 * 509 is no fast length
