"""Linear attention without a denominator, running sums and signed powers, against their definitions."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from hf_seqmix.ops import linear_attention, polynomial_product
from hf_seqmix.ops.polynomial import linear_attention as causal_sum
from hf_seqmix.ops.polynomial import running_mean as running_product
from hf_seqmix.ops.polynomial.linear_attention import LOOP_CHUNK
from hf_seqmix.ops.polynomial.stages import FORMS, outer_sum, running_sum, signed_power
from tests.tolerances import assert_close

LENGTHS = (1, 2, 31, 32, 33, 64, 97, 131)


def make(length: int, earlier: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and a state: heads 5 wide, values 4 wide."""
    q = torch.randn(2, length, 3, 5, dtype=torch.float64)
    k = torch.randn(2, earlier + length, 3, 5, dtype=torch.float64)
    v = torch.randn(2, earlier + length, 3, 4, dtype=torch.float64)
    state = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    return q.to(dtype), k.to(dtype), v.to(dtype), state.to(torch.promote_types(dtype, torch.float32))


def one_head(length: int) -> list[Tensor]:
    """The same, to be differentiated, with a batch and heads as small as can be."""
    *tokens, state = make(length)
    return [x.requires_grad_() for x in (*(x[:1, :, :1, :1] for x in tokens), state[:1, :1, :1, :1])]


def brute_force(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, causal: bool) -> Tensor:
    """The definition, one product of one query, one key and one value at a time."""
    earlier = k.shape[1] - q.shape[1]
    y = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    for t in range(q.shape[1]):
        for s in range(earlier + t + 1 if causal else k.shape[1]):
            y[:, t] += (q[:, t] * k[:, s]).sum(dim=-1, keepdim=True) * v[:, s]
        if state is not None:
            y[:, t] += (q[:, t].unsqueeze(-1) * state).sum(dim=-2)
    return y


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("length", "earlier"), [(1, 0), (1, 7), (7, 0), (13, 4), (37, 0), (37, 5)])
def test_every_form_equals_the_triple_sum(length, earlier, form, causal):
    q, k, v, state = make(length, earlier)
    for start in (None, state):
        actual = linear_attention(q, k, v, start, causal=causal, form=form)
        assert (actual - brute_force(q, k, v, start, causal)).abs().max() < 1e-11


@pytest.mark.parametrize("length", LENGTHS)
def test_the_forms_agree_to_twelve_digits(length, poisoned_empty):
    q, k, v, state = make(length)
    scale = length**0.5
    forms = [linear_attention(q, k, v, state, form=form) / scale for form in FORMS]
    vectorized = causal_sum.causal_sum_vectorized(q, k, v, state) / scale
    for other in (*forms[1:], vectorized):
        assert (other - forms[0]).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [1, 33, 131])
def test_every_dtype(length, dtype):
    q, k, v, state = make(length, dtype=dtype)
    exact = linear_attention(q.double(), k.double(), v.double(), state.double(), form="parallel")
    for form in FORMS:
        actual = linear_attention(q, k, v, state, form=form)
        assert actual.dtype == torch.float32  # whatever the input, so that sums neither overflow nor lose digits
        assert_close(actual, exact)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(linear_attention(q, k, v, state, form=form), actual)


