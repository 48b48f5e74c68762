"""The Toeplitz product against the dense matrices, forward, backward and twice backward."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from hf_seqmix.ops import toeplitz_matmul, toeplitz_matmul_dense, toeplitz_matrix, toeplitz_step
from hf_seqmix.ops.toeplitz.derivatives import toeplitz_gradients, toeplitz_product
from tests.tolerances import assert_close, relative_error
from tests.transforms import check_transforms

LENGTHS = (1, 2, 3, 4, 7, 16, 17, 31, 64, 97, 128, 251)


def make(length: int, causal: bool, dtype: torch.dtype = torch.float64, batch: int = 2, channels: int = 3):
    x = torch.randn(batch, channels, length, dtype=torch.float64)
    kernel = torch.randn(channels, length if causal else 2 * length - 1, dtype=torch.float64)
    return x.to(dtype), kernel.to(torch.float64 if dtype == torch.float64 else torch.float32)


def gradients(function, x: Tensor, kernel: Tensor, causal: bool, upstream: Tensor) -> tuple[Tensor, ...]:
    x, kernel = x.detach().requires_grad_(), kernel.detach().requires_grad_()
    y = function(x, kernel, causal)
    return (y.detach(), *torch.autograd.grad(y, (x, kernel), upstream.to(y.dtype)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_equals_the_dense_product(length, causal, dtype, poisoned_empty):
    x, kernel = make(length, causal, dtype)
    upstream = torch.randn(x.shape, dtype=torch.float64)
    actual = gradients(toeplitz_matmul, x, kernel, causal, upstream)
    expected = gradients(toeplitz_matmul_dense, x.double(), kernel.double(), causal, upstream.to(dtype).double())
    for ours, exact in zip(actual, expected, strict=True):
        assert_close(ours, exact, dtype)
    assert actual[0].dtype == actual[1].dtype == dtype
    assert actual[2].dtype == kernel.dtype


def test_definition_by_hand():
    x = torch.tensor([[[1.0, 10.0, 100.0]]], dtype=torch.float64)
    causal = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    assert toeplitz_matmul(x, causal)[0, 0].tolist() == pytest.approx([1.0, 12.0, 123.0])
    # Lags -2 to 2: a positive lag looks at the past.
    both = torch.tensor([[7.0, 5.0, 1.0, 2.0, 3.0]], dtype=torch.float64)
    assert toeplitz_matmul(x, both, causal=False)[0, 0].tolist() == pytest.approx([751.0, 512.0, 123.0])
    assert toeplitz_matrix(both, 3, causal=False)[0].tolist() == [[1, 5, 7], [2, 1, 5], [3, 2, 1]]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 5, 7])
def test_gradcheck_and_gradgradcheck(length, causal):
    x, kernel = (t.requires_grad_() for t in make(length, causal, channels=2))
    assert torch.autograd.gradcheck(lambda a, b: toeplitz_matmul(a, b, causal), (x, kernel))
    assert torch.autograd.gradgradcheck(lambda a, b: toeplitz_matmul(a, b, causal), (x, kernel))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_one_argument_alone(which, causal):
    inputs = list(make(9, causal))
    inputs[which].requires_grad_()
    upstream = torch.randn(2, 3, 9, dtype=torch.float64)
    (ours,) = torch.autograd.grad(toeplitz_matmul(*inputs, causal), inputs[which], upstream)
    (exact,) = torch.autograd.grad(toeplitz_matmul_dense(*inputs, causal), inputs[which], upstream)
    assert_close(ours, exact)


@pytest.mark.parametrize("causal", [True, False])
def test_non_contiguous_inputs(causal):
    x, kernel = make(13, causal)
    strided = x.transpose(1, 2).contiguous().transpose(1, 2)
    upstream = torch.randn(2, 13, 3, dtype=torch.float64).transpose(1, 2)
    wide = torch.cat([kernel, kernel], dim=1)[:, : kernel.shape[1]]
    for ours, exact in zip(
        gradients(toeplitz_matmul, strided, wide, causal, upstream),
        gradients(toeplitz_matmul_dense, x, kernel, causal, upstream),
        strict=True,
    ):
        assert_close(ours, exact)


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 5), (2, 0, 5)])
@pytest.mark.parametrize("causal", [True, False])
def test_empty_inputs_give_empty_results(shape, causal):
    x = torch.randn(shape, requires_grad=True)
    taps = shape[2] if causal else max(2 * shape[2] - 1, 0)
    kernel = torch.randn(shape[1], taps, requires_grad=True)
    y = toeplitz_matmul(x, kernel, causal)
    assert y.shape == shape
    y.sum().backward()
    assert x.grad is not None and kernel.grad is not None and not kernel.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backward_keeps_the_input_and_the_kernel_only(dtype):
    x, kernel = make(64, True, dtype, batch=4, channels=8)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        toeplitz_matmul(x.requires_grad_(), kernel.requires_grad_())
    held = sum(t.untyped_storage().nbytes() for t in {t.untyped_storage().data_ptr(): t for t in saved}.values())
    assert held == x.untyped_storage().nbytes() + kernel.untyped_storage().nbytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_reach_the_transform(dtype):
    x, kernel = make(50, True, torch.float32)
    expected = toeplitz_matmul(x, kernel)
    with torch.autocast("cpu", dtype=dtype):
        actual = toeplitz_matmul(x, kernel)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, expected)


def test_the_future_does_not_reach_the_past():
    x, kernel = make(200, True, torch.float32)
    changed = x.clone()
    changed[..., 120] += 1.0
    before, after = toeplitz_matmul(x, kernel), toeplitz_matmul(changed, kernel)
    assert relative_error(after[..., :120], before[..., :120]) < 1e-5
    assert relative_error(after[..., 120:], before[..., 120:]) > 1e-3


# opcheck asks for it itself, and where warnings are errors torch 2.15 cannot hide it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_operators_pass_opcheck():
    x, kernel = (t.requires_grad_() for t in make(9, True, torch.float32))
    g = torch.randn(2, 3, 9, requires_grad=True)
    for wrt, args in {"output": (x, kernel), "input": (g, kernel), "kernel": (g, x)}.items():
        torch.library.opcheck(toeplitz_product.traced, (*args, wrt, True))
    torch.library.opcheck(toeplitz_gradients.traced, (g, x, kernel, True))


def test_compiles_once_for_all_lengths():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda a, b: toeplitz_matmul(a, b).sin(), backend=counter, fullgraph=True, dynamic=True)
    for length in (5, 12, 33, 64, 101):
        x, kernel = (t.requires_grad_() for t in make(length, True))
        compiled(x, kernel).sum().backward()
        assert_close(compiled(x, kernel), toeplitz_matmul_dense(x, kernel).sin())
    assert counter.frame_count == 1


@pytest.mark.parametrize("causal", [True, False])
def test_both_faces_of_the_operator_agree(causal):
    x, kernel = (t.requires_grad_() for t in make(13, causal))
    upstream = torch.randn(2, 3, 13, dtype=torch.float64)
    ours = torch.autograd.grad(toeplitz_matmul(x, kernel, causal), (x, kernel), upstream)
    traced = torch.autograd.grad(toeplitz_product(True, x, kernel, "output", causal), (x, kernel), upstream)
    for a, b in zip(ours, traced, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("causal", [True, False])
def test_second_derivatives_of_the_traced_face(causal):
    x, kernel = (t.requires_grad_() for t in make(5, causal, channels=2))
    assert torch.autograd.gradcheck(lambda a, b: toeplitz_product(True, a, b, "output", causal), (x, kernel))
    assert torch.autograd.gradgradcheck(lambda a, b: toeplitz_product(True, a, b, "output", causal), (x, kernel))


def test_symbolic_lengths_are_traced_without_compilation():
    from torch.fx.experimental.proxy_tensor import make_fx

    x, kernel = make(9, True)
    graph = make_fx(lambda a, b: toeplitz_matmul(a, b), tracing_mode="symbolic")(x, kernel)
    x, kernel = make(14, True)
    assert_close(graph(x, kernel), toeplitz_matmul_dense(x, kernel))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_transforms_of_torch_func(length, causal):
    def exact(x, kernel):
        return toeplitz_matmul_dense(x, kernel, causal)

    x, kernel = make(length, causal)
    check_transforms(lambda x, kernel: toeplitz_matmul(x, kernel, causal), exact, x, kernel)
    tangent = torch.randn_like(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        along = torch.autograd.forward_ad.unpack_dual(toeplitz_matmul(dual, kernel, causal)).tangent
    assert_close(along, exact(tangent, kernel))


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # of torch's modules
@pytest.mark.parametrize(
    ("causal", "backend"),
    [(False, "aot_eager"), *(pytest.param(causal, "inductor", marks=pytest.mark.slow) for causal in (True, False))],
)
def test_forward_mode_is_compiled(causal, backend):
    x, kernel = make(6, causal)
    tangents = torch.randn_like(x), torch.randn_like(kernel)

    def along(x, kernel):
        return torch.func.jvp(lambda a, k: toeplitz_matmul(a, k, causal), (x, kernel), tangents)[1]

    torch._dynamo.reset()
    exact = toeplitz_matmul_dense(tangents[0], kernel, causal) + toeplitz_matmul_dense(x, tangents[1], causal)
    assert_close(torch.compile(along, backend=backend, fullgraph=True)(x, kernel), exact)


@pytest.mark.parametrize(
    ("x_shape", "kernel_shape", "causal", "message"),
    [
        ((2, 3), (3, 4), True, r"\(batch, channels, length\)"),
        ((2, 3, 4), (3, 5), True, r"\(3, 4\) is needed"),
        ((2, 3, 4), (3, 4), False, r"\(3, 7\) is needed"),
        ((2, 3, 4), (2, 4), True, r"\(3, 4\) is needed"),
    ],
)
def test_shapes_that_do_not_fit(x_shape, kernel_shape, causal, message):
    with pytest.raises(ValueError, match=message):
        toeplitz_matmul(torch.zeros(x_shape), torch.zeros(kernel_shape), causal)


def test_dtypes_that_do_not_fit():
    with pytest.raises(ValueError, match="floating-point"):
        toeplitz_matmul(torch.zeros(1, 1, 2, dtype=torch.long), torch.zeros(1, 2))


@pytest.mark.parametrize("length", [1, 2, 13])
def test_step_equals_the_last_output(length):
    x, kernel = make(length, True)
    expected = toeplitz_matmul_dense(x, kernel)
    more_taps = torch.cat([kernel, torch.randn(3, 4, dtype=kernel.dtype)], dim=1)
    step = toeplitz_step(x.transpose(1, 2), more_taps)
    assert_close(step[:, 0], expected[..., -1])
    # A preallocated history has places after the newest input, whatever stands there.
    longer = torch.cat([x, torch.randn(2, 3, 3, dtype=x.dtype)], dim=2).transpose(1, 2)
    step = toeplitz_step(longer, more_taps, torch.tensor([length - 1]))
    assert_close(step[:, 0], expected[..., -1])


@pytest.mark.parametrize(
    ("shape", "causal", "message"),
    [
        (
            (2, 9),
            False,
            r"shape \(2, 9\); a bidirectional matrix of length 4 needs .* 2 length - 1 taps, 7",
        ),
        ((2, 4), False, "2 length - 1 taps, 7"),
        ((2, 3), True, "a causal matrix of length 4 needs .* length taps or more, 4"),
        ((4,), True, r"\(channels, taps\)"),
    ],
)
def test_a_matrix_of_another_length_is_refused(shape, causal, message):
    with pytest.raises(ValueError, match=message):
        toeplitz_matrix(torch.zeros(shape), 4, causal)


def test_a_matrix_may_have_fewer_rows_than_taps():
    assert toeplitz_matrix(torch.tensor([[1.0, 2.0, 3.0]]), 2)[0].tolist() == [[1, 0], [2, 1]]
    assert toeplitz_matrix(torch.zeros(2, 0), 0, causal=False).shape == (2, 0, 0)


@pytest.mark.parametrize("position", [-1, 5])
def test_a_step_outside_the_history_is_refused(position):
    with pytest.raises(ValueError, match=f"position is {position}; the history has positions 0 to 4"):
        toeplitz_step(torch.zeros(2, 5, 3), torch.zeros(3, 9), torch.tensor([position]))


def test_a_step_for_rows_at_positions_of_their_own():
    """A transform has no numbers to look at."""
    histories, kernel, positions = torch.randn(3, 1, 5, 4), torch.randn(4, 5), torch.tensor([[0], [2], [4]])
    steps = torch.vmap(lambda history, position: toeplitz_step(history, kernel, position))(histories, positions)
    alone = [toeplitz_step(*pair[:1], kernel, pair[1]) for pair in zip(histories, positions, strict=True)]
    assert_close(steps, torch.stack(alone))
