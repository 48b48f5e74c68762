"""IPA's column operation against its formula, and its derivatives, for every norm, coupling and kind of visibility."""

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops import batch_invariant, piecewise_column, piecewise_column_dense
from hf_seqmix.ops.piecewise.column import KERNEL_NORMS, _column
from tests.largest import Largest
from tests.tolerances import TOLERANCE, assert_close
from tests.transforms import check_transforms

DOUBLE = torch.float64


@pytest.fixture(params=[None, 3000], ids=["one block", "small blocks"])
def block_bytes(request):
    """Small inputs fit one block; with little memory they need many, of unequal sizes."""
    return request.param


def arguments(
    n: int,
    history: int = 0,
    causal: bool = True,
    coupling: str = "shared",
    distance: int = 5,
    masked: bool = False,
    dtype: torch.dtype = DOUBLE,
    batch: int = 3,
) -> tuple[list[Tensor | None], dict[str, Any]]:
    """Random tensors and options: 4 centers, kernels of width 5, values of width 3."""
    total = n + history
    entries = distance if causal else 2 * distance - 1
    table = torch.randn(4, entries, dtype=DOUBLE) if coupling == "toeplitz" else None
    tensors = [
        torch.randn(batch, 4, n, 5).to(dtype),
        torch.randn(batch, 4, total, 5).to(dtype),
        torch.randn(batch, 4, total, 3).to(dtype),
        torch.randn(4, entries, dtype=DOUBLE).to(dtype),
        None if table is None else table.to(dtype),
        torch.tensor([0.3]).to(dtype),
    ]
    options = {"causal": causal, "scale": 0.7}
    if masked:
        options["key_mask"] = torch.rand(batch, total) > 0.4
    return tensors, options


def placed(n: int, total: int, batch: int = 3) -> dict[str, Tensor]:
    """Queries in the middle of a history with pads, and places that are not used yet."""
    start = total - n - 2
    real = torch.rand(batch, total) > 0.3
    positions = (real.long().cumsum(1) - 1).clamp(min=0)
    queries = torch.arange(start, start + n)
    visible = real[:, None] & (torch.arange(total) <= queries[:, None])
    return {"query_positions": positions[:, queries], "key_positions": positions, "visible": visible}


def assert_equals_dense(
    tensors: list[Tensor | None], options: dict[str, Any], norm: str, block_bytes: int | None
) -> None:
    results = []
    for function in (piecewise_column, piecewise_column_dense):
        leaves = [None if x is None else x.clone().requires_grad_() for x in tensors]
        out = function(*leaves, kernel_norm=norm, block_bytes=block_bytes, **options)
        torch.manual_seed(1)
        (out * torch.randn_like(out)).sum().backward()
        results.append([out, *[torch.zeros(()) if x is None or x.grad is None else x.grad for x in leaves]])
    for actual, expected in zip(*results, strict=True):
        # A table that a norm does not use has no gradient, or zeros.
        assert_close(actual, expected if expected.ndim else torch.zeros_like(actual), factor=10)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("norm", KERNEL_NORMS)
@pytest.mark.one_in(2)
def test_values_and_gradients_equal_the_formula(block_bytes, norm, causal):
    for n, coupling, distance, masked in itertools.product((1, 7, 13), ("shared", "toeplitz"), (4, 40), (False, True)):
        for history in (0, 5) if causal else (0,):
            tensors, options = arguments(n, history, causal, coupling, distance, masked)
            assert_equals_dense(tensors, options, norm, block_bytes)


@pytest.mark.parametrize("norm", KERNEL_NORMS)
def test_a_history_with_pads_equals_the_formula(block_bytes, norm):
    for n, coupling in itertools.product((1, 6), ("shared", "toeplitz")):
        tensors, options = arguments(n, 9, True, coupling)
        assert_equals_dense(tensors, {**options, **placed(n, n + 9)}, norm, block_bytes)


