"""Toeplitz products by tiles against the dense matrices in float64, on the same rounded inputs."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hf_seqmix.ops import toeplitz_matmul_dense
from hf_seqmix.ops.toeplitz.kernels import tiles
from hf_seqmix.ops.toeplitz.kernels.tile_parts import lay_out_taps
from hf_seqmix.ops.toeplitz.kernels.tile_sizes import GradientTiles, ProductTiles, gradient_tiles, product_tiles
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures("poisoned_memory")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16


def make(length: int, causal: bool, dtype: torch.dtype, batch: int = 3, channels: int = 1) -> tuple[Tensor, ...]:
    """Return x, kernel and g."""
    x, g = (torch.randn(batch, channels, length).to(DEVICE, dtype) for _ in range(2))
    return x, torch.randn(channels, length if causal else 2 * length - 1, device=DEVICE), g


def exact(x: Tensor, kernel: Tensor, g: Tensor, causal: bool) -> tuple[Tensor, ...]:
    """Return y, dx and dk."""
    x, kernel = x.double().requires_grad_(), kernel.double().requires_grad_()
    y = toeplitz_matmul_dense(x, kernel, causal)
    return y.detach(), *torch.autograd.grad(y, (x, kernel), g.double())


def check(
    x: Tensor,
    kernel: Tensor,
    g: Tensor,
    causal: bool,
    product: ProductTiles | None = None,
    gradient: GradientTiles | None = None,
) -> None:
    y, dx, dkernel = exact(x, kernel, g, causal)
    for actual, expected in (
        (tiles.toeplitz_tiles(x, kernel, causal, tiles=product), y),
        (tiles.toeplitz_tiles(g, kernel, causal, transpose=True, tiles=product), dx),
    ):
        assert actual.dtype == x.dtype and actual.is_contiguous()
        assert_close(actual, expected)
    actual = tiles.toeplitz_tiles_kernel_gradient(g, x, causal, tiles=gradient)
    assert_close(actual, dkernel)  # summed in float32, and not rounded


# length, dtype, batch, channels
SIZES = [
    (1, torch.bfloat16, 3, 2),
    (1, torch.float32, 1, 1),
    (2, torch.float16, 1, 3),
    (7, torch.float32, 3, 1),
    (16, torch.float32, 3, 1),
    (17, torch.float16, 1, 1),
    (32, torch.bfloat16, 1, 2),
    (33, torch.bfloat16, 1, 1),
    (63, torch.float16, 1, 1),
    (64, torch.float32, 1, 1),
    (65, torch.bfloat16, 3, 1),
    (129, torch.float16, 3, 1),
    (200, torch.bfloat16, 1, 1),
]


@pytest.mark.parametrize("causal", [True, False], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.one_in(4)
def test_products_and_gradient(size, causal):
    length, dtype, batch, channels = size
    x, kernel, g = make(length, causal, dtype, batch, channels)
    check(x, kernel, g, causal)


KINDS = [
    (ProductTiles(2, 8, 16, 16, 1), GradientTiles(2, 8, 16, 2, 1)),
    (ProductTiles(1, 16, 32, 16, 1), GradientTiles(1, 16, 32, 1, 1)),
    (ProductTiles(4, 16, 64, 32, 4), GradientTiles(4, 8, 64, 3, 4)),
    (ProductTiles(16, 2, 128, 64, 4), GradientTiles(16, 1, 16, 5, 1)),
]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.one_in(2)
def test_every_kind_of_tile(kind, causal):
    # Chunks smaller than blocks, more rows and batches than there are, lags shared unevenly by programs.
    x, kernel, g = make(72, causal, torch.float32)
    check(x, kernel, g, causal, *kind)


def strided(x: Tensor, how: str) -> Tensor:
    """Return the values of x in other strides, with NaN wherever there is a place between or around them."""
    batch, channels, length = x.shape
    nan = float("nan")
    if how == "channels last":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "every other":
        place = x.new_full((batch, channels, 2 * length), nan)[..., ::2]
    elif how == "inside":
        place = x.new_full((batch + 2, channels + 2, length + 5), nan)[1:-1, 1:-1, 3:-2]
    else:
        place = x.new_full((channels, batch, length + 8), nan).transpose(0, 1)[..., :length]
    place.copy_(x)
    return place


@pytest.mark.parametrize(
    "how, causal", [("channels last", True), ("every other", False), ("inside", True), ("batches between", False)]
)
def test_strides(how, causal):
    x, kernel, g = make(24, causal, torch.float16, channels=2)
    check(strided(x, how), strided(kernel[None], how)[0], strided(g, how), causal)


def test_expanded_gradient():
    x, kernel, _ = make(24, True, torch.float32, channels=2)
    check(x, kernel, torch.ones(1, 1, 1, device=DEVICE).expand_as(x), True)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("size", [1e6, 1e-6])
def test_taps_beyond_float16(size, transpose):
    x, kernel, _ = make(33, False, torch.float16, channels=3)
    x = x * (1e-3 if size > 1 else 1e3)  # or the products would leave float16, too
    kernel *= torch.tensor([size, 1.0, 0.0], device=DEVICE)[:, None]
    kernel = torch.where(torch.rand_like(kernel) < 0.5, kernel, kernel * 1e-3)
    y = toeplitz_matmul_dense(x.double(), (kernel.flip(-1) if transpose else kernel).double(), False)
    actual = tiles.toeplitz_tiles(x, kernel, False, transpose)
    for channel in range(3):
        assert_close(actual[:, channel], y[:, channel])


@pytest.mark.parametrize("largest", [0.0, 1e-44, 1e-38, 1e-30, 1.0, 3e38, float("inf")])
def test_scale_of_taps_in_float16(largest):
    kernel = torch.tensor([[0.25, 1.0, -0.5]], device=DEVICE) * largest
    table, unscale = lay_out_taps(kernel.nan_to_num(posinf=largest), torch.float16, True, False, 4, 4)
    assert table.dtype == torch.float16 and table.shape == (1, 8)
    back = table.double() * unscale.double()
    assert (back[0, [0, 1, 2, 3, 7]] == 0).all()
    if 0 < largest < float("inf"):
        assert_close(back[:, 4:7], kernel.double(), torch.float16, factor=1e3 if largest < 1e-40 else 1)
        assert table.abs().max() >= 2**14 or largest < 1e-30


def test_empty():
    kernel = torch.ones(2, 5, device=DEVICE)
    x = torch.ones(0, 2, 5, device=DEVICE)
    assert tiles.toeplitz_tiles(x, kernel, True).shape == (0, 2, 5)
    assert tiles.toeplitz_tiles_kernel_gradient(x, x, True).equal(torch.zeros(2, 5, device=DEVICE))


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_sizes_fit_the_kernels(causal, itemsize):
    for batch in (1, 2, 3, 8, 33, 64, 1000):
        for channels in (1, 1024):
            for length in (1, 16, 100, 512, 1000, 2048, 9000):
                product = product_tiles(batch, channels, length, causal, itemsize)
                gradient = gradient_tiles(batch, channels, length, causal, itemsize)
                assert 16 <= product.batches * product.rows <= 128
                assert product.chunk >= 16 and product.size % product.chunk == 0
                # Sums that fill more registers than this would be spilled.
                assert product.batches * product.rows * product.size <= 64 * 32 * product.warps
                assert gradient.batches * gradient.rows >= 16 and 16 <= gradient.size <= 64
                assert 1 <= gradient.parts <= 2 * -(-length // gradient.size)
