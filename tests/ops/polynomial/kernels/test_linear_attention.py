"""Causal linear attention and running sums in Triton, against the definition in float64 on the same rounded inputs."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hf_seqmix.ops import forced, linear_attention, polynomial_product
from hf_seqmix.ops.common.backend import kernel_module
from hf_seqmix.ops.polynomial import linear_attention as face
from hf_seqmix.ops.polynomial.kernels import linear_attention as kernels
from hf_seqmix.ops.polynomial.kernels import running_mean as running_sums
from hf_seqmix.ops.polynomial.kernels import tiles
from tests.tolerances import TOLERANCE, assert_close

pytestmark = pytest.mark.usefixtures("poisoned_memory")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(DEVICE, dtype)


def dense(
    a: Tensor, b: Tensor, c: Tensor, state: Tensor | None, reverse: bool, outer: Tensor | None, inner: Tensor | None
) -> Tensor:
    """The definition, by the matrix of all products, in float64."""
    query, key, value = (x.double().transpose(1, 2) for x in (a, b, c))
    if inner is not None:
        key = key * inner.double()[:, None, :, None]
    scores = query @ key.mT
    y = (scores.triu() if reverse else scores.tril()) @ value
    y = y if state is None else y + query @ state.double()
    return (y if outer is None else y * outer.double()[:, None, :, None]).transpose(1, 2)


def assert_close_at_peaks(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Within the table's tolerance of the root mean square plus the entry itself, and of a quarter of it on average.

    A mean over few tokens is up to 37 times the root mean square here, and so is its rounding to half precision.
    """
    error, scale = (actual.double() - expected).abs(), expected.square().mean().sqrt()
    assert (error / (scale + expected.abs())).max() <= TOLERANCE[dtype]
    assert error.square().mean().sqrt() <= scale * TOLERANCE[dtype] / 4


# batch, length, heads, width, values: partial chunks of 16 and of 64, odd widths, and both blocks of values
SHAPES = [
    (1, 1, 1, 1, 1),
    (3, 2, 1, 3, 16),
    (1, 15, 3, 16, 3),
    (1, 16, 1, 32, 32),
    (2, 17, 1, 5, 64),
    (1, 31, 1, 64, 20),
    (1, 63, 3, 16, 16),
    (1, 64, 1, 64, 64),
    (3, 65, 1, 3, 7),
    (1, 97, 1, 100, 36),
    (1, 129, 1, 32, 100),
    (1, 140, 1, 16, 128),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.one_in(6)
def test_sums_of_every_shape(shape, dtype):
    batch, length, heads, width, values = shape
    a, b = draw(2, batch, length, heads, width, dtype=dtype)
    c = draw(batch, length, heads, values, dtype=dtype)
    state = draw(batch, heads, width, values)
    outer, inner = torch.rand(2, batch, length, device=DEVICE)
    for start, reverse, factors in ((state, False, (outer, None)), (None, True, (None, inner))):
        y = kernels.causal_sum(a, b, c, start, reverse, outer=factors[0], inner=factors[1])
        assert y.dtype == torch.float32
        assert_close(y, dense(a, b, c, start, reverse, *factors), dtype)


@pytest.mark.parametrize("programs", [1, 4, 264])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.one_in(2)
def test_any_number_of_parts(reverse, programs):
    """One part is a walk through the whole; else sums of parts come first."""
    a, b, c = draw(3, 1, 70, 2, 8)
    d, state = draw(1, 70, 2, 8), draw(1, 2, 8, 8)
    outer, inner = torch.rand(2, 1, 70, device=DEVICE)
    y = kernels.causal_sum(a, b, c, state, reverse, outer=outer, inner=inner, programs=programs)
    assert_close(y, dense(a, b, c, state, reverse, outer, inner))
    y, z = kernels.causal_sum_pair(a, d, b, c, reverse, outer=outer, inner=inner, programs=programs)
    assert_close(y, dense(a, b, c, None, reverse, outer, inner))
    assert_close(z, dense(d, c, b, None, reverse, outer, inner))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("width", "values", "length"), [(16, 16, 65), (64, 24, 130), (3, 64, 64), (20, 100, 70)])
