"""What earlier inputs add to a causal product, against the matrices and against the product of all inputs."""

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops.toeplitz.continuation import toeplitz_continuation, toeplitz_continuation_dense
from hf_seqmix.ops.toeplitz.product import toeplitz_matmul_dense
from tests.tolerances import assert_close

SIZES = [(1, 1), (1, 6), (7, 1), (5, 5), (64, 16), (63, 130)]


def inputs(earlier: int, length: int, spare: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 5, earlier, dtype=dtype), torch.randn(5, earlier + length + spare, dtype=dtype)


@pytest.mark.parametrize(("earlier", "length"), SIZES)
def test_with_the_new_inputs_it_is_the_product_of_all(earlier: int, length: int) -> None:
    past, kernel = inputs(earlier, length)
    new = torch.randn(3, 5, length, dtype=torch.float64)
    whole = toeplitz_matmul_dense(torch.cat([past, new], dim=-1), kernel)[..., earlier:]
    own = toeplitz_matmul_dense(new, kernel[:, :length])
    assert_close(own + toeplitz_continuation_dense(past, kernel, length), whole)
    assert_close(own + toeplitz_continuation(past, kernel, length), whole)


@pytest.mark.parametrize(("earlier", "length"), SIZES)
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_derivatives_are_those_of_the_definition(earlier: int, length: int, wanted: tuple[bool, bool]) -> None:
    past, kernel = inputs(earlier, length, spare=3)
    upstream = torch.randn(3, 5, length, dtype=torch.float64)
    arguments = [x.requires_grad_(wants) for x, wants in zip((past, kernel), wanted, strict=True)]
    into = [x for x in arguments if x.requires_grad]
    expected = torch.autograd.grad(toeplitz_continuation_dense(past, kernel, length), into, upstream)
    actual = torch.autograd.grad(toeplitz_continuation(past, kernel, length), into, upstream)
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precisions_are_transformed_in_float32(dtype: torch.dtype) -> None:
    past, kernel = inputs(300, 70, dtype=torch.float32)
    past = past.to(dtype)
    y = toeplitz_continuation(past.transpose(1, 2).contiguous().transpose(1, 2), kernel, 70)
    assert y.dtype == torch.float32
    assert_close(y, toeplitz_continuation_dense(past.double(), kernel.double(), 70), torch.float32)


def test_shapes_that_do_not_fit_are_refused() -> None:
    past, kernel = inputs(4, 3)
    with pytest.raises(ValueError, match="4 earlier and 4 new positions need at least one each and 8 taps"):
        toeplitz_continuation(past, kernel, 4)
    with pytest.raises(ValueError, match=r"expected past of shape .* got \(3, 5, 4\) and \(4, 7\)"):
        toeplitz_continuation(past, kernel[:4], 3)
    with pytest.raises(ValueError, match="0 earlier and 3 new positions"):
        toeplitz_continuation(past[..., :0], kernel, 3)
