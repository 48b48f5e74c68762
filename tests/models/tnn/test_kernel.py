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


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_graph_of_a_kernel_with_a_largest_lag_serves_any_length(is_causal):
    kernel = make(is_causal=is_causal, max_lag=3)

    class Taps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.kernel(x.shape[0])

    length = torch.export.Dim("length", min=2, max=64)
    graph = torch.export.export(Taps(), (torch.zeros(9),), dynamic_shapes=({0: length},), strict=False).module()
    for n in (2, 4, 9, 33):
        torch.testing.assert_close(graph(torch.zeros(n)), kernel(n))


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


DECAYS = [0.5, 0.9, 0.999]


def several(decays: list[float], channels: int = 7, is_causal: bool = True) -> ToeplitzKernel:
    kernel = ToeplitzKernel(RelativePositionEncoder(channels, 8, 2, "silu"), decays, is_causal).double()
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return kernel


@pytest.mark.parametrize("is_causal", [True, False])
def test_each_channel_has_the_decay_of_its_block(is_causal):
    kernel = several(DECAYS, is_causal=is_causal)
    taps = kernel(11)
    for channel, decay in enumerate([0.5, 0.5, 0.5, 0.9, 0.9, 0.999, 0.999]):
        alone = ToeplitzKernel(kernel.encoder, decay, is_causal)
        torch.testing.assert_close(taps[channel], alone(11)[channel])
    assert torch.equal(kernel.float()(11), kernel(11))


def test_one_block_is_one_decay_to_the_last_bit():
    one, block = make(0.9).float(), make(0.9).float()
    block.decay = (0.9,)
    block.load_state_dict(one.state_dict())
    assert torch.equal(one(50), block(50))
    assert one.end(torch.float32) == block.end(torch.float32)
    assert dict(one.state_dict()).keys() == dict(several(DECAYS).state_dict()).keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_sum_of_any_channel_sees_taps_beyond_the_end(dtype):
    kernel = several([0.5, 0.9, 0.97])
    end = kernel.end(dtype)
    weights, eps = kernel(end + 3000).abs().detach(), torch.finfo(dtype).eps
    assert (weights[:, end:].sum(dim=1) <= eps * weights.sum(dim=1)).all()
    assert (weights[-1, end // 2 :].sum() > eps * weights[-1].sum()).any()
    each = [several([decay]) for decay in (0.5, 0.9, 0.97)]
    for other in each:
        other.load_state_dict(kernel.state_dict())
    assert each[0].end(dtype) < each[1].end(dtype) < end <= each[2].end(dtype)
    assert several([0.5, 1.0]).end(dtype) is None


def test_half_of_the_channels_may_have_no_decay():
    kernel = several([0.9, 1.0], channels=4)
    lags = torch.arange(9)
    assert torch.equal(kernel(9)[2:], kernel.encoder(lags)[2:])
    torch.testing.assert_close(kernel(9)[:2], kernel.encoder(lags)[:2] * 0.9**lags)


@pytest.mark.parametrize("decays", [[0.9, 0.0], [1.2], [], [0.5] * 8])
def test_decays_of_blocks_that_make_no_sense(decays):
    with pytest.raises(ValueError, match=r"must be greater than 0 and at most 1|decays, but 7 channels"):
        several(decays)


def test_the_end_of_kernels_that_have_another_or_none():
    assert make(decay=1.0).end(torch.float32) is None
    assert make(decay=1.0, max_lag=7).end(torch.float32) == 8
    assert make(decay=0.9, max_lag=7).end(torch.float32) == 8
    assert make(decay=0.9, max_lag=10**6).end(torch.float32) < 2000
    for unbounded in (RelativePositionEncoder(3, 8, 2, norm_type="none"), RelativePositionEncoder(3, 8, 2, "sigmoid")):
        assert ToeplitzKernel(unbounded, 0.9).end(torch.float32) is None