@pytest.mark.parametrize("coupling", ["shared", "toeplitz"])
@pytest.mark.parametrize("norm", KERNEL_NORMS)
def test_gradients_by_finite_differences(norm, coupling):
    for causal in (True, False):
        tensors, options = arguments(5, 0, causal, coupling, distance=3, masked=True, batch=2)
        inputs = [None if x is None else x.requires_grad_() for x in tensors]
        if norm != "mix":
            inputs[5] = None
        assert torch.autograd.gradcheck(
            lambda *given, o=options: piecewise_column(*given, kernel_norm=norm, **o), inputs, fast_mode=True
        )


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("norm", KERNEL_NORMS)
def test_dtypes(norm, dtype):
    for n in (1, 31):
        tensors, options = arguments(n, 0, True, "toeplitz", distance=9, dtype=dtype)
        exact = [None if x is None else x.double() for x in tensors]
        actual = piecewise_column(*tensors, kernel_norm=norm, **options)
        assert actual.dtype == dtype
        # Means of few tokens are several times as large as those of many, and the tolerance goes by all.
        assert_close(actual, piecewise_column_dense(*exact, kernel_norm=norm, **options), factor=2)
        leaves = [x.requires_grad_() for x in tensors if x is not None]
        piecewise_column(*tensors, kernel_norm=norm, **options).float().sum().backward()
        assert all(x.grad is None or (x.grad.dtype == dtype and x.grad.isfinite().all()) for x in leaves)


@pytest.mark.parametrize("kinds", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)], ids=str)
def test_values_of_another_dtype_than_queries(kinds):
    of_queries, of_values = kinds
    tensors, options = arguments(9, dtype=of_queries)
    tensors[2] = tensors[2].to(of_values)
    actual = piecewise_column(*tensors, **options)
    expected = piecewise_column_dense(*tensors, **options)
    assert actual.dtype == expected.dtype == of_values
    assert_close(actual.to(torch.bfloat16), expected.to(torch.bfloat16), factor=2)


