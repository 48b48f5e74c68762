"""The norm of what the centers of IPA have mixed."""

import pytest
import torch

from hf_seqmix.models.ipa.merged_norm import MergedNorm
from hf_seqmix.modules.norms import SimpleRMSNorm
from tests.tolerances import assert_close


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_by_its_formula(dtype):
    norm, x = MergedNorm(7, eps=0.1), torch.randn(2, 3, 7).to(dtype)
    norm.weight.data.normal_()
    norm = norm.to(dtype)
    wide = x.double()
    expected = norm.weight.double() * wide / (wide.square().mean(-1, keepdim=True) + 0.1).sqrt()
    assert norm(x).dtype == dtype
    assert_close(norm(x), expected, dtype)


def test_rounds_once():
    """In bfloat16 the result is the exact one rounded: neither the norm nor the scale is rounded before."""
    norm, x = MergedNorm(64).bfloat16(), torch.randn(50, 64, dtype=torch.bfloat16)
    norm.weight.data.normal_()
    exact = SimpleRMSNorm()(x.double()) * norm.weight.double()
    assert (norm(x) == exact.bfloat16()).float().mean() > 0.999


def test_checkpoints_have_one_weight():
    norm = MergedNorm(5)
    assert list(norm.state_dict()) == ["weight"]
    norm.weight.data.normal_()
    norm.init_weights()
    assert torch.equal(norm.weight, torch.ones(5))