@pytest.mark.parametrize("length", [7, 33, 97])
def test_gradients_of_the_forms_agree(length, poisoned_empty):
    inputs = [x.requires_grad_() for x in make(length)]
    upstream = torch.randn(2, length, 3, 4, dtype=torch.float64)
    results = []
    for form in FORMS:
        first = torch.autograd.grad(linear_attention(*inputs, form=form), inputs, upstream, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
        results.append((*first, *second))
    for others in results[1:]:
        for actual, expected in zip(others, results[0], strict=True):
            assert_close(actual, expected)


def test_gradients_by_finite_differences():
    """Of more positions than a chunk has."""
    q, k, v, state = one_head(LOOP_CHUNK + 2)
    assert torch.autograd.gradcheck(linear_attention, (q, k, v, state))
    assert torch.autograd.gradgradcheck(linear_attention, (q, k, v, state))
    q, k, v, _ = (x[:1].requires_grad_() for x in make(5))
    assert torch.autograd.gradcheck(lambda k, v: linear_attention(q[:, 1:4], k, v), (k, v))


def test_function_transforms():
    q, k, v, state = make(40)
    by_rows = torch.func.vmap(lambda q, s: linear_attention(q[None], k[:1], v[:1], s[None])[0])(q, state)
    assert_close(by_rows, linear_attention(q, k[:1].expand_as(k), v[:1].expand_as(v), state))
    _, tangent = torch.func.jvp(lambda k: linear_attention(q, k, v, state), (k,), (k,))
    assert_close(tangent, linear_attention(q, k, v))
    jacobian = torch.func.jacrev(lambda q: linear_attention(q, k[:1], v[:1]).sum(dim=(0, 2, 3)))(q[:1])
    assert not torch.triu(jacobian[:, 0].abs().sum(dim=(2, 3)), 1).any()


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 40)])
def test_empty_inputs(shape):
    x = torch.randn(*shape, 3, 4, requires_grad=True)
    for form in FORMS:
        for causal in (True, False):
            y = linear_attention(x, x, x, causal=causal, form=form)
            assert y.shape == x.shape
            q = torch.randn_like(x, requires_grad=True)  # needs a gradient alone
            linear_attention(q, x.detach(), x.detach(), causal=causal, form=form).sum().backward()
            assert q.grad is not None and q.grad.shape == x.shape
    y.sum().backward()
    assert running_sum(x).shape == x.shape
    assert outer_sum(x, x).shape == (shape[0], 3, 4, 4)


def test_one_graph_for_all_lengths():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(linear_attention, backend=counter, fullgraph=True)
    for length in (5, 9, 63, 64, 65, 128, 200):
        q, k, v, state = make(length)
        assert_close(compiled(q, k, v, state), linear_attention(q, k, v, state))
    assert counter.frame_count <= 2

    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return linear_attention(q, k, v)

    dim = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Module(), make(12)[:3], dynamic_shapes=({1: dim},) * 3)
    for length in (2, 12, 64, 100):
        inputs = make(length)[:3]
        assert_close(program.module()(*inputs), linear_attention(*inputs))


# opcheck asks for it itself, and where warnings are errors torch 2.15 cannot hide it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.one_in(2)
def test_the_operators_are_sound(with_state, reverse):
    a, b, c, state = (x.requires_grad_() for x in make(37))
    outer, inner = torch.rand(2, 37, dtype=torch.float64), torch.rand(2, 37, dtype=torch.float64)
    factors = (outer, inner) if with_state else (None, None)
    dtype = torch.float64
    torch.library.opcheck(
        causal_sum.causal_sum.traced, (a, b, c, state if with_state else None, *factors, reverse, dtype)
    )
    pair = (a, make(37)[2].requires_grad_(), b, c, *factors, reverse, dtype, dtype)
    torch.library.opcheck(causal_sum.causal_pair.traced, pair)
    p, x, z = torch.randn(3, 2, 37, 3, dtype=torch.float64).unbind()
    for tensor in (p, x, z):
        tensor.requires_grad_()
    start = torch.randn(2, 3, dtype=torch.float64) if with_state else None
    optional = (None, x, None) if with_state else (p, x, z)
    torch.library.opcheck(running_product.running_sums.traced, (*optional, start, *factors, reverse, dtype))


def dense(
    a: Tensor, b: Tensor, c: Tensor, state: Tensor | None, outer: Tensor, inner: Tensor, reverse: bool
) -> Tensor:
    """The sum with the matrix of all products, masked."""
    query, key, value = a.transpose(1, 2), (b * inner[:, :, None, None]).transpose(1, 2), c.transpose(1, 2)
    scores = query @ key.mT
    y = (scores.triu() if reverse else scores.tril()) @ value
    y = y if state is None else y + query @ state
    return y.transpose(1, 2) * outer[:, :, None, None]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 97])
