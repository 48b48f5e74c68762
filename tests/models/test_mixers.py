"""Mixers as plain modules on (batch, length, hidden), without any model of ours around them."""

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from hf_seqmix import (
    FDTNNMixer,
    GatedLinearUnit,
    SeqMixConfig,
    SeqMixHybridConfig,
    SKITNNMixer,
    SoftmaxAttention,
    TNNMixer,
    register_mixer,
)
from hf_seqmix.models.hybrid.attention import rotate
from hf_seqmix.models.mixers import MIXERS as BUILDERS
from hf_seqmix.models.mixers import QueryKey
from hf_seqmix.models.toeplitz.gated_unit import GatedToeplitzUnit
from hf_seqmix.ops import toeplitz_matmul_dense
from tests.tolerances import assert_close


def make(name: str, is_causal: bool = True) -> nn.Module:
    if name == "tnn":
        mixer = TNNMixer(16, 24, decay=0.9, is_causal=is_causal, rpe_hidden_size=8)
    elif name == "fd_tnn":
        mixer = FDTNNMixer(16, 32, 24, is_causal=is_causal, rpe_hidden_size=8)
    else:
        mixer = SoftmaxAttention(16, num_heads=2, is_causal=is_causal)
    mixer = mixer.double()
    for parameter in mixer.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return mixer.eval()


MIXERS = ("tnn", "fd_tnn", "attention")


def test_gated_toeplitz_unit_by_its_formula():
    mixer = make("tnn")
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    silu = nn.functional.silu
    u, v = silu(mixer.u_proj(x)), silu(mixer.v_proj(x))
    mixed = toeplitz_matmul_dense(v.transpose(1, 2), mixer.operator.kernel(7)).transpose(1, 2)
    assert_close(mixer(x), mixer.o_proj(u * mixed))


def test_gated_linear_unit_by_its_formula():
    glu = GatedLinearUnit(8, 12)
    x = torch.randn(2, 3, 8)
    expected = glu.down_proj(nn.functional.silu(glu.gate_proj(x)) * glu.up_proj(x))
    torch.testing.assert_close(glu(x), expected)


def test_rotation_depends_on_relative_positions_only():
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    scores = [
        (rotate(q, torch.tensor([[i]]), 100.0) * rotate(k, torch.tensor([[i + 3]]), 100.0)).sum().item()
        for i in (0, 50)
    ]
    assert scores[0] == pytest.approx(scores[1])
    assert rotate(q, torch.tensor([[5]]), 100.0).norm().item() == pytest.approx(q.norm().item())


def test_attention_equals_the_formula():
    mixer = make("attention")
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    positions = torch.arange(5)[None]
    q, k, v = (p(x).view(1, 5, 2, 8).transpose(1, 2) for p in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    scores = rotate(q, positions, 1e4) @ rotate(k, positions, 1e4).transpose(-1, -2) / 8**0.5
    weights = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf")).softmax(-1)
    assert_close(mixer(x), mixer.o_proj((weights @ v).transpose(1, 2).reshape(1, 5, 16)))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("name", MIXERS)
def test_padding_and_packing_without_a_model(name, is_causal):
    mixer = make(name, is_causal)
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 0, 1, 0, 1, 1]])
    out = mixer(x, attention_mask=mask)
    for row in range(2):
        real = mask[row].bool()
        assert_close(out[row][real], mixer(x[row][real][None])[0])
    packed = mixer(x[:1], position_ids=torch.tensor([[0, 1, 0, 1, 2, 3]]))
    assert_close(packed[:, 2:], mixer(x[:1, 2:]))


@pytest.mark.parametrize("name", MIXERS)
def test_any_cache_of_the_library(name):
    mixer = make(name)
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    cache = DynamicCache()  # knows nothing of our layers
    parts = [mixer(part, past_key_values=cache) for part in (x[:, :4], x[:, 4:5], x[:, 5:8], x[:, 8:])]
    assert_close(torch.cat(parts, dim=1), mixer(x))


@pytest.mark.parametrize("name", MIXERS)
def test_bidirectional_mixers_have_no_cache(name):
    with pytest.raises(ValueError, match="bidirectional mixer has no cache"):
        make(name, is_causal=False)(torch.randn(1, 3, 16, dtype=torch.float64), past_key_values=DynamicCache())


def test_packed_rows_fill_no_cache():
    with pytest.raises(ValueError, match="packed sequences cannot fill a cache"):
        make("tnn")(
            torch.randn(1, 3, 16, dtype=torch.float64),
            past_key_values=DynamicCache(),
            position_ids=torch.tensor([[0, 0, 1]]),
        )


