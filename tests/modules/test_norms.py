"""Norms."""

import pytest
import torch
from torch import nn

from hf_seqmix.modules.norms import (
    MaskedBatchNorm,
    SeqMixLayerNorm,
    SimpleRMSNorm,
    StaticNorm,
    build_norm,
    calibrate_static_norms,
)
from hf_seqmix.ops import real_valued
from tests.tolerances import assert_close


def test_simple_rms_norm_is_the_published_form_on_ordinary_input():
    x = torch.randn(4, 7, 64)
    published = x / (x.norm(dim=-1, keepdim=True) / 64**0.5 + 1e-8)
    torch.testing.assert_close(SimpleRMSNorm(1e-6)(x), published, rtol=1e-5, atol=1e-5)


def test_simple_rms_norm_at_zero():
    x = torch.zeros(1, 8, dtype=torch.float64, requires_grad=True)
    y = SimpleRMSNorm(1e-6)(x)
    assert not y.any()
    (gradient,) = torch.autograd.grad(y[0, 0], x)
    # The published form, eps outside the root, has a slope of 1e8 here.
    assert gradient[0, 0].item() == pytest.approx(1e3)


def test_simple_rms_norm_computes_half_precision_in_float32():
    x = 300 * torch.randn(2, 4096)
    y = SimpleRMSNorm()(x.half())  # the sum of squares overflows float16
    torch.testing.assert_close(y.float(), SimpleRMSNorm()(x), rtol=2e-3, atol=2e-3)


def test_batch_norm_ignores_pads():
    norm = MaskedBatchNorm(3).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    y = norm(x, mask)
    real = x[mask]
    expected = (real - real.mean(0)) / (real.var(0, unbiased=False) + norm.eps).sqrt()
    torch.testing.assert_close(y[mask], expected)
    torch.testing.assert_close(norm.running_mean, 0.1 * real.mean(0))
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * real.var(0))
    x[~mask] = 1e6
    torch.testing.assert_close(norm(x, mask)[mask], expected)


def test_a_batch_without_real_tokens_leaves_the_averages():
    norm = MaskedBatchNorm(3).train()
    norm(torch.randn(2, 5, 3) + 4)
    before = [norm.running_mean.clone(), norm.running_var.clone()]
    norm(torch.randn(2, 5, 3), torch.zeros(2, 5, dtype=torch.bool))
    norm(torch.randn(0, 5, 3))
    assert torch.equal(norm.running_mean, before[0]) and torch.equal(norm.running_var, before[1])


def test_batch_norm_equals_torch():
    ours, theirs = MaskedBatchNorm(3), torch.nn.BatchNorm1d(3)
    for _ in range(3):
        x = torch.randn(4, 6, 3)
        torch.testing.assert_close(ours(x), theirs(x.transpose(1, 2)).transpose(1, 2))
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 4), (2, 1, 5, 3)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_refuses_other_shapes(shape, training):
    with pytest.raises(ValueError, match=r"have shape \(.*\); they must be \(batch, length, 3\)"):
        MaskedBatchNorm(3).train(training)(torch.randn(shape))


def test_layer_norm_with_weights_of_another_dtype():
    x = torch.randn(2, 3, 8)
    norm = SeqMixLayerNorm(8).to(torch.bfloat16)
    assert norm(x).dtype == torch.float32
    torch.testing.assert_close(norm(x), torch.nn.functional.layer_norm(x, (8,)))


def test_unknown_norm():
    with pytest.raises(ValueError, match="norm_type is 'rms'"):
        build_norm("rms", 4, 1e-6)


class Chain(nn.Module):
    """Products and static norms in turn, each norm after what the norm before it feeds."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(StaticNorm(5) for _ in range(3))
        self.dropout = nn.Dropout(0.5)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        self.seen = []
        for norm in self.norms:
            x = norm(self.dropout(x) ** 3, mask)
            self.seen.append(x)
        return x


def test_static_norms_are_calibrated_in_one_pass_each_after_the_one_before():
    model = Chain().double().train()
    x = torch.randn(3, 11, 5, dtype=torch.float64) * torch.tensor([0.1, 1.0, 2.0, 5.0, 0.0])
    mask = torch.ones(3, 11, dtype=torch.bool)
    mask[0, 4:] = False
    x[~mask] = 1e3  # what stands at pads sets no scale
    calibrate_static_norms(model, x, mask=mask)
    assert model.training
    model.eval()(x, mask=mask)
    for y in model.seen:
        torch.testing.assert_close(y[mask].square().mean(0), torch.tensor([1.0, 1, 1, 1, 0], dtype=torch.float64))
    # A scale and nothing else: homogeneous of the degree of what stands before it.
    torch.testing.assert_close(model(2 * x), 2.0**27 * model(x))
    weights = [norm.weight.clone() for norm in model.norms]
    model(3 * x)
    assert all(torch.equal(norm.weight, weight) for norm, weight in zip(model.norms, weights, strict=True))


def test_a_norm_of_several_uses_is_calibrated_at_the_first():
    model = Chain().double()
    model.norms[1] = model.norms[0]
    x = torch.randn(3, 11, 5, dtype=torch.float64)
    calibrate_static_norms(model, x)
    model.eval()(x)
    once = torch.stack([model.seen[0], model.seen[2]]).square().mean(dim=(1, 2))
    torch.testing.assert_close(once, torch.ones_like(once))  # what comes after the second use knows of it


def test_a_model_without_static_norms_cannot_be_calibrated():
    with pytest.raises(ValueError, match="no static norms"):
        calibrate_static_norms(nn.Linear(2, 2), torch.zeros(1, 2))


def test_unknown_norms_are_refused():
    with pytest.raises(ValueError, match="norm_type is 'rms'; it must be one of 'simple_rms', 'layer'"):
        build_norm("rms", 4, 1e-6)
    x = torch.randn(2, 3, 4)
    assert build_norm("none", 4, 1e-6)(x) is x


def test_the_form_for_other_runtimes_is_the_same_norm():
    for eps in (1e-6, 1e-8, 1e-12, 0.0):
        for scale in (1.0, 1e-4, 1e-7):
            x = scale * torch.randn(3, 5, 7)
            expected = SimpleRMSNorm(eps)(x)
            with real_valued():
                assert_close(SimpleRMSNorm(eps)(x), expected)
    with real_valued():
        assert not SimpleRMSNorm(1e-12)(torch.zeros(2, 7)).any()


def test_a_pad_that_is_no_number_does_not_reach_the_statistics():
    norm, x = MaskedBatchNorm(3), torch.randn(2, 5, 3)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    expected = norm(x, mask)
    filled = MaskedBatchNorm(3)
    actual = filled(x.masked_fill(~mask.unsqueeze(-1), torch.nan), mask)
    assert_close(actual[mask], expected[mask])
    assert_close(filled.running_mean, norm.running_mean)
    assert_close(filled.running_var, norm.running_var)