def test_factors_of_positions_and_both_directions(length, reverse, batch, poisoned_empty):
    """On the CPU one chunk after another, elsewhere all at once; a pair is two sums."""
    a, b, c, state = (x[:batch] for x in make(length))
    d = torch.randn_like(c)
    outer, inner = torch.rand(2, batch, length, dtype=torch.float64)
    dtype = torch.float64
    for start in (None, state):
        expected = dense(a, b, c, start, outer, inner, reverse)
        for chunk in (None, 3):
            y = causal_sum.causal_sum.compute(a, b, c, start, outer, inner, reverse, dtype, chunk)
            assert_close(y, expected)
        scaled = b * inner[:, :, None, None]
        at_once = causal_sum.causal_sum_vectorized(a, scaled, c, start, reverse) * outer[:, :, None, None]
        assert_close(at_once, expected)
    y, z = causal_sum.causal_pair.compute(a, d, b, c, outer, inner, reverse, dtype, torch.float32)
    assert_close(y, dense(a, b, c, None, outer, inner, reverse))
    assert z.dtype == torch.float32
    assert_close(z, dense(d, c, b, None, outer, inner, reverse))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 97])
def test_running_products_of_both_kinds(length, reverse, poisoned_empty):
    p, x, z = torch.randn(3, 2, length, 5, dtype=torch.float64)
    outer, inner = torch.rand(2, 2, length, dtype=torch.float64)
    start = torch.randn(2, 5, dtype=torch.float64)
    for first, last, begin in ((p, z, start), (None, z, None), (p, None, start)):
        terms = (x if last is None else x * last) * inner.unsqueeze(-1)
        sums = terms.flip(1).cumsum(1).flip(1) if reverse else terms.cumsum(1)
        sums = sums if begin is None else sums + begin.unsqueeze(1)
        expected = (sums if first is None else sums * first) * outer.unsqueeze(-1)
        arguments = (first, x, last, begin, outer, inner, reverse, torch.float64)
        for chunk in (2, 32):
            assert_close(running_product.running_sums.compute(*arguments, chunk), expected)
            assert_close(running_product._at_once(*arguments, chunk), expected)


@pytest.mark.parametrize("traced", [False, True])
def test_second_derivatives_of_sums_with_factors(traced):
    """Of more positions than a chunk has."""
    length = LOOP_CHUNK + 2
    q, k, v, state = one_head(length)
    scale = torch.rand(1, length, dtype=torch.float64)

    def attention(q, k, v, state):
        return causal_sum.causal_sum(traced, q, k, v, state, scale, None, False, torch.float64)

    assert torch.autograd.gradcheck(attention, (q, k, v, state))
    assert torch.autograd.gradgradcheck(attention, (q, k, v, state), fast_mode=True)
    p, x = torch.randn(2, 1, length, 1, dtype=torch.float64).requires_grad_()
    start = torch.randn(1, 1, dtype=torch.float64, requires_grad=True)
    arguments = (p, x, start)

    def call(p, x, start):
        return running_product.running_sums(traced, p, x, None, start, scale, None, False, torch.float64)

    assert torch.autograd.gradcheck(call, arguments)
    assert torch.autograd.gradgradcheck(call, arguments)


def test_transforms_of_a_whole_product():
    factors = torch.randn(4, 3, 2, 40, 2, 4, dtype=torch.float64)

    def energy(factors: Tensor) -> Tensor:
        return polynomial_product(list(factors)).y.square().sum()

    by_rows = torch.func.vmap(torch.func.grad(energy), in_dims=1, out_dims=1)(factors)
    expected = torch.stack([torch.func.grad(energy)(factors[:, i]) for i in range(3)], dim=1)
    assert_close(by_rows, expected)
    tangent = torch.randn_like(factors[:, 0])
    _, along = torch.func.jvp(energy, (factors[:, 0],), (tangent,))
    assert along.item() == pytest.approx((expected[:, 0] * tangent).sum().item())


