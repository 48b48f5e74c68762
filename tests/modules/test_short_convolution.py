"""The short convolution: by its formula, over packed and padded rows, and continued."""

import math
from functools import partial

import pytest
import torch

from hf_seqmix import ShortConvolution
from hf_seqmix.cache.recent_inputs import RecentInputs
from hf_seqmix.ops.layout import TokenLayout, token_layout
from tests.tolerances import assert_close


def make(taps: int = 3, is_causal: bool = True) -> ShortConvolution:
    convolution = ShortConvolution(4, taps, is_causal).double()
    convolution.weight.data += torch.randn_like(convolution.weight)
    return convolution


@pytest.mark.parametrize("is_causal", [True, False])
def test_starts_as_the_identity(is_causal):
    x = torch.randn(2, 5, 4)
    for taps in (1, 3):
        convolution = ShortConvolution(4, taps, is_causal)
        assert torch.equal(convolution(x), x)
        convolution.weight.data.normal_()
        convolution.init_weights()
        assert torch.equal(convolution(x), x)


def test_starts_as_pytorch_draws_taps():
    weight = ShortConvolution(500, 4, start="uniform").weight.detach()
    reference = torch.nn.Conv1d(500, 500, 4, groups=500).weight.detach()
    assert weight.abs().max() <= 1 / math.sqrt(4)
    torch.testing.assert_close(weight.std(), reference.std(), rtol=0.1, atol=0)
    assert weight.mean().abs() < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "taps is 0; a short convolution has at least 1 tap"),
        ((4, False), "taps is 4; a centered convolution .* needs an odd number"),
        ((4, True, "zeros"), "start is 'zeros'; it must be one of 'identity', 'uniform'"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        ShortConvolution(4, *arguments)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_mask_is_a_layout(is_causal):
    convolution, x = make(3, is_causal), torch.randn(2, 5, 4, dtype=torch.float64)
    mask = torch.tensor([[1] * 5, [0, 1, 0, 1, 1]])
    found, real = convolution(x, mask), mask.bool()
    assert_close(found[real], convolution(x, token_layout(mask, 2, 5))[real])
    assert_close(found[1][real[1]], convolution(x[1:, real[1]])[0])
    with pytest.raises(TypeError, match="layout is a list; it must be a tensor, 1 at real tokens, or a TokenLayout"):
        convolution(x, mask.tolist())
    with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 4\)"):
        convolution(x, mask[:, 1:])


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 3, 4), (1, 2, 4), (2, 2, 3), (2, 4)])
def test_earlier_inputs_of_another_shape_are_refused(shape, length):
    convolution, x = make(), torch.randn(2, length, 4, dtype=torch.float64)
    real = torch.ones(2, length, dtype=torch.bool)
    calls = [partial(convolution, x, None)]
    calls += [partial(convolution.continued, x, real=mask) for mask in (None, real)]
    for call in calls:
        with pytest.raises(ValueError, match=r"before has shape \(.*\); it must be \(2, 2, 4\), the last taps - 1"):
            call(torch.zeros(shape, dtype=torch.float64))


def test_earlier_inputs_and_a_layout_are_refused():
    x = torch.randn(1, 5, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"before was given together with a layout, .*: call `continued` instead"):
        make()(x, TokenLayout(), x[:, :2])


@pytest.mark.parametrize(("taps", "is_causal"), [(1, True), (2, True), (5, True), (1, False), (5, False), (9, False)])
@pytest.mark.parametrize("length", [1, 3, 7])
def test_by_its_formula(taps, length, is_causal):
    convolution, x = make(taps, is_causal), torch.randn(2, length, 4, dtype=torch.float64)
    first = 0 if is_causal else -(taps // 2)
    expected = torch.zeros_like(x)
    for i in range(length):
        for index, t in enumerate(range(first, first + taps)):
            if 0 <= i - t < length:
                expected[:, i] += convolution.weight[:, index] * x[:, i - t]
    assert_close(convolution(x), expected)


@pytest.mark.parametrize("is_causal", [True, False])
def test_padded_and_packed_rows_equal_each_sequence_alone(is_causal):
    convolution, x = make(5, is_causal), torch.randn(2, 11, 4, dtype=torch.float64)
    mask = torch.tensor([[0, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0]]).bool()
    out = convolution(x, token_layout(mask, 2, 11))
    for row in range(2):
        assert_close(out[row][mask[row]], convolution(x[row][mask[row]][None])[0])
    packed = convolution(x, token_layout(None, 2, 11, seq_idx=torch.tensor([[0] * 4 + [1] + [2] * 6] * 2)))
    assert_close(packed, torch.cat([convolution(part) for part in x.split([4, 1, 6], dim=1)], dim=1))


def test_goes_on_over_real_tokens():
    convolution, x = make(), torch.randn(2, 9, 4, dtype=torch.float64)
    mask = torch.tensor([[1, 0, 1, 1, 0, 0, 1, 1, 0], [0, 0, 1, 0, 1, 1, 1, 1, 1]]).bool()
    x = x * mask.unsqueeze(-1)
    recent, parts = RecentInputs(), []
    for chunk, real in zip(x.split([2, 1, 4, 2], 1), mask.split([2, 1, 4, 2], 1), strict=True):
        before = recent.push(chunk, real, 2)
        parts.append(convolution.continued(chunk, before, None if real.all() else real))
    out = torch.cat(parts, 1)
    for row in range(2):
        assert_close(out[row][mask[row]], convolution(x[row][mask[row]][None])[0])


@pytest.mark.parametrize("taps", [1, 2, 4, 11])
def test_token_by_token(taps):
    convolution, x = make(taps), torch.randn(2, 30, 4, dtype=torch.float64)
    recent = RecentInputs()
    steps = [convolution.continued(token, recent.push(token, None, taps - 1), None) for token in x.split(1, 1)]
    assert_close(torch.cat(steps, 1), convolution(x))


def test_a_centered_one_does_not_go_on():
    with pytest.raises(ValueError, match="a bidirectional convolution does not go on after earlier inputs"):
        make(3, False)(torch.randn(1, 4, 4, dtype=torch.float64), before=torch.zeros(1, 2, 4))


def test_autocast_reaches_neither_result_nor_gradient():
    convolution, x = ShortConvolution(4, 4, start="uniform"), torch.randn(2, 9, 4, requires_grad=True)
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            y = convolution(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), (x, convolution.weight))])
    for plain, cast in zip(*found, strict=True):
        assert torch.equal(plain, cast)


def test_half_precision_adds_up_in_single_precision():
    convolution, x = ShortConvolution(4, 4, start="uniform").bfloat16(), torch.randn(2, 40, 4).bfloat16()
    exact = ShortConvolution(4, 4).double()
    exact.load_state_dict(convolution.state_dict())
    assert_close(convolution(x), exact(x.double()), torch.bfloat16)