@pytest.mark.parametrize("name", MIXERS)
def test_a_call_that_does_not_fit_is_refused(name):
    mixer, x = make(name), torch.randn(2, 6, 16, dtype=torch.float64)
    for wrong in (x[0], x[None]):
        with pytest.raises(
            ValueError, match=r"hidden_states have shape .*; they must be \(batch, length, hidden_size\)"
        ):
            mixer(wrong)
    mask = torch.ones(2, 6)
    for wrong in (mask.tolist(), mask.numpy()):
        with pytest.raises(TypeError, match=r"attention_mask is a (list|ndarray); it must be a tensor"):
            mixer(x, attention_mask=wrong)
    for other in ("mask", "key_padding_mask", "attn_mask", "key_mask"):
        with pytest.raises(ValueError, match=f"^{other} was given, which is not read: give attention_mask"):
            mixer(x, **{other: mask})
    with pytest.raises(ValueError, match=r"grid_size is \(2, 3\), but this mixer reads sequences: leave it out, or"):
        mixer(x, grid_size=(2, 3))
    assert_close(mixer(x, grid_size=None, head_mask=None, output_hidden_states=True), mixer(x))


def test_unknown_activations():
    for build in (lambda: GatedLinearUnit(8, 12, "swiglu"), lambda: GatedToeplitzUnit(8, 8, nn.Identity(), "swiglu")):
        with pytest.raises(ValueError, match=r"activation is 'swiglu'; it must be one of .*'silu'"):
            build()


def test_heads_must_divide_the_channels():
    with pytest.raises(ValueError, match="num_heads is 3, which does not divide hidden_size 16"):
        SoftmaxAttention(16, num_heads=3)


@pytest.mark.parametrize("grid_size", [None, (5, 7)], ids=["sequence", "grid"])
@pytest.mark.parametrize("mixer_class", [SKITNNMixer, FDTNNMixer])
def test_bidirectional_mixers_alone(mixer_class, grid_size):
    kwargs = {"is_causal": False} if mixer_class is FDTNNMixer else {"num_inducing_points": 4}
    mixer = mixer_class(16, 35, 24, grid_size=grid_size, **kwargs).double().eval()
    x = torch.randn(2, 35, 16, dtype=torch.float64)
    changed = x.clone()
    changed[:, -1] += 1
    out = mixer(x)
    assert out.shape == x.shape
    assert (mixer(changed) - out)[:, 26].abs().max() > 1e-6  # eight places before, or one row up and one to the left


def test_ski_mixers_say_what_is_wrong():
    with pytest.raises(ValueError, match="num_inducing_points is 32, but there are 20 positions"):
        SKITNNMixer(16, 20)
    with pytest.raises(ValueError, match="interpolation is 'spline'; it must be one of 'linear', 'cubic'"):
        SKITNNMixer(16, 64, interpolation="spline")
    with pytest.raises(ValueError, match="one value for each axis of a grid"):
        SKITNNMixer(16, 64, decay=[0.9, 0.9])


def test_logits_of_attention_are_in_float32_under_autocast():
    pair = QueryKey(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8), scale=0.5)
    expected = pair.logits()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pair.logits(), expected)


@pytest.mark.parametrize(("wrong", "named"), [(dict, "<class 'dict'>"), (TNNMixer, "TNNMixer"), ("tnn", "'tnn'")])
def test_what_is_no_configuration_is_not_registered(wrong, named):
    with pytest.raises(TypeError, match=f"config_class is .*{named}.*; it must be a class derived from SeqMixConfig"):
        register_mixer("mine", wrong, lambda config, layer_idx: nn.Identity())


@pytest.mark.parametrize("kept", ["", "history"])
def test_a_configuration_of_which_no_cache_knows_what_to_keep_is_not_registered(kept):
    own = type("OwnConfig", (SeqMixConfig,), {"cache_layer_type": kept})
    with pytest.raises(ValueError, match=f"of OwnConfig is '{kept}'; set it to .*'full_attention'.*'seqmix_history'"):
        register_mixer("mine", own, lambda config, layer_idx: nn.Identity())
    assert "mine" not in BUILDERS


def test_a_hybrid_of_an_unknown_mixer_says_how_to_add_one():
    with pytest.raises(ValueError, match=r"mixer_types names 'mamba'; known are .*, and .*register_mixer adds one"):
        SeqMixHybridConfig(mixer_types=["mamba"])