@pytest.mark.one_in(2)
def test_pairs_of_half_precision(width, values, length, dtype):
    """In one launch where a program holds all values, in two otherwise; the gradient c comes in float32."""
    a, b = draw(2, 1, length, 1, width, dtype=dtype)
    d, c = draw(1, length, 1, values, dtype=dtype), draw(1, length, 1, values)
    inner = torch.rand(1, length, device=DEVICE)
    y, z = kernels.causal_sum_pair(a, d, b, c, True, inner=inner, dtypes=(dtype, torch.float32))
    assert (y.dtype, z.dtype) == (dtype, torch.float32)
    assert_close(y, dense(a, b, c, None, True, None, inner))
    assert_close(z, dense(d, c, b, None, True, None, inner), dtype)


def test_a_pair_whose_second_query_alone_is_in_half_precision():
    """One launch and its tiles go by the same dtype: two blocks of values would both write the second sum."""
    a, b = draw(2, 1, 20, 1, 16)
    d, c = draw(1, 20, 1, 64, dtype=torch.float16), draw(1, 20, 1, 64)
    y, z = kernels.causal_sum_pair(a, d, b, c)
    assert_close(y, dense(a, b, c, None, False, None, None), torch.float16)
    assert_close(z, dense(d, c, b, None, False, None, None), torch.float16)


def test_tiles_are_chosen_on_the_device_of_the_tensors(monkeypatch):
    """The current device may multiply otherwise."""
    current: list[torch.device] = []
    asked: list[list[torch.device]] = []

    @contextmanager
    def device_of(x: Tensor) -> Iterator[None]:
        current.append(x.device)
        yield
        current.pop()

    def watched(function: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (asked.append(current.copy()), function())[1]

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(tiles, "multiplies_shared_memory", watched(tiles.multiplies_shared_memory))
    monkeypatch.setattr(kernels, "dot_precision", watched(kernels.dot_precision))
    a, b, c = draw(3, 1, 20, 1, 16, dtype=torch.float16)
    kernels.causal_sum(a, b, c)
    kernels.causal_sum_pair(a, c, b, c)
    assert len(asked) == 5 and all(devices == [a.device] for devices in asked)


def test_float16_neither_overflows_nor_vanishes():
    """States beyond 65504, factors below the smallest numbers, and gradients of either kind."""
    a, b, c = (draw(1, 200, 1, 16, dtype=torch.float16) for _ in range(3))
    b, c = 30 * b.abs(), 30 * c.abs()
    small = torch.full((1, 1), 1e-9, device=DEVICE)
    y = kernels.causal_sum(a, b, c, outer=small)
    assert dense(a, b, c, None, False, None, None).abs().max() > 1e5
    assert_close(y, dense(a, b, c, None, False, small.expand(1, 200), None), torch.float16)
    for scale in (1e-9, 1e9):
        g = scale * draw(1, 200, 1, 16)
        y, z = kernels.causal_sum_pair(b, c, a, g, True, inner=small)
        assert_close(y, dense(b, a, g, None, True, None, small.expand(1, 200)), torch.float16)
        assert_close(z, dense(c, g, a, None, True, None, small.expand(1, 200)), torch.float16)
    zero = torch.zeros_like(a)
    assert not kernels.causal_sum(zero, zero, zero).any()


def test_inputs_of_any_strides():
    base = draw(3, 70, 2, 2, 9, dtype=torch.bfloat16)
    a, b, c = base.unbind()  # (length, batch, heads, width), of which batch and length change places
    a, b = a.transpose(0, 1), b.transpose(0, 1)
    c = draw(2, 9, 70, 2, dtype=torch.bfloat16).permute(0, 2, 3, 1)
    expected = dense(a, b, c, None, False, None, None)
    assert_close(kernels.causal_sum(a, b, c), expected, torch.bfloat16)
    expanded = a[:, :1].expand_as(a)
    assert_close(
        kernels.causal_sum(expanded, b, c[:, :, :1].expand_as(c)),
        dense(expanded, b, c[:, :, :1].expand_as(c), None, False, None, None),
        torch.bfloat16,
    )


def test_the_past_is_bit_unchanged_by_the_future():
    for dtype in DTYPES:
        a, b, c = (draw(1, 150, 1, 16, dtype=dtype) for _ in range(3))
        y = kernels.causal_sum(a, b, c)
        for x in (a, b, c):
            x[:, 100:] = 1000
        assert torch.equal(kernels.causal_sum(a, b, c)[:, :100], y[:, :100])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 129, 300])
