"""Taps of the Toeplitz neural network."""

import pytest
import torch

from hf_seqmix import RelativePositionEncoder, ToeplitzKernel


def make(decay: float = 0.9, is_causal: bool = True, max_lag: int | None = None) -> ToeplitzKernel:
    return ToeplitzKernel(RelativePositionEncoder(3, 8, 2), decay, is_causal, max_lag).double()


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("is_causal", [True, False])
def test_decay_times_encoder(length, is_causal):
    kernel = make(is_causal=is_causal)
    lags = torch.arange(0 if is_causal else -(length - 1), length, dtype=torch.float64)
    expected = torch.stack([kernel.encoder(t[None])[:, 0] * 0.9 ** abs(t.item()) for t in lags], dim=1)
    torch.testing.assert_close(kernel(length), expected)


def test_no_decay():
    kernel = make(decay=1.0)
    torch.testing.assert_close(kernel(7), kernel.encoder(torch.arange(7)))


@pytest.mark.parametrize("is_causal", [True, False])
def test_taps_do_not_depend_on_the_length(is_causal):
    kernel = make(is_causal=is_causal)
    short, long = kernel(5), kernel(11)
    torch.testing.assert_close(short, long[:, :5] if is_causal else long[:, 6:15])


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_taps_beyond_the_largest_lag_are_zero(is_causal, length):
    cut, whole = make(is_causal=is_causal, max_lag=3), make(is_causal=is_causal)
    cut.load_state_dict(whole.state_dict())
    lags = torch.arange(0 if is_causal else -(length - 1), length)
    torch.testing.assert_close(cut(length), whole(length) * (lags.abs() <= 3))


def test_taps_are_distinct_and_float32_in_half_precision():
    kernel = ToeplitzKernel(RelativePositionEncoder(3, 8, 0), decay=0.999).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        taps = kernel(512)
    assert taps.dtype == torch.float32
    # bfloat16 lags would repeat taps, and bfloat16(0.999) is 1.
    assert len(taps[0].unique()) == 512
    ratio = taps[0, 511] / (kernel.encoder(torch.tensor([511]))[0, 0])
    assert ratio.item() == pytest.approx(0.999**511, rel=1e-4)


def test_three_values_with_the_masked_models_initialization():
    kernel = make(decay=1.0, is_causal=False)
    for module in kernel.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=0.02)
            torch.nn.init.zeros_(module.bias)
    taps = kernel(6)
    assert not taps[:, 5].any()  # lag 0
    torch.testing.assert_close(taps[:, 6:], taps[:, 6:7].expand(-1, 5), rtol=2e-2, atol=1e-9)
    torch.testing.assert_close(taps[:, :5], taps[:, 4:5].expand(-1, 5), rtol=2e-2, atol=1e-9)


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.01])
def test_decay_out_of_range(decay):
    with pytest.raises(ValueError, match=r"greater than 0 and at most 1"):
        make(decay=decay)


@pytest.mark.parametrize("norm_type", ["simple_rms", "layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_taps_beyond_the_end_cannot_be_seen_in_a_sum(norm_type, dtype):
    encoder = RelativePositionEncoder(5, 8, 2, "silu", norm_type)
    kernel = ToeplitzKernel(encoder, 0.95).double()
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(torch.randn_like(parameter))
        kernel.encoder.out_proj.weight[2] = kernel.encoder.out_proj.bias[2] = 0  # a channel without taps
    end = kernel.end(dtype)
    weights = kernel(end + 2000).abs().detach()  # 0.95^2000 is below 1e-44
    eps = torch.finfo(dtype).eps
    assert (weights[:, end:].sum(dim=1) <= eps * weights.sum(dim=1)).all()
    assert (weights[:, end // 2 :].sum(dim=1) > eps * weights.sum(dim=1)).any()
    assert kernel.end(torch.float64) >= kernel.end(torch.float32) > 256


def test_the_end_of_kernels_that_have_another_or_none():
    assert make(decay=1.0).end(torch.float32) is None
    assert make(decay=1.0, max_lag=7).end(torch.float32) == 8
    assert make(decay=0.9, max_lag=7).end(torch.float32) == 8
    assert make(decay=0.9, max_lag=10**6).end(torch.float32) < 2000
    for unbounded in (RelativePositionEncoder(3, 8, 2, norm_type="none"), RelativePositionEncoder(3, 8, 2, "sigmoid")):
        assert ToeplitzKernel(unbounded, 0.9).end(torch.float32) is None
