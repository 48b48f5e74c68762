"""Models of every family with a copy head: what they predict, and what caches keep for it."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from hf_seqmix import (
    SeqMixHybridConfig,
    SeqMixHybridForCausalLM,
    TNNConfig,
    TNNForCausalLM,
)
from hf_seqmix.cache import copy_keys_of
from hf_seqmix.ops import batch_invariant
from tests.models.copying import FORMS, MIXERS, Copying, copied, make
from tests.models.decoding import check_chunks, check_continuous_batching, check_generation, check_rows_and_crops
from tests.models.fd_tnn import test_modeling_fd_tnn as fd_tnn
from tests.models.hybrid import test_modeling_hybrid as hybrid
from tests.models.poly_transformer import test_modeling_poly_transformer as poly_transformer
from tests.models.suite import PADS, perturb
from tests.models.tnn import test_modeling_tnn as tnn
from tests.tolerances import assert_close


@pytest.mark.parametrize("memory", [None, 1], ids=["whole", "in blocks"])
@pytest.mark.parametrize("mixers", MIXERS, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.one_in(2)
@torch.no_grad()
def test_copying_by_its_formula(monkeypatch, form, mixers, memory):
    if memory is not None:
        monkeypatch.setattr("hf_seqmix.models.heads.copy_head._BYTES", memory)
    model = make(mixers, **form)
    mask = torch.tensor([*PADS["inside"], *PADS["left"], *PADS["right"]])
    ids = torch.randint(1, 9, mask.shape)  # few tokens, so that they repeat
    out = model(ids, mask).logits
    assert_close(out.exp().sum(-1), torch.ones(mask.shape, dtype=torch.float64))
    states = model.model(ids, mask).last_hidden_state
    for row in range(len(mask)):
        real = mask[row].bool()
        assert_close(out[row][real], copied(model, ids[row][real].tolist(), states[row][real]))
    packed = torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3, 4]])
    states = model.model(ids[:1], position_ids=packed).last_hidden_state[0]
    expected = [copied(model, ids[0, s].tolist(), states[s]) for s in (slice(0, 3), slice(3, 4), slice(4, 9))]
    assert_close(model(ids[:1], position_ids=packed).logits[0], torch.cat(expected))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gradients_by_the_formula(form):
    model = make(["short_conv"], hidden_dropout=0.0, **form)
    mask = torch.tensor([*PADS["inside"], *PADS["left"], *PADS["right"]])
    ids, real = torch.randint(1, 9, mask.shape), mask.bool()
    weights = torch.randn(*mask.shape, 31, dtype=torch.float64)

    def gradients(total: Tensor) -> dict[str, Tensor]:
        model.zero_grad()
        total.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    actual = gradients((model(ids, mask).logits * weights)[real].sum())
    states = model.model(ids, mask).last_hidden_state
    rows = zip(ids, states, weights, real, strict=True)
    expected = gradients(
        sum((copied(model, row[own].tolist(), state[own]) * weight[own]).sum() for row, state, weight, own in rows)
    )
    assert actual.keys() == expected.keys() and {"copy_head.q_proj.weight", "copy_head.k_proj.weight"} <= actual.keys()
    for name, gradient in expected.items():
        assert_close(actual[name], gradient, factor=10)


@pytest.mark.parametrize("mixers", MIXERS, ids=str)
@pytest.mark.parametrize("form", FORMS[::2], ids=str)
@pytest.mark.one_in(2)
@torch.no_grad()
def test_decodes_as_it_reads(form, mixers):
    """Logits in chunks with pads, of growing and preallocated caches; every way to generate gives the same tokens."""
    model, mask = make(mixers, **form), torch.tensor(PADS["inside"])
    ids = torch.randint(1, 9, mask.shape)
    check_chunks(model, ids, mask, [[4, 1, 4]])
    check_generation(model, make(mixers, **form), ids)


@pytest.mark.parametrize("form", FORMS, ids=str)
@torch.no_grad()
def test_rows_and_crops_of_a_cache(form):
    for mixers in MIXERS:
        check_rows_and_crops(make(mixers, **form), torch.randint(1, 9, (2, 9)))


@pytest.mark.parametrize("form", FORMS[::2], ids=str)
def test_continuous_batching_gives_what_a_prompt_gives_alone(form):
    for mixers in MIXERS[:3]:
        check_continuous_batching(make(mixers, **form), 9)


def test_ids_are_kept_exactly_in_half_precision():
    config = TNNConfig(vocab_size=3001, hidden_size=16, num_hidden_layers=2, copy_head=True)
    model = TNNForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.tensor([[2999, 2997, 2999, 2998]])
    expected = [[-1, 2999], [2997, 2997], [2999, 2999], [2998, 2998]]
    for cache in (DynamicCache(config=config), StaticCache(config, max_cache_len=8)):
        model(ids, past_key_values=cache)
        assert copy_keys_of(cache).values[0, 0, :4].tolist() == expected


@torch.no_grad()
@torch.no_grad()
def test_rows_of_a_model_that_copies_by_its_state_do_not_depend_on_pads() -> None:
    model = make(["tnn", "attention"], copy_head_tokens=3, copy_head_state=True).float()
    assert model.copy_head.score_gate.item() != 0
    for _ in range(5):
        ids = torch.randint(1, 9, (1, 29))
        padded, mask = F.pad(ids, (3, 0)), F.pad(torch.ones_like(ids), (3, 0))
        with batch_invariant():
            assert torch.equal(model(padded, mask).logits[:, 3:], model(ids).logits)


def test_a_distilled_model_copies_too():
    config = TNNConfig(
        vocab_size=31,
        hidden_size=16,
        num_hidden_layers=2,
        decay=0.9,
        rpe_hidden_size=8,
        copy_head=True,
        copy_head_tokens=2,
        copy_head_state=True,
        pad_token_id=0,
    )
    model = perturb(TNNForCausalLM(config)).double().eval()
    ids = torch.randint(1, 9, (2, 40))
    expected = model.generate(ids, max_new_tokens=6, do_sample=False)
    model.distill_decoder(tolerance=1e-6, exact_taps=4)
    assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False), expected)


def test_the_head_is_only_there_where_it_is_asked_for():
    fields = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2}
    assert TNNForCausalLM(TNNConfig(**fields)).copy_head is None
    assert TNNForCausalLM(TNNConfig(**fields, copy_head=True)).copy_head.q_proj.weight.shape == (16, 16)
    assert TNNConfig(copy_head=True).copy_head_rank == 64 and TNNConfig().copy_head_rank is None
    for changed, message in (
        ({"copy_head": True, "is_causal": False}, "copy_head is True, but is_causal is False"),
        ({"copy_head": True, "copy_head_rank": 0}, "copy_head_rank is 0; it must be at least 1"),
        ({"copy_head_tokens": 65}, "copy_head_tokens is 65; it must be at most 64"),
        ({"copy_head_rank": 2**21}, "copy_head_rank is 2097152; it must be at most 1048576"),
        ({"copy_head": True, "copy_head_tokens": 0}, "copy_head_tokens is 0; it must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            TNNConfig(**{**fields, **changed})
    with pytest.raises(ValueError, match="keeps no tokens"):
        make(["attention"])(torch.randint(9, (1, 5)), past_key_values=DynamicCache())


def test_what_a_checkpoint_lacks_begins_as_in_a_new_model(tmp_path):
    model = make(["short_conv"], copy_head_state=True)
    assert model.copy_head.score_gate.item() != 0
    kept = {name: value for name, value in model.state_dict().items() if "copy_head" not in name}
    model.save_pretrained(tmp_path, state_dict=kept)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert "copy_head.score_gate" in info["missing_keys"]
    assert loaded.copy_head.score_gate.item() == 0
    assert 0 < loaded.copy_head.state_proj.weight.abs().max() <= 16**-0.5


def test_the_first_layer_of_a_cache_is_one_that_keeps_copy_keys():
    own = {"attention": {"num_heads": 2}}
    config = SeqMixHybridConfig(hidden_size=16, num_hidden_layers=3, mixer_configs=own, copy_head=True)
    assert config.layer_types == ["seqmix_key_inputs", "full_attention", "full_attention"]
    assert SeqMixHybridForCausalLM(config).copy_head is not None
    assert TNNConfig(num_hidden_layers=2, copy_head=True).layer_types == ["seqmix_convolution"] * 2


@pytest.mark.parametrize("static", [False, True])
def test_a_cache_that_the_head_has_not_read_is_refused(static):
    """Places of its keys would be taken for those of earlier tokens, and later ones would be seen."""
    model = TNNForCausalLM(TNNConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, copy_head=True)).eval()
    ids = torch.randint(31, (2, 9))
    config = model.config
    cache = StaticCache(config=config, max_cache_len=12) if static else DynamicCache(config=config)
    model.model(ids[:, :5], past_key_values=cache, use_cache=True)
    with pytest.raises(ValueError, match="holds 5 tokens, of which the copy head has read 0"):
        model(ids[:, 5:], past_key_values=cache, use_cache=True)


@pytest.mark.slow
class TestCopyingTNN(Copying, tnn.TestTNN):
    pass


@pytest.mark.slow
class TestCopyingFDTNN(Copying, fd_tnn.TestFDTNN):
    pass


@pytest.mark.slow
class TestCopyingPolyTransformer(Copying, poly_transformer.TestPolyTransformer):
    pass


@pytest.mark.slow
class TestCopyingAttentionFirst(Copying, hybrid.TestCompiledAttentionFirst):
    pass
