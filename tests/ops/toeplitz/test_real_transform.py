import pytest
import torch

from hf_seqmix.ops.toeplitz.product import toeplitz_matmul_dense
from hf_seqmix.ops.toeplitz.real_transform import real_product
from tests.tolerances import assert_close


@pytest.mark.parametrize("causal", [True, False])
def test_product_by_two_levels(causal):
    for length in (1, 2, 31, 32, 33, 63, 64, 65, 128, 200, 515):
        x = torch.randn(2, 3, length)
        kernel = torch.randn(3, length if causal else 2 * length - 1)
        exact = toeplitz_matmul_dense(x.double(), kernel.double(), causal)
        assert_close(real_product(x.double(), kernel.double(), causal), exact)
        assert_close(real_product(x, kernel, causal), exact, torch.float32)