@pytest.mark.one_in(6)
def test_running_sums(length, dtype):
    p, x, z = (draw(2, length, 70, dtype=dtype) for _ in range(3))
    z = z.transpose(0, 1).contiguous().transpose(0, 1)
    start, (outer, inner) = draw(2, 70), torch.rand(2, 2, length, device=DEVICE)
    for reverse, (first, last, begin, after, before) in itertools.product(
        (False, True), ((p, None, start, outer, None), (None, z, None, None, inner))
    ):
        terms = x.double() if last is None else x.double() * last.double()
        terms = terms if before is None else terms * before.double().unsqueeze(-1)
        expected = terms.flip(1).cumsum(1).flip(1) if reverse else terms.cumsum(1)
        expected = expected if begin is None else expected + begin.double().unsqueeze(1)
        expected = expected if after is None else expected * after.double().unsqueeze(-1)
        expected = expected if first is None else expected * first.double()
        y = running_sums.running_product(first, x, last, begin, reverse, outer=after, inner=before)
        assert_close(y, expected)  # summed and given in float32


def test_running_sums_of_channels_that_lie_far_apart():
    """Channels of a transposed tensor are a length apart: 64 of these end 2^31 numbers after the first."""
    storage = torch.UntypedStorage(2**32 + 2, device=DEVICE)  # memory of which few pages are touched
    x = torch.empty(0, dtype=torch.int8, device=DEVICE).set_(storage, 2**31, (1, 2, 65), (1, 1, 2**25))
    x.copy_(torch.randint(-9, 9, x.shape))
    expected = x.double() * x.double().square().cumsum(1)
    assert torch.equal(running_sums.running_product(x, x, x).double(), expected)


