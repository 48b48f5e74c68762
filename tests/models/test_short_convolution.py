"""The convolution before the mixers of every family, and the mixer that is a convolution alone."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from hf_seqmix import IPAConfig, SeqMixConfig, SeqMixHybridConfig, ShortConvolution, SKITNNConfig, TNNConfig
from hf_seqmix.cache import past_length
from tests.models.decoding import check_continuous_batching
from tests.models.fd_tnn import test_modeling_fd_tnn as fd_tnn
from tests.models.hybrid import test_modeling_hybrid as hybrid
from tests.models.ipa import test_modeling_ipa as ipa
from tests.models.poly_transformer import test_modeling_poly_transformer as poly_transformer
from tests.models.ski_tnn import test_modeling_ski_tnn as ski_tnn
from tests.models.suite import PADS, VOCAB, CompiledModelSuite, perturb
from tests.models.tnn import test_modeling_tnn as tnn
from tests.tolerances import assert_close

OWN = {
    "attention": {"num_heads": 2},
    "tnn": {"decay": 0.95, "rpe_hidden_size": 8, "expand_ratio": 1.5},
    "fd_tnn": {"rpe_hidden_size": 8, "expand_ratio": 1.5},
    "ski_tnn": {"num_inducing_points": 5, "expand_ratio": 1.5},
    "ipa": {"num_centers": 4, "token_shift": 2},
    "poly_transformer": {"num_attention_heads": 2},
    "short_conv": {"taps": 3, "expand_ratio": 1.5},
}
CAUSAL = [["tnn", "attention"], ["short_conv", "ipa"], ["poly_transformer", "fd_tnn"]]
BOTH_WAYS = [["ski_tnn", "attention"], ["short_conv", "ipa"], ["poly_transformer", "fd_tnn"]]


def config_of(mixers: list[str], is_causal: bool = True, **fields: Any) -> SeqMixHybridConfig:
    convolution = {"short_conv_taps": 4 if is_causal else 5, "short_conv_init": "uniform"}
    own = {mixer: OWN[mixer] for mixer in mixers}
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "pad_token_id": 0, "eos_token_id": None}
    return SeqMixHybridConfig(
        **{**sizes, **convolution, "mixer_types": mixers, "mixer_configs": own, "is_causal": is_causal, **fields}
    )


def make(mixers: list[str], is_causal: bool = True, **fields: Any) -> PreTrainedModel:
    auto = AutoModelForCausalLM if is_causal else AutoModel
    return perturb(auto.from_config(config_of(mixers, is_causal, **fields))).double().eval()


@pytest.mark.parametrize(
    ("mixers", "is_causal"), [*((mixers, True) for mixers in CAUSAL), *((mixers, False) for mixers in BOTH_WAYS)]
)
@torch.no_grad()
def test_padded_and_packed_rows_equal_each_sequence_alone(mixers, is_causal):
    for norm_position in ("pre", "post"):
        model = make(mixers, is_causal, norm_position=norm_position)
        for mask in (torch.tensor(pads) for pads in PADS.values()):
            ids = torch.randint(VOCAB, mask.shape)
            for use_cache in {False, is_causal}:
                out = model(ids, attention_mask=mask, use_cache=use_cache)[0]
                for row in range(2):
                    real = mask[row].bool()
                    assert_close(out[row][real], model(ids[row][real][None], use_cache=False)[0][0])
        ids, numbers = torch.randint(VOCAB, (1, 12)), torch.tensor([[0] * 5 + [1] + [2] * 6])
        expected = torch.cat([model(part)[0] for part in ids.split([5, 1, 6], dim=1)], dim=1)
        assert_close(model(ids, seq_idx=numbers)[0], expected)


@pytest.mark.parametrize("mixers", CAUSAL)
@torch.no_grad()
def test_chunks_and_steps_equal_one_call(mixers):
    model = make(mixers)
    ids, mask = torch.randint(VOCAB, (2, 30)), torch.ones(2, 30, dtype=torch.long)
    mask[0, 7:10] = mask[1, :3] = 0
    expected = model(ids, attention_mask=mask, use_cache=False).logits
    cache, past = DynamicCache(config=model.config), 0
    for size in (6, 5, 1, 1, 9, 1, 7):
        now = slice(past, past + size)
        logits = model(ids[:, now], attention_mask=mask[:, : past + size], past_key_values=cache).logits
        real = mask[:, now].bool()
        assert_close(logits[real], expected[:, now][real])
        past += size
    assert past_length(cache) == 30


@pytest.mark.parametrize("mixers", CAUSAL)
@torch.no_grad()
def test_every_way_to_generate_gives_the_same_tokens(mixers):
    model, assistant = make(mixers), make(mixers, short_conv_taps=2)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    ids = torch.randint(1, VOCAB, mask.shape) * mask
    settings = {"max_new_tokens": 8, "do_sample": False}
    greedy = model.generate(ids, attention_mask=mask, use_cache=False, **settings)
    assert torch.equal(model.generate(ids, attention_mask=mask, **settings), greedy)
    beams = {"num_beams": 3, **settings}
    searched = model.generate(ids, attention_mask=mask, use_cache=False, **beams)
    assert torch.equal(model.generate(ids, attention_mask=mask, **beams), searched)
    alone = greedy[1:]
    for other in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
        assert torch.equal(model.generate(ids[1:], **other, **settings), alone)


def test_continuous_batching_gives_what_a_prompt_gives_alone():
    check_continuous_batching(make(["short_conv", "tnn", "attention"]), VOCAB)


@torch.no_grad()
def test_a_block_convolves_what_its_mixer_reads():
    for norm_position in ("pre", "post"):
        model = make(["short_conv", "attention"], norm_position=norm_position).model
        block, x = model.layers[1], torch.randn(2, 7, 16, dtype=torch.float64)
        seen = []
        handle = block.mixer.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0]))
        block(x)
        handle.remove()
        assert_close(seen[0], block.short_conv(block.mixer_norm(x) if norm_position == "pre" else x))


def test_where_there_are_convolutions():
    blocks = make(["short_conv", "attention"]).model.layers
    assert blocks[0].short_conv is None and isinstance(blocks[1].short_conv, ShortConvolution)
    assert blocks[0].mixer.operator.convolution.weight.shape == (24, 3)
    assert AutoModel.from_config(TNNConfig(vocab_size=9, hidden_size=8)).layers[0].short_conv is None


def test_taps_begin_as_the_configuration_says():
    for start, is_identity in (("identity", True), ("uniform", False)):
        model = AutoModel.from_config(config_of(["ipa"], short_conv_init=start))
        weight = model.layers[0].short_conv.weight
        assert torch.equal(weight, torch.eye(4)[:1].expand(16, 4)) == is_identity
        assert torch.equal(model.layers[0].mixer.token_shift.weight, torch.eye(2)[:1].expand(16, 2))


def test_what_caches_keep():
    taps = {"short_conv_taps": 4}
    assert config_of(["short_conv", "attention", "tnn"]).layer_types == [
        "seqmix_inputs",
        "seqmix_key_inputs",
        "seqmix_convolution",
    ]
    assert config_of(["short_conv", "attention"], short_conv_taps=0).layer_types == ["seqmix_inputs", "full_attention"]
    assert IPAConfig(num_hidden_layers=2, **taps).layer_types == ["seqmix_key_inputs"] * 2
    assert IPAConfig(num_hidden_layers=2, copy_head=True, **taps).layer_types == ["seqmix_key_inputs"] * 2


@torch.no_grad()
def test_a_grid_is_convolved_along_rows_and_then_columns():
    image = {"image_size": [6, 8], "patch_size": 2, "num_channels": 1, "mixing_dimensions": 2}
    config = SKITNNConfig(hidden_size=8, num_hidden_layers=1, num_inducing_points=2, short_conv_taps=3, **image)
    convolution = perturb(AutoModel.from_config(config)).double().layers[0].short_conv
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    rows, columns = (part.weight.flip(1) for part in (convolution.row_operator, convolution.column_operator))
    kernel = torch.einsum("ch,cw->chw", columns, rows)[:, None]
    expected = nn.functional.conv2d(x.mT.unflatten(2, (3, 4)), kernel, padding=1, groups=8)
    block = AutoModel.from_config(config).double().layers[0]
    block.short_conv = convolution
    assert_close(block._convolve(x, None, None, None, None), expected.flatten(2).mT)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"short_conv_taps": -1}, "short_conv_taps is -1; it must be at least 0"),
        ({"short_conv_taps": 4, "is_causal": False}, "short_conv_taps is 4, but is_causal is False.*odd"),
        ({"short_conv_init": "zeros"}, "short_conv_init is 'zeros'; it must be one of 'identity', 'uniform'"),
    ],
)
def test_fields_that_make_no_sense(fields, message):
    with pytest.raises(ValueError, match=message):
        TNNConfig(**fields)


@pytest.mark.parametrize(
    ("own", "is_causal", "message"),
    [
        ({"taps": 0}, True, "taps is 0; it must be at least 1"),
        ({"taps": 4}, False, "taps is 4, but is_causal is False.*odd"),
        ({"taps_init": "zeros"}, True, "taps_init is 'zeros'; it must be one of"),
        ({"expand_ratio": 0.01}, True, "expand_ratio x hidden_size is 0; it must be at least 1"),
    ],
)
def test_a_mixer_that_makes_no_sense(own, is_causal, message):
    fields = {"mixer_types": ["short_conv"], "mixer_configs": {"short_conv": own}, "hidden_size": 16}
    with pytest.raises(ValueError, match=message):
        SeqMixHybridConfig(**fields, is_causal=is_causal)


def test_caches_and_packed_or_bidirectional_rows_are_refused():
    causal, both = make(["short_conv"]), make(["short_conv"], is_causal=False)
    ids, cache = torch.randint(VOCAB, (1, 5)), DynamicCache(config=causal.config)
    with pytest.raises(ValueError, match="packed sequences cannot fill a cache"):
        causal(ids, seq_idx=torch.tensor([[0, 0, 1, 1, 1]]), past_key_values=cache)
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match="a bidirectional convolution has no cache"):
        both.layers[0].mixer(x, past_key_values=cache)


class Convolved:
    """A family's configurations, with a convolution before each mixer."""

    def config(self, is_causal: bool = True, **kwargs: Any) -> SeqMixConfig:
        convolution = {"short_conv_taps": 4 if is_causal else 5, "short_conv_init": "uniform"}
        return super().config(is_causal, **{**convolution, **kwargs})


