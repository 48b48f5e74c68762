"""Which route a call takes, and that ordinary real operations give what the fast routes give."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from hf_seqmix.ops import (
    InducingGrid,
    causal_taps,
    linear_attention,
    piecewise_column,
    polynomial_product,
    power_attention,
    real_valued,
    short_conv,
    ski_matmul,
    toeplitz_matmul,
    two_sided_taps,
)
from hf_seqmix.ops.common.dispatch import can_be_read, compute_dtype, dispatch
from hf_seqmix.ops.common.running_max import running_max
from hf_seqmix.ops.piecewise.column import KERNEL_NORMS
from hf_seqmix.ops.ski.product import sparse_low_rank_matmul
from tests.tolerances import assert_close

LENGTHS = [1, 2, 13, 64, 65, 131]
Call = Callable[[list[Tensor]], Tensor]


def grid(degree: int) -> InducingGrid:
    return InducingGrid(32, 5, degree)


def calls(length: int) -> dict[str, tuple[list[tuple[int, ...]], Call]]:
    """Name of an operation -> shapes of its tensors, and the call."""
    heads = (2, length, 2, 3)
    cases: dict[str, tuple[list[tuple[int, ...]], Call]] = {
        "causal toeplitz": ([(2, 3, length), (3, length)], lambda x: toeplitz_matmul(*x)),
        "toeplitz": ([(2, 3, length), (3, 2 * length - 1)], lambda x: toeplitz_matmul(*x, causal=False)),
        "causal taps": ([(3, length + 1)], lambda x: causal_taps(*x)),
        "two-sided taps": ([(3, length + 1), (3, length + 1)], lambda x: two_sided_taps(*x)),
        "even taps": ([(3, length + 1)], lambda x: two_sided_taps(*x)),
        "linear attention": ([heads, heads, heads, (2, 2, 3, 3)], lambda x: linear_attention(*x)),
        "sums of all": ([heads] * 3, lambda x: linear_attention(*x, causal=False)),
        "degree 4": ([heads] * 4, lambda x: polynomial_product(x).y),
        "squares": ([heads] * 3, lambda x: power_attention(*x, power=2)),
        "gated quotients": (
            [heads] * 3 + [(2, length, 2)],
            lambda x: power_attention(*x[:3], x[3].sigmoid().log(), power=2, denominator=True),
        ),
    }
    for degree in (1, 3):
        own = grid(degree)
        points = own.points(length)
        cases[f"ski {degree}"] = (
            [(2, 3, length), (3, 2 * points - 1)],
            lambda x, own=own: ski_matmul(*x, own),
        )
        cases[f"sparse and low rank {degree}"] = (
            [(2, 3, length), (3, 5), (3, 2 * points - 1)],
            lambda x, own=own: sparse_low_rank_matmul(*x, own),
        )
    for norm in KERNEL_NORMS:
        for causal in (True, False):
            offsets = 6 if causal else 11
            cases[f"column {norm} {'causal' if causal else 'bidirectional'}"] = (
                [(2, 3, length, 4), (2, 3, length, 4), (2, 3, length, 2), (3, offsets), (3, offsets), (1,)],
                lambda x, norm=norm, causal=causal: piecewise_column(
                    *x[:5], x[5].sigmoid(), kernel_norm=norm, causal=causal, scale=0.5
                ),
            )
    return cases


NAMES = list(calls(3))


def with_gradients(call: Call, tensors: list[Tensor]) -> list[Tensor]:
    """The result and what a weighted sum of it gives for each tensor."""
    inputs = [x.clone().requires_grad_() for x in tensors]
    y = call(inputs)
    weights = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad((y * weights).sum(), inputs, allow_unused=True)
    return [y.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(tensors, gradients, strict=True))]


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_the_fast_route(name):
    for length in LENGTHS:
        shapes, call = calls(length)[name]
        tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        expected = with_gradients(call, tensors)
        with real_valued():
            actual = with_gradients(call, tensors)
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e, factor=10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_every_dtype(name, dtype):
    shapes, call = calls(65)[name]
    # Kernels stay in float32, as modules make them.
    tensors = [torch.randn(shape) for shape in shapes]
    if "toeplitz" in name or "ski" in name or "sparse" in name:
        tensors = [tensors[0].to(dtype), *tensors[1:]]
    else:
        tensors = [x.to(dtype) for x in tensors]
    expected = call(tensors)
    for autocast in (False, True):
        with real_valued(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            actual = call(tensors)
        assert actual.dtype == expected.dtype
        assert_close(actual, expected, dtype, factor=2)  # each is off by as much


@pytest.mark.parametrize("positions", ["key mask", "placed"])
def test_column_with_masks_and_positions(positions):
    tensors = [torch.randn(2, 3, 7, 4, dtype=torch.float64) for _ in range(3)]
    real = torch.tensor([[0, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
    kwargs: dict[str, Any] = {"key_mask": real}
    if positions == "placed":
        places = real.long().cumsum(dim=1) - 1
        visible = (places[:, None, :] <= places[:, :, None]) & real[:, None]
        kwargs = {"query_positions": places, "key_positions": places, "visible": visible}
    bias = torch.randn(3, 5, dtype=torch.float64)
    for norm in KERNEL_NORMS:
        mix = torch.full((1,), 0.3, dtype=torch.float64)
        expected = piecewise_column(*tensors, bias, None, mix, kernel_norm=norm, **kwargs)
        with real_valued():
            actual = piecewise_column(*tensors, bias, None, mix, kernel_norm=norm, **kwargs)
        assert_close(actual, expected)


def test_running_maximum():
    for length in LENGTHS:
        x = torch.randint(-9, 9, (3, length))
        expected = running_max(x)
        with real_valued():
            assert torch.equal(running_max(x), expected)


def test_taps_in_float32_are_as_exact_as_the_transform():
    """Angles up to pi M^2 in float32 would be off by more than 1."""
    response = torch.randn(2, 1025)
    for build in (causal_taps, lambda x: two_sided_taps(x, x.flip(-1))):
        exact = build(response.double())
        with real_valued():
            assert_close(build(response), exact)


class _Everything(torch.nn.Module):
    """All operations at the lengths that they meet in models; `names` chooses."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        length = x.shape[-1]
        heads = x[:, :, :4].transpose(1, 2).reshape(-1, 1, 2, 2).expand(-1, length, -1, -1)
        column = x[:, :, :, None].expand(-1, -1, -1, 2)
        lags = torch.arange(1 - length, length, device=x.device).to(x.dtype)
        kernel = torch.exp(-lags.abs()).expand(x.shape[1], -1)
        points = grid(1).points(length)
        low = torch.arange(2 * points - 1, device=x.device).to(x.dtype).cos().expand(x.shape[1], -1)
        return (
            toeplitz_matmul(x, kernel[:, length - 1 :]),
            toeplitz_matmul(x, kernel, causal=False),
            sparse_low_rank_matmul(x, torch.ones(x.shape[1], 3, dtype=x.dtype), low, grid(1)),
            linear_attention(heads, heads, heads),
            power_attention(heads, heads, heads, -heads[..., 0].square(), power=2),
            piecewise_column(column, column, column),
            causal_taps(torch.ones(2, 9, dtype=x.dtype)),
            two_sided_taps(torch.ones(2, 9, dtype=x.dtype), torch.ones(2, 9, dtype=x.dtype)),
        )