def test_autocast_leaves_the_logits_alone():
    tensors, options = arguments(9, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = piecewise_column(*tensors, **options)
    assert torch.equal(actual, piecewise_column(*tensors, **options))


def kernels(query: Tensor, key: Tensor, bias: Tensor | None = None, **kwargs: Any) -> Tensor:
    """The kernels themselves, (batch, centers, queries, keys): values are unit vectors."""
    eye = torch.eye(key.shape[2], dtype=key.dtype).expand(*key.shape[:2], -1, -1)
    return piecewise_column(query, key, eye, bias, **kwargs)


def test_kernels_sum_to_one_over_centers():
    """Of every visible pair, once the count is undone; of hidden pairs they are 0."""
    (query, key, _, bias, *_), _ = arguments(11)
    sums = kernels(query, key, bias).sum(dim=1) * torch.arange(1, 12)[:, None]
    assert_close(sums, torch.ones(11, 11, dtype=DOUBLE).tril().expand(3, -1, -1))
    sums = kernels(query, key, torch.randn(4, 21, dtype=DOUBLE), causal=False).sum(dim=1) * 11
    assert_close(sums, torch.ones(3, 11, 11, dtype=DOUBLE))


def test_one_center_is_the_causal_mean():
    query, key, value = (torch.randn(2, 1, 13, 4, dtype=DOUBLE) for _ in range(3))
    expected = value.cumsum(dim=2) / torch.arange(1, 14)[:, None]
    assert_close(piecewise_column(query, key, value, torch.randn(1, 5, dtype=DOUBLE)), expected)


def test_normalized_first_and_masked_after():
    """Masked first, centers of a hidden pair are -inf and their softmax NaN, or a uniform 1 / P if merely large."""
    tensors, options = arguments(9, masked=True)
    query, key, value, bias = tensors[:4]
    mask = options["key_mask"]
    actual = piecewise_column(query, key, value, bias, scale=0.7, key_mask=mask)
    offsets = torch.arange(9)[:, None] - torch.arange(9)
    logits = 0.7 * query @ key.transpose(-1, -2) + bias[:, offsets.clamp(0, 4)]
    seen = (offsets >= 0) & mask[:, None, None]
    counts = seen.sum(-1, keepdim=True).clamp(min=1)
    assert_close(actual, (logits.softmax(dim=1) * seen) @ value / counts)
    assert not (logits.masked_fill(~seen, float("-inf")).softmax(dim=1) @ value).isfinite().all()
    large = (logits.masked_fill(~seen, -1e9).softmax(dim=1) @ value) / counts
    assert (large - actual).abs().max() > 0.1


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_softmax_over_tokens_is_multi_head_attention(causal):
    tensors, _ = arguments(17, 0, causal, distance=6)
    query, key, value, bias = tensors[:4]
    offsets = torch.arange(17)[:, None] - torch.arange(17)
    relative = bias[:, offsets.clamp(0, 5)] if causal else bias[:, offsets.clamp(-5, 5) + 5]
    mask = relative.masked_fill(offsets < 0, float("-inf")) if causal else relative
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    assert_close(piecewise_column(query, key, value, bias, kernel_norm="j", scale=5**-0.5, causal=causal), expected)


@pytest.mark.parametrize("norm", KERNEL_NORMS)
def test_the_past_is_bit_equal_whatever_the_future(norm):
    tensors, options = arguments(40, batch=1)
    before = piecewise_column(*tensors, kernel_norm=norm, **options)
    for tensor in tensors[:3]:
        tensor[:, :, 25:] = torch.randn_like(tensor[:, :, 25:])
    after = piecewise_column(*tensors, kernel_norm=norm, **options)
    assert torch.equal(after[:, :, :25], before[:, :, :25])
    assert (after[:, :, 25:] - before[:, :, 25:]).abs().max() > 0.1


@pytest.mark.parametrize("norm", KERNEL_NORMS)
def test_a_query_that_sees_nothing_gets_zero(norm):
    tensors, options = arguments(4)
    mask = torch.tensor([[False, False, True, True]] * 3)
    leaves = [x.requires_grad_() if x is not None else None for x in tensors]
    out = piecewise_column(*leaves, kernel_norm=norm, key_mask=mask, **options)
    assert not out[:, :, :2].any()
    out.sum().backward()
    assert all(x is None or x.grad is None or x.grad.isfinite().all() for x in leaves)


@pytest.mark.parametrize("shape", [(0, 4, 5), (2, 4, 0)])
def test_empty_inputs(shape):
    batch, centers, n = shape
    query = torch.zeros(batch, centers, n, 3, requires_grad=True)
    bias = torch.zeros(centers, 5, requires_grad=True)
    out = piecewise_column(query, query, query, bias)
    assert out.shape == query.shape
    out.sum().backward()
    assert not bias.grad.any()


def test_extreme_logits_stay_finite():
    tensors, options = arguments(9, dtype=torch.float32)
    tensors[0] *= 1e4
    for norm in ("p", "j", "prod", "mix"):
        leaves = [None if x is None else x.clone().requires_grad_() for x in tensors]
        out = piecewise_column(*leaves, kernel_norm=norm, **options)
        out.sum().backward()
        assert out.isfinite().all() and leaves[0].grad.isfinite().all()


@pytest.mark.parametrize("coupling", ["shared", "toeplitz"])
@pytest.mark.parametrize("norm", ["p", "prod", "mix"])
@pytest.mark.one_in(2)
def test_memory_does_not_grow_with_the_square(norm, coupling):
    """Neither pass has a tensor of all pairs: twice the length halves the rows of a block, and logits stay as many."""
    budget = 2**16  # bytes
    for n in (256, 512):
        for queries in (n, 3):  # without and with a history
            query = torch.randn(1, 8, n, 2, requires_grad=True)
            table = torch.randn(8, 2 * n, requires_grad=True)
            options = (table, table if coupling == "toeplitz" else None, torch.tensor([0.3]))
            with Largest() as largest:
                out = piecewise_column(
                    query[:, :, -queries:], query, query, *options, kernel_norm=norm, block_bytes=budget
                )
                forward = largest.elements
                out.sum().backward()
            # Three blocks' worth of scratch memory, each a little wider than its logits, is as much as there is.
            assert 0 < forward <= largest.elements <= 2 * budget // 4, (n, queries)
            assert largest.elements < 8 * n**2 / 10


@pytest.mark.parametrize("norm", ["p", "j", "prod", "mix"])
def test_long_sums_in_half_precision(norm):
    """Weights are divided by their sum last; before that, the sum of 4096 values of 20 is more than float16 holds."""
    n, value = 4096, torch.full((1, 1, 4096, 2), 20.0, dtype=torch.float16)
    leaves = [torch.zeros(1, 1, m, 2, dtype=torch.float16).requires_grad_() for m in (2, n)]
    leaves.append(value.requires_grad_())
    share = torch.tensor([0.5], dtype=torch.float16)
    out = piecewise_column(*leaves, mix=share, kernel_norm=norm)
    assert_close(out, torch.full_like(out, 20))
    step = piecewise_column(leaves[0][:, :, 1:], *leaves[1:], mix=share, kernel_norm=norm)  # as in decoding
    assert_close(step, torch.full_like(step, 20))
    out.float().sum().backward()
    for x in leaves:
        assert x.grad.isfinite().all()
    assert_close(leaves[2].grad[:, :, : n - 1], torch.full((1, 1, n - 1, 2), 1 / n + 1 / (n - 1)), torch.float16)


@pytest.mark.parametrize("norm", ["p", "prod", "mix"])
def test_operator_passes_the_checks_of_the_library(norm):
    for coupling, masked in (("toeplitz", True), ("shared", False)):
        tensors, _ = arguments(5, 0, True, coupling, masked=masked, batch=2)
        inputs = [None if x is None else x.requires_grad_() for x in tensors]
        options = (norm, 0.7, True)
        mask = torch.rand(2, 5) > 0.4 if masked else None
        torch.library.opcheck(
            _column.traced,
            (*inputs, None, None, None, mask, *options, None),
            test_utils=("test_schema", "test_faketensor"),
        )


@pytest.mark.parametrize("norm", KERNEL_NORMS)
@pytest.mark.one_in(2)
def test_compiled_gradients_equal_eager_ones_for_all_lengths(norm):
    torch._dynamo.reset()
    compiled = torch.compile(piecewise_column, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (9, 12):
        tensors, options = arguments(n)
        results = []
        for function in (piecewise_column, compiled):
            leaves = [None if x is None else x.clone().requires_grad_() for x in tensors]
            out = function(*leaves, kernel_norm=norm, **options)
            out.square().sum().backward()
            results.append([out, *[x.grad for x in leaves if x is not None and x.grad is not None]])
        for actual, expected in zip(results[1], results[0], strict=False):
            assert_close(actual, expected)


def test_differentiating_twice_is_refused():
    tensors, options = arguments(5)
    query = tensors[0].requires_grad_()
    out = piecewise_column(query, *tensors[1:], **options)
    (gradient,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
    for differentiate in (lambda x: x.backward(retain_graph=True), lambda x: torch.autograd.grad(x, query)):
        with pytest.raises(RuntimeError, match="second derivatives are not implemented"):
            differentiate(gradient.sum())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel_norm": "q"}, "kernel_norm is 'q'; it must be one of 'p', 'j'"),
        ({"kernel_norm": "mix"}, "its share `mix` is None"),
        ({"bias": torch.zeros(3, 4)}, r"bias has shape \(3, 4\); it must be \(4, M\)"),
        ({"bias": torch.zeros(4, 6), "causal": False}, r"it must be \(4, 2 M - 1\)"),
        ({"coupling": torch.zeros(4, 0)}, r"coupling has shape \(4, 0\); it must be \(4, M\)"),
        ({"visible": torch.ones(1, 5, 5, dtype=torch.bool)}, "go together"),
        ({"key": torch.zeros(2, 4, 5, 2)}, "expected query"),
        ({"query": torch.zeros(2, 4, 3, 3), "causal": False}, "3 queries and 5 keys"),
        ({"kernel_norm": "mix", "mix": torch.ones(5)}, r"mix has shape \(5,\); it must be \(1,\)"),
        ({"mix": torch.ones(1, 1, 1, 1, 1)}, r"mix has shape \(1, 1, 1, 1, 1\)"),
        ({"key_mask": torch.ones(2, 1, dtype=torch.bool)}, r"key_mask has shape \(2, 1\); it must be \(2, 5\)"),
        ({"scale": torch.ones(3)}, "only one element tensors"),
        ({"key_mask": torch.ones(2, 5)}, "key_mask is torch.float32; it must be bool"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    given = {"query": torch.zeros(2, 4, 5, 3), "key": torch.zeros(2, 4, 5, 3), "value": torch.zeros(2, 4, 5, 3)}
    for function in (piecewise_column, piecewise_column_dense):
        with pytest.raises(ValueError, match=message):
            function(**{**given, **change})


@pytest.mark.parametrize("rank", [1, 2, 3, 8])
@pytest.mark.parametrize("norm", ["p", "none", "prod"])
def test_steps_have_the_bits_of_one_call_in_a_fixed_order(rank: int, norm: str) -> None:
    """Whatever the scale: one that is no power of two rounds."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 13, rank) for _ in range(3))
    settings = {"bias": torch.randn(2, 16), "kernel_norm": norm, "scale": rank**-0.5, "causal": True}
    with torch.no_grad(), batch_invariant():
        whole = piecewise_column(query, key, value, **settings)
        for place in range(13):
            seen = slice(place + 1)
            step = piecewise_column(query[:, :, place : place + 1], key[:, :, seen], value[:, :, seen], **settings)
            assert torch.equal(step[:, :, 0], whole[:, :, place])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel_norm", KERNEL_NORMS)
def test_transforms_of_torch_func(kernel_norm: str, causal: bool) -> None:
    tensors, options = arguments(5, causal=causal, coupling="toeplitz", batch=2)
    options["kernel_norm"] = kernel_norm
    check_transforms(partial(piecewise_column, **options), partial(piecewise_column_dense, **options), *tensors)
