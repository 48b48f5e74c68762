"""SKI's kernels against dense W and A and a convolution tap by tap in float64, on the same rounded inputs."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hf_seqmix.ops.short_convolution.product import short_conv_dense
from hf_seqmix.ops.ski.interpolation import InducingGrid, interpolation_matrix
from hf_seqmix.ops.ski.kernels import operator as ski
from hf_seqmix.ops.ski.kernels import points as inducing
from hf_seqmix.ops.ski.product import ski_matmul_dense
from hf_seqmix.ops.toeplitz.product import toeplitz_matmul_dense
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures("poisoned_memory", "poisoned_empty")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16

# batch, channels, length, taps, grid. Up to 16 channels, a tile of `_spread` has 256 tokens; from 64 on, 64.
CASES = [
    (3, 5, 1, 3, InducingGrid(9, 2), torch.float32),
    (1, 1, 2, 1, InducingGrid(2, 2), torch.float16),
    (2, 3, 7, 33, InducingGrid(64, 5, 3), HALF),
    (1, 20, 40, 3, InducingGrid(40, 40), HALF),
    (1, 20, 41, 3, InducingGrid(40, 40, 3), torch.float32),
    (2, 70, 63, 1, InducingGrid(97, 17), torch.float32),
    (1, 64, 64, 17, InducingGrid(64, 2), HALF),
    (1, 70, 65, 3, InducingGrid(50, 16, 3), torch.float16),
    (1, 33, 131, 3, InducingGrid(100, 33, 3), torch.float32),
    (3, 2, 255, 3, InducingGrid(200, 7), torch.float32),
    (2, 2, 257, 1, InducingGrid(257, 40, 3), HALF),
    (1, 4, 540, 3, InducingGrid(500, 3), HALF),
]
NAMES = [f"{n} tokens, {d} channels, {m} taps, {str(g)[12:]}, {str(t)[6:]}" for _, d, n, m, g, t in CASES]


def make(
    batch: int, channels: int, length: int, taps: int, grid: InducingGrid, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """Return x, taps, kernel and g."""
    x, g = (torch.randn(batch, length, channels).to(DEVICE, dtype).transpose(1, 2) for _ in range(2))
    kernel = torch.randn(channels, 2 * grid.points(length) - 1, device=DEVICE)
    return x, torch.randn(channels, taps, device=DEVICE), kernel, g


def exact(x: Tensor, taps: Tensor, kernel: Tensor, g: Tensor, grid: InducingGrid) -> tuple[Tensor, ...]:
    """Return y, dx, dtaps and dkernel."""
    tensors = [t.double().requires_grad_() for t in (x, taps, kernel)]
    y = short_conv_dense(tensors[0], tensors[1]) + ski_matmul_dense(tensors[0], tensors[2], grid)
    return y.detach(), *torch.autograd.grad(y, tensors, g.double())


def computed(
    x: Tensor, taps: Tensor, kernel: Tensor, g: Tensor, grid: InducingGrid, programs: int = inducing.PROGRAMS
) -> tuple[Tensor | None, ...]:
    y, collected = ski.ski_forward(x, taps, kernel, grid, programs)
    return y, *ski.ski_backward(g, x, taps, kernel, collected, grid, (True, True, True), programs)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if case[2] > 65 and DEVICE == "cpu" else []) for case in CASES],
    ids=NAMES,
)
@pytest.mark.one_in(4)
def test_equals_the_definition(case):
    *_, grid, dtype = case
    inputs = make(*case)
    y, dx, dtaps, dkernel = computed(*inputs, grid)
    for actual, expected in zip((y, dx, dtaps, dkernel), exact(*inputs, grid), strict=True):
        assert_close(actual, expected, dtype)
    for tensor in (y, dx):
        assert tensor.dtype == dtype and tensor.transpose(1, 2).is_contiguous()
    # Sums of half-precision numbers, but in float32 throughout.
    assert dtaps.dtype == dkernel.dtype == torch.float32
    assert_close(dtaps, exact(*inputs, grid)[2], torch.float32)


@pytest.mark.parametrize("degree", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.one_in(2)
def test_what_is_collected(degree, dtype):
    grid = InducingGrid(90, 37, degree)
    x, *_ = make(2, 3, 101, 1, grid, dtype)
    expected = torch.einsum("bci,ip->bcp", x.double(), interpolation_matrix(101, grid).to(x.device))
    # In half precision, W is the sum of two numbers.
    assert_close(ski.collect(x, grid), expected, torch.float32, factor=1 if dtype == torch.float32 else 10)


@pytest.mark.parametrize("degree", [1, 3])
def test_constants_are_interpolated_exactly(degree):
    grid = InducingGrid(60, 13, degree)
    x, taps = torch.zeros(1, 2, 75, device=DEVICE), torch.zeros(2, 1, device=DEVICE)
    ones = torch.ones(1, 2, grid.points(75), device=DEVICE)
    y = ski.spread(x, taps, ones, grid)
    assert (y - 1).abs().max() <= (0 if degree == 1 else 1e-6)


def test_grids_whose_places_exceed_32_bits():
    grid = InducingGrid(2**26 + 6, 2**26 + 1)
    inputs = make(1, 2, 40, 3, grid)
    for actual, expected in zip(computed(*inputs, grid), exact(*inputs, grid), strict=True):
        assert_close(actual, expected)


def layouts() -> dict[str, Tensor]:
    dense = torch.randn(2, 19, 5, device=DEVICE)
    return {
        "positions contiguous": torch.randn(2, 5, 19, device=DEVICE),
        "part of wider rows": torch.randn(2, 19, 15, device=DEVICE)[..., 4:9].transpose(1, 2),
        "every second token": torch.randn(2, 38, 5, device=DEVICE)[:, ::2].transpose(1, 2),
        "backwards in batch": dense.flip(0).transpose(1, 2),
        "one number for all": torch.randn(1, 1, 1, device=DEVICE).expand(2, 5, 19),
        "one row for all": torch.randn(5, device=DEVICE).expand(2, 19, 5).transpose(1, 2),
    }


@pytest.mark.parametrize("name", list(layouts()))
@pytest.mark.one_in(6)
def test_layouts(name):
    grid = InducingGrid(25, 6)
    _, taps, kernel, _ = make(2, 5, 19, 3, grid)
    x, g = layouts()[name], layouts()[name] + 0 * layouts()["part of wider rows"]
    # Parameters of other layouts, too.
    taps, kernel = taps.t().contiguous().t(), kernel.repeat_interleave(2, dim=1)[:, ::2]
    for inputs in ((x, taps, kernel, g), (g, taps, kernel, x)):
        for actual, expected in zip(computed(*inputs, grid), exact(*inputs, grid), strict=True):
            assert_close(actual, expected)


def test_only_what_is_needed():
    grid = InducingGrid(30, 5)
    x, taps, kernel, g = make(2, 3, 29, 5, grid)
    _, *expected = exact(x, taps, kernel, g, grid)
    collected = ski.collect(x, grid)
    for needs in ((True, False, False), (False, True, False), (False, False, True), (False, True, True)):
        found = ski.ski_backward(g, x, taps, kernel, collected, grid, needs)
        assert [d is not None for d in found] == list(needs)
        for actual, wanted in zip(found, expected, strict=True):
            if actual is not None:
                assert_close(actual, wanted)


def test_many_taps():
    """The gradient takes several launches."""
    grid = InducingGrid(20, 3)
    for needs in ((True, True, True), (False, True, False), (True, False, False)):
        x, taps, kernel, g = make(2, 3, 17, 11, grid)
        found = ski.ski_backward(g, x, taps, kernel, ski.collect(x, grid), grid, needs, most_taps=4)
        for actual, expected in zip(found, exact(x, taps, kernel, g, grid)[1:], strict=True):
            if actual is not None:
                assert_close(actual, expected)


def test_programs_of_several_tiles():
    """As on large inputs, where a program has many tokens, sequences and points."""
    grid = InducingGrid(300, 18)
    inputs = make(2, 3, 300, 3, grid)
    for actual, expected in zip(computed(*inputs, grid, programs=1), exact(*inputs, grid), strict=True):
        assert_close(actual, expected)


# The interpreter runs programs one after another: they cannot differ there but by memory never written.
@pytest.mark.parametrize("dtype", [pytest.param(HALF, marks=pytest.mark.slow if DEVICE == "cpu" else [])])
def test_results_repeat(dtype):
    grid = InducingGrid(70, 9, 3)
    inputs = make(2, 5, 70 if DEVICE == "cuda" else 20, 3, grid, dtype)
    for first, second in zip(computed(*inputs, grid), computed(*inputs, grid), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("points", [17, 1, 2, 8, 33])
@pytest.mark.one_in(5)
def test_small_toeplitz_products(points):
    batch, channels = 3, 20
    z, g = (torch.randn(batch, points, channels, device=DEVICE) for _ in range(2))
    kernel = torch.randn(2 * points - 1, channels, device=DEVICE)
    x, taps = z.mT.double().requires_grad_(), kernel.t().double().requires_grad_()
    y = toeplitz_matmul_dense(x, taps, causal=False)
    dx, dtaps = torch.autograd.grad(y, (x, taps), g.mT.double())
    assert_close(inducing.channel_toeplitz(z, kernel).mT, y.detach())
    assert_close(inducing.channel_toeplitz(g, kernel, transpose=True).mT, dx)
    assert_close(inducing.channel_toeplitz_kernel_gradient(g, z).t(), dtaps)


@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_parameters_beyond_float16(scale):
    grid = InducingGrid(32, 5)
    x, taps, kernel, g = make(1, 3, 32, 3, grid)
    x = (x / scale**0.7).half()
    taps, kernel = taps * scale, kernel * scale
    y, _ = ski.ski_forward(x, taps, kernel, grid)
    assert_close(y, exact(x, taps, kernel, g, grid)[0])