class _Product(torch.nn.Module):
    """The first of them alone."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        lags = torch.arange(x.shape[-1], device=x.device).to(x.dtype)
        return (toeplitz_matmul(x, torch.exp(-lags).expand(x.shape[1], -1)),)


def graph_of(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_a_graph_for_other_runtimes_has_neither_transforms_nor_operators_of_ours():
    model, x = _Everything(NAMES), torch.randn(2, 4, 11)
    # Without bounds: torch 2.8 cannot prove that a length has at least one chunk, which strides ask for.
    shapes = {"x": {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}}
    with real_valued():
        program = torch.export.export(model, (x,), dynamic_shapes=shapes)
    assert not [name for name in graph_of(program) if "hf_seqmix" in name or "fft" in name or "complex" in name]
    for length in (5, 11, 64, 131):
        y = torch.randn(3, 4, length)
        for a, e in zip(program.module()(y), model(y), strict=True):
            assert_close(a, e)


@pytest.mark.parametrize(
    "model", [_Product(), pytest.param(_Everything(NAMES), marks=pytest.mark.slow)], ids=["one", "all"]
)
def test_other_graphs_have_operators_of_ours(model):
    shapes = {"x": {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(model, (torch.randn(2, 4, 11),), dynamic_shapes=shapes)
    assert [name for name in graph_of(program) if "hf_seqmix" in name]
    for length in (5, 11, 64, 131):
        y = torch.randn(3, 4, length)
        for a, e in zip(program.module()(y), model(y), strict=True):
            assert_close(a, e)


def test_the_route_is_real_where_torch_converts_for_other_runtimes(monkeypatch):
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    seen = []

    class Asks(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(dispatch(x)[0])
            return x + 1

    torch.export.export(Asks(), (torch.ones(3),))
    assert set(seen) == {"real"}
    # Nothing is traced here: another thread of the process may be converting a model.
    assert dispatch(torch.ones(3))[0] == "eager"


def test_transforms_of_functions_have_routes_of_their_own():
    x, seen = torch.ones(3), []

    def watched(x: Tensor) -> Tensor:
        seen.append(dispatch(x)[0])
        return x * x

    torch.func.vmap(watched)(x)
    torch.func.jvp(watched, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        watched(x)
    watched(x)
    assert seen == ["functorch", "forward_mode", "forward_mode", "eager"]


def test_calls_are_computed_in_float64_where_a_tensor_has_it():
    x = torch.ones(1)
    assert dispatch(x, x.half())[1] == dispatch(x.bfloat16())[1] == torch.float32
    assert dispatch(x, x.double())[1] == torch.float64
    assert compute_dtype(torch.float64) == torch.float64
    assert {compute_dtype(d) for d in (torch.float32, torch.bfloat16, torch.float16)} == {torch.float32}


def test_the_context_ends_with_what_was_before():
    x = torch.ones(1)
    with pytest.raises(KeyError), real_valued():
        with real_valued():
            assert dispatch(x)[0] == "real"
        assert dispatch(x)[0] == "real"
        raise KeyError
    assert dispatch(x)[0] == "eager"


def test_a_compiled_function_follows_the_context():
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def product(x: Tensor, kernel: Tensor) -> Tensor:
        return toeplitz_matmul(x, kernel)

    x, kernel = torch.randn(2, 3, 9), torch.randn(3, 9)
    expected = toeplitz_matmul(x, kernel)
    assert_close(product(x, kernel), expected)
    with real_valued():
        assert_close(product(x, kernel), expected)
    assert_close(product(x, kernel), expected)


def test_the_product_of_real_numbers_can_be_differentiated_twice():
    x, kernel = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 2, 4), (2, 7)))
    with real_valued():
        assert torch.autograd.gradgradcheck(lambda a, b: toeplitz_matmul(a, b, causal=False), (x, kernel))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
@pytest.mark.parametrize(
    ("operation", "shapes"),
    [
        (toeplitz_matmul, ((1, 2, 3), (2, 3))),
        (short_conv, ((1, 2, 4), (2, 3))),
        (linear_attention, ((1, 4, 2, 3),) * 3),
        (power_attention, ((1, 4, 2, 3),) * 3),
        (piecewise_column, ((1, 2, 4, 3),) * 3),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_numbers_that_are_not_real_are_refused(operation, shapes, dtype):
    """They would be cut to whole numbers, or lose their imaginary parts."""
    tensors = [torch.ones(shape) for shape in shapes]
    operation(*tensors)
    for place in range(len(tensors)):
        given = [tensor.to(dtype) if i == place else tensor for i, tensor in enumerate(tensors)]
        with pytest.raises(ValueError, match="must be real floating-point tensors"):
            operation(*given)


def test_numbers_are_read_where_there_are_numbers():
    x = torch.ones(2)
    assert can_be_read(x) and can_be_read(torch.nn.Parameter(x))
    assert not can_be_read(x.to("meta"))
    with FakeTensorMode() as mode:
        assert not can_be_read(mode.from_tensor(x))
    assert not can_be_read(mode.from_tensor(x))
    assert not torch.vmap(lambda row: row.new_tensor(can_be_read(row)))(x).any()
    assert not torch.compile(lambda y: y * can_be_read(y), backend="eager", fullgraph=True)(x).any()