@pytest.mark.slow
class TestConvolvedTNN(Convolved, tnn.TestTNN):
    pass


@pytest.mark.slow
class TestConvolvedFDTNN(Convolved, fd_tnn.TestFDTNN):
    pass


@pytest.mark.slow
class TestConvolvedSKITNN(ski_tnn.TestSKITNN):
    def config(self, is_causal: bool = False, **kwargs: Any) -> SeqMixConfig:
        return super().config(is_causal, **{"short_conv_taps": 5, "short_conv_init": "uniform", **kwargs})


@pytest.mark.slow
class TestConvolvedIPA(Convolved, ipa.TestIPA):
    pass


@pytest.mark.slow
class TestConvolvedExtendedIPA(Convolved, ipa.TestExtendedIPA):
    pass


@pytest.mark.slow
class TestConvolvedPolyTransformer(Convolved, poly_transformer.TestPolyTransformer):
    pass


@pytest.mark.slow
class TestConvolvedAttention(Convolved, hybrid.TestAttention):
    pass


@pytest.mark.slow
class TestShortConv(hybrid.HybridConfigurations, CompiledModelSuite):
    mixer_types = ("short_conv", "short_conv")


@pytest.mark.slow
class TestShortConvAndAttention(Convolved, hybrid.HybridConfigurations, CompiledModelSuite):
    mixer_types = ("short_conv", "attention")