PRODUCTS = [
    (3, "cumsum", 33, 32),
    (2, "cumsum", 70, 3),
    (3, "cumsum", 100, 8),
    (4, "cumsum", 65, 16),
    (4, "gate", 70, 5),
    (4, "soft", 66, 8),
    (5, "cumsum", 40, 4),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
@pytest.mark.one_in(6)
def test_polynomial_products_and_their_gradients(product, dtype):
    degree, degree_form, length, width = product
    factors = [draw(1, length, 2, width, dtype=dtype) for _ in range(degree)]
    weights = torch.tensor([0.2, 0.5, 0.3], device=DEVICE)
    upstream = draw(1, length, 2, width)
    real = (torch.arange(length, device=DEVICE) % 7 != 3).unsqueeze(0)
    factors = [factor * real[:, :, None, None] for factor in factors]

    def values(inputs: list[Tensor], form: str) -> list[Tensor]:
        inputs = [x.requires_grad_() for x in inputs]
        y = polynomial_product(inputs, degree_form, real=real, form=form, weights=weights.to(inputs[0].dtype)).y
        return [y, *torch.autograd.grad(y, inputs, upstream.to(y.dtype))]

    expected = values([x.double() for x in factors], "parallel")
    with forced(causal_sum="chunks"):
        actual = values([x.clone() for x in factors], "chunked")
    assert actual[0].dtype == torch.float32
    for ours, exact in zip(actual, expected, strict=True):
        assert_close_at_peaks(ours, exact, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_attention_goes_on_from_a_state_and_earlier_keys(dtype):
    q, k, v = draw(3, 40, 1, 8, dtype=dtype), draw(3, 50, 1, 8, dtype=dtype), draw(3, 50, 1, 6, dtype=dtype)
    state, scale = draw(3, 1, 8, 6), torch.rand(3, 40, device=DEVICE)
    inputs = [x.requires_grad_() for x in (q, k, v, state)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    with forced(causal_sum="chunks"):
        y = linear_attention(*inputs, scale=scale)
        gradients = torch.autograd.grad(y.square().sum(), inputs)
    expected = linear_attention(*exact, scale=scale, form="parallel")
    assert_close(y, expected, dtype)
    for ours, other in zip(gradients, torch.autograd.grad(expected.square().sum(), exact), strict=True):
        assert_close(ours, other, dtype, factor=2)  # of the rounded y


def test_factors_are_read_in_their_own_dtype(monkeypatch):
    seen: list[torch.dtype] = []
    launch = kernels._launch

    def watched(queries: Any, pairs: Any, outputs: Any, *rest: Any) -> None:
        seen.extend(x.dtype for x in (*queries, *pairs) if x is not None)
        launch(queries, pairs, outputs, *rest)

    monkeypatch.setattr(kernels, "_launch", watched)
    factors = [draw(1, 70, 1, 16, dtype=torch.bfloat16).requires_grad_() for _ in range(4)]
    with forced(causal_sum="chunks"):
        y = polynomial_product(factors).y
        assert seen == [torch.bfloat16] * 3
        y.sum().backward()
    # The gradient of y is in float32, as y is: once as a query, once as what is summed.
    assert seen[3:].count(torch.float32) == 2
    assert all(x.grad is not None and x.grad.dtype == torch.bfloat16 for x in factors)


def test_second_derivatives_and_transforms():
    q, k, v = (draw(2, 17, 1, 4).requires_grad_() for _ in range(3))

    def curvature(form: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        y = linear_attention(*inputs, form=form)
        first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

    exact = curvature("parallel", *(x.detach().double().requires_grad_() for x in (q, k, v)))
    with forced(causal_sum="chunks"):
        ours = curvature("chunked", q, k, v)
        one = torch.func.grad(lambda q, k, v: linear_attention(q[None], k[None], v[None]).square().sum())
        by_rows = torch.func.vmap(one)(q.detach(), k.detach(), v.detach())
        together = torch.autograd.grad(linear_attention(q, k, v).square().sum(), q)[0]
    for actual, expected in zip(ours, exact, strict=True):
        assert_close(actual, expected, factor=3)
    assert_close(by_rows, together)


def test_through_compiled_graphs():
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: polynomial_product(x).y, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (35, 50):
        factors = [draw(1, length, 1, 8).requires_grad_() for _ in range(4)]
        exact = polynomial_product([x.double() for x in factors], form="parallel").y
        with forced(causal_sum="chunks"):
            y = compiled(*factors)
            gradients = torch.autograd.grad(y.square().sum(), factors)
        assert_close(y, exact)
        for ours, other in zip(gradients, torch.autograd.grad(exact.square().sum(), factors), strict=True):
            assert_close(ours, other)


def test_heads_too_wide_are_left_to_torch(monkeypatch):
    q, k, v = (draw(1, 40, 1, 130) for _ in range(3))
    with pytest.raises(ValueError, match="width is 130 and values 130; the kernel takes at most 128"):
        kernels.causal_sum(q, k, v)
    with forced(causal_sum="chunks"):
        assert face.causal_kernels(q) is kernels
        assert_close(linear_attention(q, k, v), linear_attention(q.double(), k.double(), v.double(), form="parallel"))


def test_nothing_to_sum():
    for shape in ((0, 40, 1, 4), (2, 0, 1, 4)):
        x = draw(*shape)
        assert kernels.causal_sum(x, x, x).shape == shape
        assert running_sums.running_product(None, x.flatten(2), None).shape == (*shape[:2], 4)


@pytest.mark.parametrize(
    ("dtype", "lengths"),
    [(DTYPES[1], (33, 70))]
    + [
        pytest.param(dtype, (97, 300), marks=[] if DEVICE.type == "cuda" else pytest.mark.slow) for dtype in DTYPES[1:]
    ],
)
def test_the_trial_of_the_device_finds_no_fault(dtype, lengths):
    assert kernel_module("trials").fault("causal_sum", "chunks", DEVICE, dtype, 70, lengths) is None
