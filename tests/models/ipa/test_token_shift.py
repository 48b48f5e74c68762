"""The short convolution of the keys' inputs, whole and continued."""

import pytest
import torch

from hf_seqmix import TokenShift
from hf_seqmix.cache.key_inputs import KeyInputsLayer, last_real
from tests.tolerances import assert_close


def make(width: int = 3) -> TokenShift:
    shift = TokenShift(4, width).double()
    shift.weight.data += torch.randn_like(shift.weight)
    return shift


def test_starts_as_the_identity():
    x = torch.randn(2, 5, 4)
    for width in (1, 3):
        shift = TokenShift(4, width)
        assert torch.equal(shift(x), x)
        shift.weight.data.normal_()
        shift.init_weights()
        assert torch.equal(shift(x), x)


def test_no_taps():
    with pytest.raises(ValueError, match="width is 0; a token shift has at least 1 tap"):
        TokenShift(4, 0)


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("length", [1, 3, 7])
def test_by_its_formula(width, length):
    shift, x = make(width), torch.randn(2, length, 4, dtype=torch.float64)
    expected = torch.zeros_like(x)
    for i in range(length):
        for tap in range(min(width, i + 1)):
            expected[:, i] += shift.weight[:, tap] * x[:, i - tap]
    assert_close(shift(x), expected)


def test_continued_over_real_tokens():
    shift, x = make(), torch.randn(2, 9, 4, dtype=torch.float64)
    mask = torch.tensor([[1, 0, 1, 1, 0, 0, 1, 1, 0], [0, 0, 1, 0, 1, 1, 1, 1, 1]]).bool()
    x = x * mask.unsqueeze(-1)
    layer, parts = KeyInputsLayer(), []
    for chunk, real in zip(x.split([2, 1, 4, 2], 1), mask.split([2, 1, 4, 2], 1), strict=True):
        before = layer.push_inputs(chunk, real, 2)
        parts.append(shift.continued(chunk, before, None if real.all() else real))
    out = torch.cat(parts, 1)
    for row in range(2):
        assert_close(out[row][mask[row]], shift(x[row][mask[row]][None])[0])


def test_last_real_inputs():
    x = torch.arange(1.0, 6).view(1, 5, 1)
    real = torch.tensor([[True, False, True, True, False]])
    x = x * real.unsqueeze(-1)
    assert last_real(x, real, 2).flatten().tolist() == [3, 4]
    assert last_real(x, real, 4).flatten().tolist() == [0, 1, 3, 4]
    assert last_real(x, None, 2).flatten().tolist() == [4, 0]


@pytest.mark.parametrize("steps", [1, 7, 64, 150])
def test_inputs_held_by_the_cache(steps):
    """However many steps were taken, the last two inputs are known, and 64 steps can be taken back."""
    x = torch.randn(1, 400, 4, dtype=torch.float64)
    real = torch.rand(1, 400) > 0.3
    x = x * real.unsqueeze(-1)
    layer, past = KeyInputsLayer(), 0
    for chunk, flags in zip(x.split(steps, 1), real.split(steps, 1), strict=True):
        before = layer.push_inputs(chunk, flags, 2)
        assert_close(before, last_real(x[:, :past], real[:, :past], 2))
        layer.update(chunk[:, None], chunk[:, None])
        past += chunk.shape[1]
        assert min(past, 64) <= layer.inputs.shape[1] <= max(2 * 64, 2 * steps)
    layer.crop(-64)
    past -= 64
    assert layer.get_seq_length() == past
    assert_close(layer.push_inputs(x[:, past:], real[:, past:], 2), last_real(x[:, :past], real[:, :past], 2))


def test_a_crop_too_deep_is_refused():
    layer = KeyInputsLayer()
    x = torch.randn(1, 300, 4)
    for chunk in x.split(10, 1):
        layer.push_inputs(chunk, None, 2)
        layer.update(chunk[:, None], chunk[:, None])
    with pytest.raises(
        ValueError, match="250 tokens were to be cropped from a cache of 300, but the inputs of only the last"
    ):
        layer.crop(-250)
    assert layer.get_seq_length() == 300
    layer.crop(-300)
    assert layer.get_seq_length() == 0 and layer.inputs is None