@pytest.mark.parametrize("shape", [(1, 40), (2, 1), (1, 1)])
@pytest.mark.parametrize("form", FORMS)
def test_a_scale_may_serve_all_rows_or_positions(form, shape):
    q, k, v, state = make(40)
    scale = torch.rand(shape, dtype=torch.float64)
    y = linear_attention(q, k, v, state, form=form, scale=scale)
    assert_close(y, linear_attention(q, k, v, state, form=form, scale=scale.expand(2, 40)))


def test_a_scale_that_is_learned_gets_its_gradient():
    q, k, v, state = make(40)
    scale = torch.rand(2, 40, dtype=torch.float64, requires_grad=True)
    gradients = [
        torch.autograd.grad(linear_attention(q, k, v, state, form=form, scale=scale).square().sum(), scale)[0]
        for form in FORMS
    ]
    for other in gradients[1:]:
        assert_close(other, gradients[0])


@pytest.mark.parametrize(("degree", "degree_form"), [(3, "cumsum"), (4, "cumsum"), (4, "gate")])
def test_nothing_is_saved_but_the_factors(degree, degree_form):
    """In their own dtype: no copies in float32, no sums."""
    factors = [torch.randn(1, 200, 2, 8).bfloat16().requires_grad_() for _ in range(degree)]
    held: dict[int, Tensor] = {}

    def hold(x: Tensor) -> Tensor:
        return held.setdefault(x.data_ptr(), x)

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda x: x):
        y = polynomial_product(factors, degree_form).y
    own = {x.data_ptr() for x in factors}
    rest = sum(x.nbytes for address, x in held.items() if address not in own)
    # The query of degree 4, or what is gated, in float32; and two numbers a position.
    assert rest <= (y.nbytes if degree == 4 else 0) + 2 * 4 * 200


@pytest.mark.parametrize("length", LENGTHS)
def test_running_sums(length):
    x, start = torch.randn(2, length, 3, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    expected = torch.stack([x[:, : t + 1].sum(dim=1) for t in range(length)], dim=1)
    assert_close(running_sum(x), expected)
    assert_close(running_sum(x, start, length=1), expected[:, -1:] + start.unsqueeze(1))
    assert_close(running_sum(x, causal=False), expected[:, -1:])
    half = running_sum(x.bfloat16())
    assert half.dtype == torch.float32
    assert_close(half, running_sum(x.bfloat16().double()))


def test_signed_powers():
    z = torch.tensor([-9.0, -4.0, 0.0, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(signed_power(z, 0.5), z * (z.square() + 1e-4) ** -0.25)
    torch.testing.assert_close(signed_power(z, 0.5), z.sign() * z.abs().sqrt(), rtol=1e-4, atol=1e-6)
    assert torch.equal(signed_power(z, 1.0), z)
    (slope,) = torch.autograd.grad(signed_power(z, 0.5).sum(), z)
    assert slope[2].item() == pytest.approx(1e-4**-0.25)
    assert signed_power(z.half(), 0.718).dtype == torch.float32
    assert torch.autograd.gradcheck(lambda z: signed_power(z, 0.718), z)


def test_what_does_not_fit_is_refused():
    q, k, v, _ = make(5)
    with pytest.raises(ValueError, match="form is 'fast'; it must be one of 'chunked', 'parallel', 'recurrent'"):
        linear_attention(q, k, v, form="fast")
    with pytest.raises(ValueError, match="as many keys as values"):
        linear_attention(q, k[:, 1:], v)
    with pytest.raises(ValueError, match="there are 5 queries but 4 keys"):
        linear_attention(q, k[:, 1:], v[:, 1:])


def test_sums_of_shapes_that_do_not_fit_are_refused():
    x = torch.randn(2, 5, 3, 4)
    with pytest.raises(ValueError, match=r"start has shape \(3, 4\); it must be \(2, 3, 4\)"):
        running_sum(x, torch.zeros(3, 4))
    with pytest.raises(ValueError, match="start has shape"):
        running_sum(x, torch.zeros(1, 3, 4))
    with pytest.raises(ValueError, match=r"k has shape \(2, 5, 3, 4\) and v \(2, 1, 3, 4\)"):
        outer_sum(x, x[:, :1])
