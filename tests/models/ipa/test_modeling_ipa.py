"""IPA: the common suite, and what is its own."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import DynamicCache, StaticCache

from hf_seqmix import IPAConfig, IPAForCausalLM, IPAForMaskedLM, IPAModel, SeqMixHybridConfig, SeqMixHybridForCausalLM
from hf_seqmix.models.ipa.modeling_ipa import IPA_FAMILY
from tests.models.copying import Copying
from tests.models.suite import PADS, VOCAB, CompiledModelSuite, perturb
from tests.models.suite.caching import CachingTests
from tests.models.suite.generating import GeneratingTests
from tests.models.suite.padding import PaddingTests
from tests.tolerances import MODEL_TOLERANCE, assert_close, relative_error


class IPAConfigurations:
    family = IPA_FAMILY
    own: dict[str, Any] = {}

    def config(self, is_causal: bool = True, **kwargs: Any) -> IPAConfig:
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_centers": 4}
        fields |= {"max_position_embeddings": 24, "is_causal": is_causal, **self.own, **kwargs}
        if not is_causal:
            # Deviations of 0.02 are made for wider models: these would not move in the dozen steps of a test.
            fields.setdefault("initializer_range", 0.1)
        return IPAConfig(**fields)


class TestIPA(IPAConfigurations, CompiledModelSuite):
    pass


class ExtendedIPA(Copying, IPAConfigurations):
    """All extensions at once."""

    own = {"token_shift": 3, "kernel_norm": "prod", "tie_iterations": True}


class TestExtendedIPA(ExtendedIPA, PaddingTests, CachingTests, GeneratingTests):
    """Where tokens are read in parts or beside others; the slow class below has the rest."""


@pytest.mark.slow
class TestThoroughExtendedIPA(ExtendedIPA, CompiledModelSuite):
    """What compiles without the extensions is left to the plain suite."""

    test_compiles_at_most_twice_for_all_lengths = None
    test_a_compiled_training_step_has_the_same_gradients = None
    test_exports_with_any_length = None
    test_low_rank_adapters = None
    test_adapters_of_the_embedding = None

    @pytest.mark.parametrize("masked", [True])
    @pytest.mark.parametrize("backend", ["aot_eager"])
    def test_compiles_in_one_graph(self, is_causal, masked, backend):
        super().test_compiles_in_one_graph(is_causal, masked, backend, [False, None])


def test_the_librarys_exporter_takes_the_extensions():
    TestThoroughExtendedIPA().test_the_librarys_exporter_takes_both_stages_of_generation(False)


def make(**kwargs: Any) -> IPAForCausalLM:
    return perturb(IPAForCausalLM(TestIPA().config(True, **kwargs)), 0.2).double().eval()


CACHED = [
    *({"kernel_norm": norm} for norm in ("j", "prod", "mix", "none")),
    {"coupling": "toeplitz"},
    {"kernel_rank": 3},
    {"rank": 3, "num_centers": 5, "num_row_centers": 8},
    {"token_shift": 4},
    {"copy_head": True},
    {"tie_iterations": True},
]


@pytest.mark.parametrize("options", CACHED, ids=str)
def test_every_option_decodes_as_it_reads(options):
    """Logits with a cache, in chunks and with pads; generation from a preallocated cache, prefilled in chunks."""
    model = make(pad_token_id=0, **options)
    suite, mask = TestIPA(), torch.tensor(PADS["inside"])
    ids, real = torch.randint(1, VOCAB, (2, 9)), mask.bool()
    full = model(ids, mask, use_cache=False).logits
    for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=14)):
        chunked = suite.in_chunks(model, ids, mask, [4, 1, 4], cache)
        assert relative_error(chunked[real], full[real]) < MODEL_TOLERANCE[torch.float64]
    left = torch.tensor(PADS["left"])
    expected = model.generate(ids * left, attention_mask=left, max_new_tokens=8, use_cache=False)
    for kwargs in ({}, {"prefill_chunk_size": 4}):
        kwargs |= {"cache_implementation": "static", "disable_compile": True}
        assert torch.equal(model.generate(ids * left, attention_mask=left, max_new_tokens=8, **kwargs), expected)


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])
def test_parameter_counts(is_causal, rank):
    """Column, row and norms of each layer, the last norm, and the embeddings."""
    vocab, n, layers, P, M, rows = 101, 24, 3, 4, 17, 6
    config = IPAConfig(
        vocab_size=vocab, hidden_size=n, num_hidden_layers=layers, num_centers=P, rank=rank,
        kernel_rank=5 if rank else None, num_row_centers=rows, max_position_embeddings=M, is_causal=is_causal,
        linear_init="normal",
    )  # fmt: skip
    h, offsets = 4 * n, M if is_causal else 2 * M - 1
    k, r = (rank, 5) if rank else (n // P, n // P)
    # U and V, Q and K, and the biases of all four
    column = 2 * n * k * P + 2 * n * r * P + 2 * r * P + k * P + n + P * offsets
    if rank is None:
        assert column == 4 * n**2 + 4 * n + P * offsets
    row = 2 * n * h + h + n + n * rows + rows
    norms = 4 * n + k * P
    count = sum(p.numel() for p in IPAModel(config).parameters())
    assert count == layers * (column + row + norms) + 2 * n + vocab * n


def test_default_sizes():
    config = IPAConfig()
    assert (config.rank, config.kernel_rank, config.num_row_centers) == (64, 64, 8)
    assert config.intermediate_size == 4 * config.hidden_size
    assert config.layer_types == ["full_attention"] * 7
    assert IPAConfig(kernel_rank=32).layer_types == ["seqmix_key_inputs"] * 7
    assert IPAConfig(copy_head=True).layer_types == ["seqmix_key_inputs"] + ["full_attention"] * 6
    assert IPAConfig(copy_head=True, rank=5).copy_head_rank == 5


def test_initial_weights():
    for linear_init, bound in (("uniform", 64**-0.5), ("normal", 0.02)):
        config = IPAConfig(vocab_size=50, hidden_size=64, num_hidden_layers=8, linear_init=linear_init)
        layer = IPAModel(config).layers[0]
        measured = {"q": layer.mixer.q_proj.weight.std().item(), "o": layer.mixer.o_proj.weight.std().item()}
        std = bound / 3**0.5 if linear_init == "uniform" else bound
        assert measured["q"] == pytest.approx(std, rel=0.1)
        assert measured["o"] == pytest.approx(std / 4, rel=0.1)  # 1 / sqrt(2 x 8)
        down = layer.mlp.down_proj.weight.std().item()
        assert down == pytest.approx(std / 4 / (2 if linear_init == "uniform" else 1), rel=0.1)
        assert layer.mixer.relative_bias.std().item() == pytest.approx(0.02, rel=0.1)


def test_tied_iterations_are_one_block():
    model = make(tie_iterations=True, num_hidden_layers=3)
    assert len(model.model.layers) == 1
    untied = make(num_hidden_layers=3)
    for layer in untied.model.layers:
        layer.load_state_dict(model.model.layers[0].state_dict())
    untied.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    untied.model.norm.load_state_dict(model.model.norm.state_dict())
    ids = torch.randint(VOCAB, (2, 9))
    assert_close(model(ids).logits, untied(ids).logits)


def test_without_residuals_and_norms():
    """Column and row operations one after another."""
    model = make(use_residual=False, norm_type="none", output_norm=False)
    ids = torch.randint(VOCAB, (2, 9))
    x = model.model.embed_tokens(ids) * 4  # sqrt(16)
    for layer in model.model.layers:
        x = layer.mlp(layer.mixer(x))
    assert_close(model(ids).logits, model.lm_head(x))


@pytest.mark.parametrize("linear_init", ["uniform", "normal"])
@pytest.mark.parametrize("use_residual", [True, False])
def test_branches_begin_smaller_only_where_they_are_added_up(use_residual, linear_init):
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 8, "num_centers": 4}
    row = IPAModel(IPAConfig(**sizes, linear_init=linear_init, use_residual=use_residual)).layers[0].mlp
    scale = row.down_proj.weight.std() / row.up_proj.weight.std()
    assert scale.item() == pytest.approx(0.25 if use_residual else 1.0, rel=0.1)


# -- caches of their own ----------------------------------------------------------------------------------------------


def test_long_histories_and_deep_crops():
    """The inputs of a token shift are held for the last steps only: 64 can be taken back, more are refused."""
    model = make(token_shift=3, copy_head=True, max_relative_distance=8)
    ids = torch.randint(VOCAB, (1, 200))
    cache = DynamicCache(config=model.config)
    for part in ids.split(40, dim=1):
        model(part, past_key_values=cache)
    with pytest.raises(ValueError, match="but the inputs of only the last"):
        cache.crop(-190)
    cache.crop(-64)
    assert_close(model(ids[:, 136:], past_key_values=cache).logits, model(ids, use_cache=False).logits[:, 136:])


@pytest.mark.parametrize(
    "options",
    [pytest.param({}, marks=pytest.mark.slow), {"token_shift": 3, "copy_head": True, "kernel_norm": "prod"}],
    ids=str,
)
def test_a_compiled_step_with_a_preallocated_cache(options):
    """One graph serves all steps; masks and positions are those that `generate` prepares."""
    torch._dynamo.reset()
    model = make(pad_token_id=0, num_hidden_layers=1, **options)
    left = torch.tensor(PADS["left"])
    ids = torch.randint(1, VOCAB, (2, 14))
    mask = nn.functional.pad(left, (0, 5), value=1)
    full = model(ids, mask, use_cache=False).logits
    cache = StaticCache(model.config, max_cache_len=16)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    prepare = model.prepare_inputs_for_generation
    with torch.no_grad():
        for start, stop in [(0, 9), *((i, i + 1) for i in range(9, 14))]:
            inputs = prepare(
                ids[:, :stop],
                next_sequence_length=stop - start,
                attention_mask=mask[:, :stop],
                past_key_values=cache,
                use_cache=True,
                is_first_iteration=start == 0,
            )
            out = (model if start == 0 else compiled)(**inputs).logits
            real = mask[:, start:stop].bool()
            assert_close(out[real], full[:, start:stop][real])
    assert counter.frame_count == 1


def test_rows_of_a_cache_are_selected_and_repeated():
    model = make(token_shift=3, copy_head=True)
    ids = torch.randint(VOCAB, (2, 9))
    cache = DynamicCache(config=model.config)
    model(ids[:, :6], past_key_values=cache)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0]))
    assert_close(model(ids[:, 6:].flip(0), past_key_values=cache).logits, model(ids).logits[:, 6:].flip(0))


def test_caches_that_were_not_built_for_the_model():
    ids = torch.randint(VOCAB, (1, 5))
    with pytest.raises(ValueError, match="holds no layer 0 yet, but short convolutions"):
        make(token_shift=3)(ids, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="keeps no tokens, but the copy head needs tokens"):
        make(copy_head=True)(ids, past_key_values=DynamicCache())


def test_layers_of_a_hybrid():
    own = {"ipa": {"token_shift": 3, "num_centers": 4, "kernel_rank": 2}, "attention": {"num_heads": 2}}
    own["tnn"] = {"rpe_hidden_size": 8}
    config = SeqMixHybridConfig(
        vocab_size=VOCAB, hidden_size=16, mixer_types=["tnn", "ipa", "attention"], mixer_configs=own, pad_token_id=0
    )
    model = perturb(SeqMixHybridForCausalLM(config)).double().eval()
    left = torch.tensor(PADS["left"])
    ids = torch.randint(1, VOCAB, left.shape) * left
    expected = model.generate(ids, attention_mask=left, max_new_tokens=8, use_cache=False)
    for kwargs in ({}, {"cache_implementation": "static", "disable_compile": True}):
        assert torch.equal(model.generate(ids, attention_mask=left, max_new_tokens=8, **kwargs), expected)


# -- configurations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_centers": 7}, "num_centers is 7, which does not divide hidden_size 512"),
        ({"num_centers": 0}, "num_centers is 0; it must be at least 1"),
        ({"num_row_centers": 7}, "num_row_centers is 7, which does not divide intermediate_size 2048"),
        *(
            ({"coupling": gone}, f"coupling is '{gone}'; it must be one of 'shared', 'toeplitz'")
            for gone in ("absolute_scalar", "separable", "full")
        ),
        *(
            ({"kernel_type": gone}, f"kernel_type is '{gone}'; it must be one of 'bilinear'")
            for gone in ("rbf", "static", "separable")
        ),
        ({"kernel_norm": "q"}, "kernel_norm is 'q'"),
        ({"token_shift": -1}, "token_shift is -1; it must be at least 0"),
        ({"copy_head": True, "is_causal": False}, "copy_head is True, but is_causal is False"),
        ({"max_relative_distance": 0}, "max_relative_distance is 0"),
    ],
)
def test_configurations_that_make_no_sense(fields, message):
    with pytest.raises(ValueError, match=message):
        IPAConfig(**fields)


def test_centers_that_do_not_divide_are_fine_with_a_rank():
    config = TestIPA().config(True, num_centers=3, rank=5, num_row_centers=4)
    assert IPAForCausalLM(config)(torch.randint(VOCAB, (1, 5))).logits.shape == (1, 5, VOCAB)


def test_packed_sequences_fill_no_cache():
    """What follows would see all of them."""
    ids, packed = torch.randint(VOCAB, (1, 5)), torch.tensor([[0, 1, 2, 0, 1]])
    for options in ({}, {"copy_head": True, "token_shift": 3}):
        model = make(**options)
        with pytest.raises(ValueError, match="packed sequences cannot fill a cache: pass use_cache=False"):
            model(ids, position_ids=packed, past_key_values=DynamicCache(config=model.config))
        assert model(ids, position_ids=packed).past_key_values is None


def test_masked_language_model_sees_both_ways():
    model = IPAForMaskedLM(TestIPA().config(False)).eval()
    ids = torch.randint(VOCAB, (1, 9))
    changed = ids.clone()
    changed[0, 8] = (changed[0, 8] + 1) % VOCAB
    assert (model(changed).logits - model(ids).logits)[0, 0].abs().max() > 1e-6
