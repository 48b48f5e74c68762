"""Gated attention of powers of products, against sums of single terms and against its own matrix."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from hf_seqmix.ops import batch_invariant, linear_attention, power_attention, power_attention_dense, real_valued
from hf_seqmix.ops.polynomial.power_attention import POWER_FORMS, PowerSums, power_sums
from hf_seqmix.ops.polynomial.power_chunks import chunk_size, power_attention_operator
from hf_seqmix.ops.polynomial.symmetric_power import multinomials, symmetric_power
from tests.tolerances import assert_close

SETTINGS: dict[str, dict[str, Any]] = {
    "1": {},
    "2": {"power": 2},
    "3": {"power": 3},
    "2 weights": {"power": 2, "denominator": True},
    "4 weights": {"power": 4, "denominator": True},
}
LENGTHS = (1, 2, 7, 31, 64, 67, 131)


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    log_gates: Tensor | None


def make(
    length: int, gated: bool = True, earlier: int = 0, batch: int = 2, dtype: torch.dtype = torch.float64
) -> Inputs:
    """Three heads, 4 wide, values 5 wide; gates of the first are near 1, of the last far from it."""
    q = torch.randn(batch, length, 3, 4, dtype=torch.float64)
    k = torch.randn(batch, earlier + length, 3, 4, dtype=torch.float64)
    v = torch.randn(batch, earlier + length, 3, 5, dtype=torch.float64)
    shift = torch.tensor([5.0, 2.0, -3.0], dtype=torch.float64)
    gates = torch.nn.functional.logsigmoid(torch.randn(batch, earlier + length, 3, dtype=torch.float64) + shift)
    return Inputs(q.to(dtype), k.to(dtype), v.to(dtype), gates.to(dtype) if gated else None)


def padded(inputs: Inputs, real: Tensor) -> Inputs:
    """The same with zeros at pads, as mixers make them."""
    q, k, v, gates = inputs
    flags = real[:, :, None, None]
    return Inputs(q * flags, k * flags, v * flags, None if gates is None else gates * real.unsqueeze(-1))


def brute_force(inputs: Inputs, power: int = 1, denominator: bool = False) -> Tensor:
    """The definition, one query and one key at a time."""
    q, k, v, gates = inputs
    earlier = k.shape[1] - q.shape[1]
    y = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    for t in range(q.shape[1]):
        total, count = torch.zeros_like(y[:, t]), torch.zeros_like(y[:, t, :, :1])
        kept = torch.ones_like(count)
        for s in range(earlier + t, -1, -1):
            weight = kept * ((q[:, t] * k[:, s]).sum(dim=-1, keepdim=True) / 2) ** power
            total += weight * v[:, s]
            count += weight + 1e-4 * kept if denominator else kept
            if gates is not None:
                kept = kept * gates[:, s].exp().unsqueeze(-1)
        y[:, t] = total / count
    return y


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("length", "earlier"), [(1, 0), (1, 7), (7, 0), (13, 4), (37, 5)])
@pytest.mark.one_in(2)
def test_every_form_equals_the_triple_sum(length, earlier, name, gated):
    inputs = make(length, gated, earlier)
    expected = brute_force(inputs, **SETTINGS[name])
    for form in POWER_FORMS:
        assert_close(power_attention(*inputs, **SETTINGS[name], form=form, chunk=5), expected)
    assert_close(power_attention_dense(*inputs, **SETTINGS[name]), expected)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.one_in(3)
def test_outputs_and_gradients_equal_those_of_the_matrix(length, name, gated, poisoned_empty):
    inputs = make(length, gated)
    leaves = [x.requires_grad_() for x in inputs if x is not None]
    upstream = torch.randn(2, length, 3, 5, dtype=torch.float64)
    expected = power_attention_dense(*inputs, **SETTINGS[name])
    gradients = torch.autograd.grad(expected, leaves, upstream)
    for form in POWER_FORMS:
        actual = power_attention(*inputs, **SETTINGS[name], form=form, chunk=None if form == "parallel" else 8)
        assert_close(actual, expected)
        for found, right in zip(torch.autograd.grad(actual, leaves, upstream), gradients, strict=True):
            # One weight alone cancels in a quotient.
            torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.one_in(3)
def test_gradients_by_finite_differences(name):
    """Of more positions than a chunk has, and of the sums before."""
    inputs = Inputs(*(None if x is None else x[:1, :, 1:2].requires_grad_() for x in make(7)))
    before = PowerSums(*(x.requires_grad_() for x in power_sums(*make(3)[1:], **SETTINGS[name])))
    before = PowerSums(*(x[:1, 1:2].detach().requires_grad_() for x in before))

    def call(q: Tensor, k: Tensor, v: Tensor, gates: Tensor, products: Tensor, count: Tensor) -> Tensor:
        return power_attention(q, k, v, gates, **SETTINGS[name], sums=PowerSums(products, count), chunk=3)

    assert torch.autograd.gradcheck(call, (*inputs, *before))
    assert torch.autograd.gradgradcheck(call, (*inputs, *before), fast_mode=True)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("form", POWER_FORMS)
def test_going_on_from_sums(form, name, gated):
    q, k, v, gates = inputs = make(53, gated)
    whole = power_attention(*inputs, **SETTINGS[name])

    def part(x: Tensor | None, *bounds: int | None) -> Tensor | None:
        return None if x is None else x[:, slice(*bounds)]

    for summed, seen in ((20, 20), (31, 45), (51, 52)):
        first = power_sums(k[:, :11], v[:, :11], part(gates, 11), **SETTINGS[name])
        sums = power_sums(k[:, 11:summed], v[:, 11:summed], part(gates, 11, summed), **SETTINGS[name], sums=first)
        rest = (q[:, seen:], k[:, summed:], v[:, summed:], part(gates, summed, None))
        assert_close(power_attention(*rest, **SETTINGS[name], sums=sums, form=form, chunk=3), whole[:, seen:])


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
def test_pads_neither_count_nor_let_fade(name, gated):
    real = torch.tensor([[0, 0, 1, 0, 1, 1, 1], [1, 1, 0, 1, 1, 0, 0]]).double()
    inputs = padded(make(7, gated), real)
    for form in POWER_FORMS:
        y = power_attention(*inputs, **SETTINGS[name], real=real, form=form, chunk=3)
        assert y.isfinite().all()
        for row in range(2):
            kept = real[row].bool()
            alone = Inputs(*(None if x is None else x[row][kept][None] for x in inputs))
            assert_close(y[row][kept], power_attention_dense(*alone, **SETTINGS[name])[0])


def test_sums_of_many_positions_are_made_in_parts():
    _, k, v, gates = make(600)
    assert gates is not None
    sums = power_sums(k, v, gates, power=2)
    left = (gates.sum(dim=1, keepdim=True) - gates.cumsum(dim=1)).exp()  # (batch, length, heads)
    expected = torch.einsum("bsh,bshf,bshd->bhfd", left, symmetric_power(k, 2), v)
    assert_close(sums.products * multinomials(4, 2, k).sqrt(), expected)
    assert_close(sums.tokens, left.sum(dim=1))


def test_inputs_that_do_not_change_give_outputs_that_do_not_depend_on_gates():
    q, k, v, gates = make(40)
    q, k, v = (x[:, :1].expand(-1, 40, -1, -1) for x in (q, k, v))
    for fields in SETTINGS.values():
        expected = power_attention(q[:, :1], k[:, :1], v[:, :1], **fields).expand(-1, 40, -1, -1)
        assert_close(power_attention(q, k, v, gates, **fields, chunk=8), expected)


def test_power_one_without_gates_is_linear_attention():
    q, k, v, _ = make(67)
    count = torch.arange(1, 68, dtype=torch.float64)[:, None, None]
    assert_close(power_attention(q, k, v), linear_attention(q, k, v) / (2 * count))


def test_without_a_direction():
    q, k, v, _ = make(13)
    real = torch.tensor([[1] * 13, [0] * 3 + [1] * 10]).double()
    inputs = padded(Inputs(q, k, v, None), real)
    for fields in SETTINGS.values():
        y = power_attention(*inputs, **fields, real=real, causal=False)
        assert_close(y, power_attention_dense(*inputs, **fields, real=real, causal=False))
        assert_close(y[:, 9:], power_attention_dense(inputs.q[:, 9:], *inputs[1:], **fields, real=real, causal=False))
        assert_close(y[1:, 3:], power_attention_dense(q[1:, 3:], k[1:, 3:], v[1:, 3:], **fields, causal=False))


def test_the_past_is_bit_unchanged_by_the_future():
    inputs = make(100)
    y = power_attention(*inputs, power=2)
    changed = Inputs(*(None if x is None else x.clone() for x in inputs))
    for x in changed:
        assert x is not None
        x[:, 70:] = -torch.rand_like(x[:, 70:])
    assert torch.equal(power_attention(*changed, power=2)[:, :70], y[:, :70])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype(dtype):
    inputs = make(67, dtype=dtype)
    wide = Inputs(*(None if x is None else x.double() for x in inputs))
    for fields in SETTINGS.values():
        exact = power_attention_dense(*wide, **fields)
        for form in POWER_FORMS:
            actual = power_attention(*inputs, **fields, form=form)
            assert actual.dtype == torch.float32
            # Features of a power of 4 add up to a small part of their sizes.
            assert_close(actual, exact, factor=30)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert torch.equal(power_attention(*inputs, **fields, form=form), actual)


def test_gates_near_zero_and_long_inputs_stay_finite():
    """Products of gates fall below the smallest number, and their logarithms far below what exp can take."""
    q, k, v, gates = make(1500, batch=1, dtype=torch.float32)
    assert gates is not None
    gates = (40 * gates).requires_grad_()
    y = power_attention(q, k, v, gates)
    assert_close(y, power_attention_dense(*(x.detach().double() for x in (q, k, v, gates))), factor=10)
    (gradient,) = torch.autograd.grad(y.square().sum(), gates)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 90)])
def test_empty_inputs(shape):
    x = torch.randn(*shape, 3, 4, requires_grad=True)
    for form in POWER_FORMS:
        y = power_attention(x, x, x, torch.zeros(*shape, 3), power=2, form=form)
        assert y.shape == x.shape
        y.sum().backward()
    assert power_sums(x, x, torch.zeros(*shape, 3), power=2).products.shape == (shape[0], 3, 10, 4)


def test_function_transforms():
    q, k, v, gates = make(40)
    by_rows = torch.func.vmap(lambda *x: power_attention(*(y[None] for y in x), power=2, chunk=16)[0])(q, k, v, gates)
    assert_close(by_rows, power_attention(q, k, v, gates, power=2))
    _, tangent = torch.func.jvp(lambda v: power_attention(q, k, v, gates, power=2), (v,), (v,))
    assert_close(tangent, power_attention(q, k, v, gates, power=2))


def test_in_a_fixed_order_lengths_and_neighbors_do_not_matter():
    q, k, v, gates = make(70, dtype=torch.float32)
    with batch_invariant():
        whole = power_attention(q, k, v, gates, power=2)
        assert gates is not None
        for row, n in ((0, 33), (1, 1), (1, 65)):
            part = slice(row, row + 1), slice(0, n)
            assert torch.equal(power_attention(q[part], k[part], v[part], gates[part], power=2), whole[part])
        last = power_attention(q[:, 69:], k, v, gates, power=2)
        assert torch.equal(last, whole[:, 69:])


# opcheck asks for it itself, and where warnings are errors torch 2.15 cannot hide it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.one_in(4)
def test_the_operator_is_sound(name):
    q, k, v, gates = (x.transpose(1, 2).contiguous().requires_grad_() for x in make(7) if x is not None)
    power, denominator = SETTINGS[name].get("power", 1), int("weights" in name)
    for extra in ([], [gates]):
        settings = [power, 3, denominator, len(extra), 0]
        real = torch.ones(2, 7, dtype=torch.float64)
        torch.library.opcheck(power_attention_operator.traced, ([q, k, v, real, *extra], settings))


class Module(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, gates: Tensor) -> Tensor:
        return power_attention(q, k, v, gates, power=2, denominator=True)


@pytest.mark.parametrize("real", [False, True])
def test_one_graph_for_all_lengths(real):
    dim = torch.export.Dim("length", min=2, max=4096)

    def export() -> torch.export.ExportedProgram:
        return torch.export.export(Module(), tuple(make(12)), dynamic_shapes=({1: dim},) * 4)

    if real:
        with real_valued():
            program = export()
        assert not any("hf_seqmix" in str(node.target) for node in program.graph.nodes)
    else:
        program = export()
    for length in (2, 12, 64, 100):
        inputs = make(length)
        assert_close(program.module()(*inputs), power_attention_dense(*inputs, power=2, denominator=True))


def test_compiled_gradients():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(Module(), backend=counter, fullgraph=True)
    for length in (5, 9, 65, 131):
        leaves = [x.requires_grad_() for x in make(length) if x is not None]
        results = []
        for function in (compiled, Module()):
            y = function(*leaves)
            results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
        for actual, expected in zip(*results, strict=True):
            assert_close(actual, expected)
    assert counter.frame_count <= 2


def test_chunks_grow_with_the_number_of_features():
    assert chunk_size(48, 1) == 64 and chunk_size(32, 2) == 132 and chunk_size(48, 2) == 256


@pytest.mark.parametrize("form", POWER_FORMS)
def test_a_gate_may_be_shut(form: str) -> None:
    inputs = make(67)
    inputs.log_gates[:, [3, 40, 41]] = -torch.inf
    assert_close(power_attention(*inputs, form=form), power_attention_dense(*inputs))


@pytest.mark.parametrize("seen", [4, 41, 50])
def test_sums_go_on_after_a_shut_gate(seen: int) -> None:
    inputs = make(60)
    assert inputs.log_gates is not None
    inputs.log_gates[:, [3, 40, 41]] = -torch.inf
    first, rest = (Inputs(*(x[:, part] for x in inputs)) for part in (slice(seen), slice(seen, None)))
    sums = power_sums(*first[1:], power=2)
    assert_close(power_attention(*rest, power=2, sums=sums), power_attention_dense(*inputs, power=2)[:, seen:])
