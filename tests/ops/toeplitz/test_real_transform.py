import pytest
import torch

from hf_seqmix.ops.toeplitz.product import toeplitz_matmul_dense
from hf_seqmix.ops.toeplitz.real_transform import convolution_product, real_product
from tests.markers import needs_tracer_of_lengths
from tests.tolerances import assert_close


@pytest.mark.parametrize("product", [real_product, convolution_product])
@pytest.mark.parametrize("causal", [True, False])
def test_both_are_the_dense_product(causal, product):
    for length in (1, 2, 31, 32, 33, 63, 64, 65, 128, 200, 515):
        x = torch.randn(2, 3, length)
        kernel = torch.randn(3, length if causal else 2 * length - 1)
        exact = toeplitz_matmul_dense(x.double(), kernel.double(), causal)
        assert_close(product(x.double(), kernel.double(), causal), exact)
        assert_close(product(x, kernel, causal), exact, torch.float32)


@needs_tracer_of_lengths
def test_one_graph_serves_every_length():
    """A tracer that is given bounds has to prove what the graph asks of lengths."""

    class Mixes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            lags = torch.arange(1 - x.shape[2], x.shape[2]).to(x.dtype)
            return real_product(x, lags.cos().expand(x.shape[1], -1), causal=False)

    shapes = {"x": {0: torch.export.Dim("batch", min=2, max=64), 2: torch.export.Dim("length", min=2, max=4096)}}
    program = torch.export.export(Mixes(), (torch.ones(2, 48, 12),), dynamic_shapes=shapes).module()
    for length in (5, 100):
        x = torch.randn(3, 48, length)
        assert_close(program(x), Mixes()(x))
