"""The backbone: positions, and how embeddings are drawn."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, DynamicCache, StaticCache
from transformers.utils import logging

from hf_seqmix import (
    FDTNNConfig,
    IPAConfig,
    IPAModel,
    PolyTransformerConfig,
    SeqMixHybridConfig,
    TNNConfig,
    TNNForCausalLM,
    TNNMixer,
    TNNModel,
)
from hf_seqmix._compat import CACHE_NAME
from hf_seqmix.modules.norms import calibrate_static_norms
from tests.models.suite import PADS, perturb
from tests.tolerances import assert_close

VOCAB = 31


def make(**kwargs: Any) -> TNNModel:
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "rpe_hidden_size": 8}
    return perturb(TNNModel(TNNConfig(**{**fields, "max_position_embeddings": 12, **kwargs}))).double().eval()


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
@pytest.mark.parametrize("side", PADS)
def test_positions_do_not_count_pads(kind, side):
    model = make(position_embedding_type=kind)
    mask = torch.tensor(PADS[side])
    ids = torch.randint(VOCAB, mask.shape)
    out = model(ids, mask)[0]
    cache = DynamicCache(config=model.config)
    chunks = [
        model(ids[:, :4], mask[:, :4], past_key_values=cache, use_cache=True)[0],
        model(ids[:, 4:], mask, past_key_values=cache, use_cache=True)[0],
    ]
    for row in range(2):
        real = mask[row].bool()
        alone = model(ids[row][real][None])[0][0]
        assert_close(out[row][real], alone)
        assert_close(torch.cat(chunks, 1)[row][real], alone)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_positions_restart_with_each_packed_sequence(kind):
    model = make(position_embedding_type=kind)
    ids = torch.randint(VOCAB, (1, 9))
    out = model(ids, cu_seq_lens_q=torch.tensor([0, 4, 9]))[0]
    assert_close(out, torch.cat([model(ids[:, :4])[0], model(ids[:, 4:])[0]], dim=1))


def test_learned_positions_of_pads_after_a_full_sequence():
    model = make(position_embedding_type="learned", max_position_embeddings=8)
    ids = torch.randint(VOCAB, (2, 10))
    mask = torch.tensor([[1] * 8 + [0] * 2, [1] * 10])
    sequences = torch.tensor([[0] * 10, [0] * 4 + [1] * 6])
    found = model(ids, mask, seq_idx=sequences, use_cache=False)[0]
    assert_close(found[0, :8], model(ids[:1, :8])[0][0])
    assert_close(found[1, 4:], model(ids[1:, 4:])[0][0])


def test_learned_positions_end():
    model = make(position_embedding_type="learned")
    model(torch.zeros(1, 12, dtype=torch.long))
    with pytest.raises(ValueError, match=r"position 12 was asked for.*positions 0 to 11"):
        model(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(ValueError, match="position -1 was asked for"):
        model(torch.zeros(1, 2, dtype=torch.long), position_ids=torch.tensor([[-1, 0]]))
    make(position_embedding_type="sinusoidal")(torch.zeros(1, 40, dtype=torch.long))


def test_scaled_embeddings_have_unit_variance_and_positions_do_not():
    config = TNNConfig(
        vocab_size=512, hidden_size=256, num_hidden_layers=1, position_embedding_type="learned", rpe_hidden_size=8
    )
    model = TNNForCausalLM(config)
    tokens, positions = model.model.embed_tokens.weight, model.model.embed_positions.weight
    assert tokens.shape == positions.shape
    assert (tokens * config.embedding_scale).std().item() == pytest.approx(1, rel=0.02)
    assert positions.std().item() == pytest.approx(0.02, rel=0.02)
    assert TNNModel(
        TNNConfig(vocab_size=512, hidden_size=256, num_hidden_layers=1, is_causal=False)
    ).embed_tokens.weight.std().item() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(("is_causal", "kind"), [(True, "uniform"), (False, "uniform"), (False, "normal")])
def test_linear_layers_are_drawn_as_the_configuration_says(is_causal, kind):
    fields = {} if kind == "uniform" else {"linear_init": kind}  # "uniform" is the default
    sizes = {"vocab_size": 9, "hidden_size": 256, "num_hidden_layers": 1}
    model = TNNModel(TNNConfig(**sizes, is_causal=is_causal, **fields))
    layer = model.layers[0].mixer.v_proj
    if kind == "uniform":
        assert layer.weight.abs().max().item() == pytest.approx(1 / 16, rel=1e-3)
        assert layer.bias.abs().max().item() == pytest.approx(1 / 16, rel=0.05)
    else:
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.02)
        assert not layer.bias.any()


@pytest.mark.parametrize("position", ["pre", "post"])
def test_without_residual_and_norm_blocks_are_a_composition(position):
    model = make(use_residual=False, norm_type="none", norm_position=position)
    ids = torch.randint(VOCAB, (2, 9))
    x = model.embed_tokens(ids) * model.embedding_scale
    for block in model.layers:
        x = block.mlp(block.mixer(x))
    assert_close(model(ids)[0], x)
    assert not [name for name, _ in model.named_parameters() if "norm" in name and "kernel" not in name]


def test_static_norms_stand_wherever_norms_do():
    model = make(norm_type="static", use_residual=False)
    assert len([name for name, _ in model.named_parameters() if name.endswith("norm.weight")]) == 2 * 2 + 1
    ids = torch.randint(VOCAB, (4, 12))
    calibrate_static_norms(model, ids)
    assert_close(model(ids)[0].square().mean(dim=(0, 1)), torch.ones(16, dtype=torch.float64))


@pytest.mark.parametrize(("config_class", "model_class"), [(TNNConfig, TNNModel), (IPAConfig, IPAModel)])
def test_fewer_layers_are_the_first_ones(config_class, model_class):
    """By the configuration, as a draft that exits early has it, or by the blocks, as models are pruned."""
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 3, "hidden_dropout": 0.0}
    model = perturb(model_class(config_class(**fields))).double().eval()
    ids = torch.randint(VOCAB, (2, 9))
    states = model(ids, output_hidden_states=True).hidden_states
    for depth in (1, 2):
        model.config.num_hidden_layers = depth
        assert_close(model(ids)[0], model.norm(states[depth], None))
    model.config.num_hidden_layers = 3
    model.layers = model.layers[:2]
    assert_close(model(ids, use_cache=False)[0], model.norm(states[2], None))


SURGERY = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "use_cache": False}


@pytest.mark.parametrize(
    "config",
    [
        TNNConfig(**SURGERY, short_conv_taps=3),
        FDTNNConfig(**SURGERY),
        IPAConfig(**SURGERY),
        PolyTransformerConfig(**SURGERY, mixing="triangular"),
        SeqMixHybridConfig(**SURGERY, mixer_types=["attention", "tnn"]),
        SeqMixHybridConfig(**SURGERY, mixer_types=["tnn", "short_conv"]),
    ],
    ids=lambda config: "-".join(config.layer_mixers),
)
def test_a_layer_that_is_told_its_place_has_the_cache_of_it(config):
    model, ids = perturb(AutoModelForCausalLM.from_config(config)).double().eval(), torch.randint(VOCAB, (2, 7))
    layers, config = model.model.layers, model.config
    layers.append(copy.deepcopy(layers[-1]))
    config.num_hidden_layers = 3
    if isinstance(config, SeqMixHybridConfig):
        with pytest.raises(ValueError, match=r"has 3 layers, but config.mixer_types names 2, .*: name the mixer of"):
            model(ids, use_cache=True)
        config.mixer_types = [*config.layer_mixers, config.layer_mixers[-1]]
    expected = model(ids).logits
    with pytest.raises(ValueError, match=r"layers\[2\] has layer_idx 1, .*: set layers\[2\].layer_idx = 2, or pass"):
        model(ids, use_cache=True)
    layers[2].layer_idx = 2
    for cache in (DynamicCache(config=config), StaticCache(config=config, max_cache_len=8)):
        parts = [model(part, past_key_values=cache).logits for part in ids.split(1, dim=1)]
        assert_close(torch.cat(parts, dim=1), expected)
    layers[2].mixer.layer_idx = 0
    with pytest.raises(ValueError, match=r"layers\[2\] has layer_idx 0"):
        model(ids, past_key_values=DynamicCache(config=config))


def test_layers_in_another_order_and_pruned_ones_are_refused():
    model, ids = make(), torch.randint(VOCAB, (2, 7))
    model.layers = model.layers[::-1]
    message = r"layers\[0\] has layer_idx 1, and would use the cache of that layer: set layers\[0\].layer_idx = 0"
    with pytest.raises(ValueError, match=message):
        model(ids)
    model.layers, model.config.num_hidden_layers = model.layers[:1], 1
    with pytest.raises(ValueError, match=message):
        model(ids, past_key_values=DynamicCache(config=model.config))
    expected = model(ids, use_cache=False)[0]
    model.layers[0].layer_idx = 0
    assert_close(model(ids)[0], expected)


def test_a_cache_that_checkpointing_excludes_is_refused_aloud(caplog):
    model = make().train()
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    ids = torch.arange(6)[None]
    assert getattr(model(ids), CACHE_NAME) is None and not caplog.records
    out = model(ids, use_cache=True)
    assert out.past_key_values is None and "use_cache=True is ignored" in caplog.text
    out.last_hidden_state.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with pytest.raises(ValueError, match=r"past_key_values is given, but .* gradient checkpointing"):
        model(ids, past_key_values=DynamicCache(config=model.config))
    assert model.eval()(ids, past_key_values=DynamicCache(config=model.config)).past_key_values is not None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cu_seqlens": torch.tensor([0, 3, 6])}, "cu_seqlens was given, which is not read.*cu_seq_lens_q"),
        ({"cu_seq_lens_k": torch.tensor([0, 3, 6])}, "cu_seq_lens_k was given, which is not read"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 2, 2, 2]])}, "numbers from 1 to 2.*several documents.*seq_idx"),
        ({"attention_mask": torch.tensor([[0.0] * 4 + [-torch.inf] * 2])}, "numbers from -inf to 0.*0 at pads"),
        ({"attention_mask": torch.full((1, 6), torch.nan)}, "it must be 1 at real tokens"),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(wrong, message):
    """Names of other libraries, numbers of documents, masks that are added to scores."""
    model, ids = make(), torch.randint(VOCAB, (1, 6))
    with pytest.raises(ValueError, match=message):
        model(ids, **wrong)
    both = {"cu_seq_lens_q": torch.tensor([0, 3, 6]), "cu_seq_lens_k": torch.tensor([0, 3, 6])}
    assert_close(model(ids, **both)[0][:, 3:], model(ids[:, 3:])[0])
    attention = IPAModel(IPAConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, num_centers=2))
    for family in (model, attention):
        with pytest.raises(TypeError, match="attention_mask is a list; it must be a tensor"):
            family(ids, attention_mask=[[1] * 6])
    with pytest.raises(ValueError, match="cu_seqlens was given"):
        TNNMixer(hidden_size=16)(torch.randn(1, 6, 16), cu_seqlens=torch.tensor([0, 3, 6]))


SMALL = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1}


@pytest.mark.parametrize(
    "config",
    [
        TNNConfig(**SMALL),
        IPAConfig(**SMALL),
        PolyTransformerConfig(**SMALL, short_conv_taps=3),
        PolyTransformerConfig(**SMALL, copy_head=True),
    ],
    ids=lambda config: config.model_type,
)
def test_a_preallocated_cache_of_other_rows_is_refused(config):
    model, ids = AutoModelForCausalLM.from_config(config).eval(), torch.randint(VOCAB, (2, 6))
    cache = StaticCache(config=config, max_cache_len=8)
    model(ids, past_key_values=cache)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"allocated for 2 rows, and this call has 1: .* a new StaticCache"):
            model(ids[:1], past_key_values=cache)
        cache.reset()
    assert_close(model(ids, past_key_values=cache).logits, model(ids).logits)


CONVOLUTION = {"mixer_types": ["short_conv"], "mixer_configs": {"short_conv": {"taps": 3}}}


@pytest.mark.parametrize(
    ("config", "keeps"),
    [
        (TNNConfig(**SMALL), True),
        (IPAConfig(**SMALL), True),
        (PolyTransformerConfig(**SMALL), False),
        (PolyTransformerConfig(**SMALL, copy_head=True), True),
        (SeqMixHybridConfig(**SMALL, **CONVOLUTION), False),
    ],
)
def test_a_preallocated_cache_that_is_full_is_refused(config, keeps):
    """What keeps numbers of constant size takes any number of tokens."""
    model, ids = AutoModelForCausalLM.from_config(config).eval(), torch.randint(1, VOCAB, (1, 6))
    cache = StaticCache(config=config, max_cache_len=8)
    with nullcontext() if not keeps else pytest.raises(ValueError, match="room for 8 tokens, and would hold 9: build"):
        model.generate(ids, **{CACHE_NAME: cache}, max_new_tokens=9, do_sample=False)
    model.generate(
        ids, **{CACHE_NAME: StaticCache(config=config, max_cache_len=15)}, max_new_tokens=9, do_sample=False
    )


POLYNOMIALS: dict[str, Any] = {"degree": 2, "num_attention_heads": 2, "use_cache": False}
ROTATED = {"attention": {"num_heads": 2}}
NOT_ROTATED = {"attention": {"num_heads": 2, "rope_theta": None}}


@pytest.mark.parametrize(
    ("config_class", "fields", "sees"),
    [
        *((PolyTransformerConfig, {**POLYNOMIALS, "degree": degree}, False) for degree in (2, 3, 4, 2.5)),
        (PolyTransformerConfig, {**POLYNOMIALS, "degree": 4, "degree_form": "soft"}, False),
        (PolyTransformerConfig, {**POLYNOMIALS, "mixing": "toeplitz"}, True),
        (PolyTransformerConfig, {**POLYNOMIALS, "is_causal": True}, True),
        (PolyTransformerConfig, {**POLYNOMIALS, "short_conv_taps": 3, "short_conv_init": "uniform"}, True),
        (PolyTransformerConfig, {**POLYNOMIALS, "position_embedding_type": "learned"}, True),
        (SeqMixHybridConfig, {"mixer_types": ["attention"], "mixer_configs": NOT_ROTATED}, False),
        (SeqMixHybridConfig, {"mixer_types": ["attention"], "mixer_configs": ROTATED}, True),
        (SeqMixHybridConfig, {"mixer_types": ["tnn", "attention"], "mixer_configs": NOT_ROTATED}, True),
    ],
)
def test_a_model_that_sees_no_order_says_so(config_class, fields, sees, caplog):
    logging.warning_once.cache_clear()
    config = config_class(**{"vocab_size": 9, "hidden_size": 8, "is_causal": False, "num_hidden_layers": 2, **fields})
    model = AutoModel.from_config(config).double().eval()
    assert config.sees_order == sees == ("in any order they get the same outputs" not in caplog.text)
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    ids, order = torch.tensor([[1, 2, 3, 4, 5]]), [3, 0, 4, 1, 2]
    moved = (model(ids)[0][:, order] - model(ids[:, order])[0]).abs().max().item()
    assert (moved > 1e-6) == sees


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
@pytest.mark.parametrize("auto", [AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification])
def test_a_cache_has_two_names(auto, name):
    """Releases of the library give caches by different names."""
    torch.manual_seed(0)
    model, ids = (
        perturb(auto.from_config(TNNConfig(**SMALL, pad_token_id=None))).double().eval(),
        torch.arange(1, 9)[None],
    )
    parts = [ids[:, :5], ids[:, 5:]]
    cache = DynamicCache(config=model.config)
    outputs = [model(part, **{name: cache}, use_cache=True) for part in parts]
    assert cache.get_seq_length() == 8 and all(getattr(out, CACHE_NAME) is cache for out in outputs)
    assert_close(outputs[-1][0][:, -1:], model(ids)[0][:, -1:])
    with pytest.raises(ValueError, match="past_key_values and cache are two names"):
        model(ids, past_key_values=cache, cache=cache)
