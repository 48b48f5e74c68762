"""The polynomial-degree transformer: the common suite, and what is its own."""

import math
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import DynamicCache, StaticCache

from hf_seqmix import (
    PolyTransformerConfig,
    PolyTransformerForCausalLM,
    PolyTransformerModel,
    SeqMixHybridConfig,
    SeqMixHybridForCausalLM,
)
from hf_seqmix.models.poly_transformer.modeling_poly_transformer import POLY_TRANSFORMER_FAMILY
from hf_seqmix.modules.norms import calibrate_static_norms
from tests.models.suite import VOCAB, CompiledModelSuite, ModelSuite, perturb
from tests.tolerances import assert_close


class PolyConfigurations:
    family = POLY_TRANSFORMER_FAMILY
    fields: dict[str, Any] = {}

    def config(self, is_causal: bool = True, **kwargs: Any) -> PolyTransformerConfig:
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
        fields |= {"max_position_embeddings": 24, "intermediate_size": 32}
        return PolyTransformerConfig(**{**fields, **self.fields, "is_causal": is_causal, **kwargs})


class TestPolyTransformer(PolyConfigurations, CompiledModelSuite):
    pass


@pytest.mark.slow  # by default gates are among the variants below
class TestGatedPolyTransformer(PolyConfigurations, ModelSuite):
    """Degrees 3 and 4, whose sums fade."""

    directions = (True,)
    fields = {"layer_degrees": [3, 4], "forget_gate": True}


@pytest.mark.slow
class TestCompiledGates(PolyConfigurations, CompiledModelSuite):
    directions = (True,)
    few_layers = {}
    fields = {"layer_degrees": [3, 4], "forget_gate": True}


@pytest.mark.slow
class TestSquaredPolyTransformer(TestPolyTransformer):
    """Weights <q, k>^2 that fade and divide."""

    directions = (True,)
    fields = {"kernel_power": 2, "forget_gate": True, "denominator": True}


VARIANTS: dict[str, dict[str, Any]] = {
    "layers": {"layer_degrees": [2, 4]},
    "gate": {"layer_degrees": [4, 3], "degree_form": "gate"},
    "heads": {"head_degrees": [2, 3, 4, 3]},
    "5": {"degree": 5},
    "e": {"degree": math.e},
    "soft": {"degree_form": "soft"},
    "static": {"normalization": "static", "feed_forward": "none"},
    "toeplitz": {"mixing": "toeplitz"},
    "triangular": {"mixing": "triangular", "max_position_embeddings": 48},
    "gated heads": {"head_degrees": [2, 3, 4, 3], "forget_gate": True},
    "gated 5": {"layer_degrees": [4, 5], "degree_form": "gate", "forget_gate": True},
    "squared": {"kernel_power": 2},
    "cubed": {"kernel_power": 3, "forget_gate": True},
    "divided": {"kernel_power": 2, "denominator": True},
}
CASES = [
    pytest.param(name, is_causal, id=f"{name}-{'causal' if is_causal else 'bidirectional'}")
    for name, fields in VARIANTS.items()
    for is_causal in (True, False)
    if is_causal or not fields.get("forget_gate")
]


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> TestPolyTransformer:
    suite = TestPolyTransformer()
    suite.fields = VARIANTS[request.param]
    return suite


@pytest.mark.parametrize(("variant", "is_causal"), CASES, indirect=["variant"])
class TestVariants:
    """The tests of the suite that depend on the mixer, for other mixers of the family."""

    def test_padding(self, variant, is_causal):
        for side in ("left", "inside"):
            variant.test_a_padded_row_equals_the_row_alone(is_causal, side, torch.float64)
        variant.test_not_even_nan_at_pads_matters(is_causal)
        variant.test_empty_inputs(is_causal)

    def test_packing(self, variant, is_causal):
        variant.test_packed_sequences_equal_each_alone(is_causal, "cu_seq_lens_q")

    def test_causality(self, variant, is_causal):
        variant.test_the_future_does_not_reach_the_past(is_causal, torch.float32)

    @pytest.mark.one_in(3)
    def test_training(self, variant, is_causal):
        variant.test_every_parameter_gets_a_gradient(is_causal)
        variant.test_gradient_checkpointing_changes_nothing(is_causal)
        variant.test_autocast(is_causal, torch.bfloat16)

    @pytest.mark.one_in(3)
    def test_saving(self, variant, is_causal, tmp_path):
        model = variant.make("Model", is_causal, torch.float32)
        model.save_pretrained(tmp_path)
        inputs = variant.batch("Model")
        assert torch.equal(type(model).from_pretrained(tmp_path)(**inputs)[0], model(**inputs)[0])
        variant.test_nothing_is_left_to_chance_by_initialization(is_causal)


@pytest.mark.parametrize(
    ("name", "is_causal"), [("heads", True), ("soft", True), ("toeplitz", True), ("toeplitz", False)]
)
@pytest.mark.one_in(3)
def test_exporting_variants(name, is_causal):
    suite = TestPolyTransformer()
    suite.fields = VARIANTS[name]
    suite.test_exports_with_any_length(is_causal, masked=True)


@pytest.mark.parametrize("variant", VARIANTS, indirect=True)
@pytest.mark.one_in(2)
def test_caches_of_variants(variant):
    variant.test_cached_chunked_and_full_logits_agree([3, 1, 1, 4], torch.float64)
    variant.test_masks_of_this_calls_tokens_alone("left")
    variant.test_masks_of_this_calls_tokens_alone("inside")
    variant.test_a_cropped_cache_continues_as_if_nothing_had_been()
    variant.test_a_reset_cache_forgets_the_weights_too()


# By default half of them; the others' caches have the test above.
@pytest.mark.parametrize(
    ("variant", "mode"),
    [
        pytest.param(name, mode, marks=[] if place % 2 == 1 and mode == "greedy" else pytest.mark.slow)
        for place, name in enumerate(VARIANTS)
        for mode in ("greedy", "beam")
    ],
    indirect=["variant"],
)
def test_generation_of_variants(variant, mode):
    model = variant.make("ForCausalLM", pad_token_id=0)
    model.lm_head.weight.data.mul_(8.0)
    variant.test_generation_with_and_without_cache(model, mode)
    if mode == "greedy":
        variant.test_assisted_generation_equals_plain_generation(model, "assistant")


# -- polynomials ---------------------------------------------------------------------------------------------------


def theory(degree: int | None = None, layers: int = 2, **kwargs: Any) -> PolyTransformerModel:
    """A model that is a homogeneous polynomial of its input embeddings."""
    config = PolyTransformerConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        num_attention_heads=2,
        num_hidden_layers=layers,
        degree=degree,
        feed_forward="none",
        use_residual=False,
        normalization="none",
        use_bias=False,
        hidden_dropout=0.0,
        embedding_scale=1.0,
        **kwargs,
    )
    return PolyTransformerModel(config).double().eval()


@pytest.mark.parametrize(("degree", "layers"), [(2, 1), (2, 3), (3, 2), (4, 2), (5, 2)])
def test_the_degree_of_a_net_is_that_of_its_layers_to_the_power_of_their_number(degree, layers):
    model = theory(degree, layers)
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    y = model(inputs_embeds=x)[0]
    assert y.abs().max() > 0
    assert torch.equal(model(inputs_embeds=2 * x)[0], 2.0 ** (degree**layers) * y)
    assert_close(model(inputs_embeds=1.5 * x)[0], 1.5 ** (degree**layers) * y)
    assert not [p for name, p in model.named_parameters() if "mixer" not in name and "embed" not in name]


def test_degrees_of_layers_multiply():
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    for fields, degree in (({"layer_degrees": [2, 4]}, 8), ({"degree": 4, "degree_form": "gate"}, 16)):
        model = theory(**fields)
        assert torch.equal(model(inputs_embeds=2 * x)[0], 2.0**degree * model(inputs_embeds=x)[0])


@pytest.mark.parametrize("normalization", ["static", "batch"])
def test_norms_that_keep_a_net_a_polynomial(normalization):
    """Along a line a net of two layers of degree 2 with residuals and biases is a polynomial of degree 4."""
    suite = TestPolyTransformer()
    model = suite.make(degree=2, normalization=normalization, feed_forward="none", hidden_dropout=0.0)
    x, direction = torch.randn(2, 2, 5, 16, dtype=torch.float64)
    if normalization == "static":
        calibrate_static_norms(model, inputs_embeds=x)
    else:
        model.train()(inputs_embeds=x)
        model.eval()
    y = torch.stack([model(inputs_embeds=x + 0.5 * t * direction)[0] for t in range(6)])
    size = y.abs().max()
    for _ in range(4):
        y = y.diff(dim=0)
    assert y.abs().max() > 1e-6 * size
    assert y.diff(dim=0).abs().max() < 1e-11 * size


def test_batch_statistics_are_refused_where_the_future_would_come_in():
    config = TestPolyTransformer().config(normalization="batch")
    with pytest.raises(ValueError, match="batch statistics let a causal language model see the future"):
        PolyTransformerForCausalLM(config)
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "mixer_types": ["attention", "poly_transformer"]}
    hybrid = SeqMixHybridConfig(**fields, mixer_configs={"poly_transformer": {"normalization": "batch"}})
    with pytest.raises(ValueError, match="batch statistics let a causal language model see the future"):
        SeqMixHybridForCausalLM(hybrid)


# -- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [2, 3, 4, 5, 2.5])
def test_parameter_counts(degree):
    with torch.device("meta"):
        model = PolyTransformerForCausalLM(PolyTransformerConfig(degree=degree, num_hidden_layers=3))
    d = 512
    mixer = int((degree + 1) * d * d) + (math.ceil(degree) + 1) * d
    feed_forward = 3 * 4 * d * d + 2 * 4 * d + d
    assert sum(p.numel() for p in model.parameters()) == 50257 * d + 3 * (mixer + feed_forward) + 2 * d


OF_SUMS: dict[str, dict[str, Any]] = {
    "plain": {"layer_degrees": [3, 5]},
    "gated": {"layer_degrees": [2, 4], "forget_gate": True},
    "squared": {"kernel_power": 2, "forget_gate": True, "denominator": True},
}


@pytest.mark.parametrize("fields", OF_SUMS.values(), ids=OF_SUMS)
def test_a_cache_of_sums_is_constant_in_size_and_refuses_a_deep_crop(fields):
    model = TestPolyTransformer().make("ForCausalLM", **fields)
    ids = torch.randint(VOCAB, (1, 300))
    cache = DynamicCache(config=model.config)
    parts = [model(ids[:, :150], past_key_values=cache, use_cache=True).logits]
    sizes = set()
    for t in range(150, 300):
        parts.append(model(ids[:, t : t + 1], past_key_values=cache, use_cache=True).logits)
        sizes.add(sum(layer.sums.numel() for layer in cache.layers))
        assert all(layer.keys.shape[2] <= 128 for layer in cache.layers)
    assert len(sizes) == 1
    full = model(ids, use_cache=False).logits
    assert_close(torch.cat(parts, dim=1), full, factor=10)
    cache.crop(-60)
    assert_close(model(ids[:, 240:], past_key_values=cache, use_cache=True).logits, full[:, 240:], factor=10)
    with pytest.raises(ValueError, match="250 tokens were to be cropped from a cache of 300"):
        cache.crop(-250)


@pytest.mark.parametrize(
    "name", [pytest.param("plain", marks=pytest.mark.slow), "gated", pytest.param("squared", marks=pytest.mark.slow)]
)
def test_a_compiled_step_of_decoding_is_one_graph(name):
    torch._dynamo.reset()
    model = TestPolyTransformer().make("ForCausalLM", **OF_SUMS[name])
    ids = torch.randint(VOCAB, (2, 14))
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(model.forward, backend=counter, fullgraph=True)
    cache = StaticCache(model.config, max_cache_len=16)
    with torch.no_grad():
        model(ids[:, :8], past_key_values=cache, use_cache=True)
        parts = [step(ids[:, t : t + 1], past_key_values=cache, use_cache=True).logits for t in range(8, 14)]
    assert_close(torch.cat(parts, dim=1), model(ids, use_cache=False).logits[:, 8:])
    assert counter.frame_count == 1


# -- soft degrees --------------------------------------------------------------------------------------------------


def soft(suffix: str, is_causal: bool) -> Any:
    return TestPolyTransformer().make(suffix, is_causal, degree_form="soft", degree_penalty=0.5, hidden_dropout=0.0)


@pytest.mark.parametrize(("suffix", "is_causal"), TestPolyTransformer().heads())
def test_the_penalty_enters_the_loss_of_every_head_in_training(suffix, is_causal):
    if suffix == "Model":
        return
    model, batch = soft(suffix, is_causal), TestPolyTransformer().batch(suffix)
    means = [layer.mixer.mean_degree for layer in model.model.layers]
    penalty = 0.5 * sum((mean - math.e) ** 2 for mean in means)
    assert penalty > 0.01
    plain = model(**batch).loss
    torch.testing.assert_close(model.train()(**batch).loss, plain + penalty, check_dtype=False)


@pytest.mark.parametrize("suffix", ["ForCausalLM", "ForTokenClassification", "ForSequenceClassification"])
def test_the_penalty_counts_once_in_an_accumulated_batch(suffix):
    model, batch = soft(suffix, True).train(), TestPolyTransformer().batch(suffix, rows=3)
    if suffix != "ForSequenceClassification":
        batch["labels"][0, 3:] = -100
    whole = model(**batch).loss
    labels = batch["labels"][:, 1:] if suffix == "ForCausalLM" else batch["labels"]
    items = (labels != -100).sum()
    parts = [{key: value[rows] for key, value in batch.items()} for rows in (slice(0, 1), slice(1, 3))]
    accumulated = sum(model(**part, num_items_in_batch=items).loss for part in parts)
    torch.testing.assert_close(accumulated, whole)


def test_a_soft_degree_moves_toward_its_target():
    model = soft("ForCausalLM", True).train()
    optimizer = torch.optim.SGD([layer.mixer.degree_logits for layer in model.model.layers], lr=1.0)
    for _ in range(30):
        optimizer.zero_grad()
        model.auxiliary_loss().backward()
        optimizer.step()
    for layer in model.model.layers:
        assert layer.mixer.mean_degree.item() == pytest.approx(math.e, abs=0.05)


# -- in hybrids -----------------------------------------------------------------------------------------------------


def test_in_a_hybrid():
    types = ["poly_transformer", "attention", "tnn", "poly_transformer"]
    for own, kept in (({}, "seqmix_sums"), ({"mixing": "toeplitz", "head_degrees": [2, 4]}, "seqmix_history")):
        config = SeqMixHybridConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            mixer_types=types,
            mixer_configs={"poly_transformer": {"num_attention_heads": 2, **own}, "attention": {"num_heads": 2}},
            pad_token_id=0,
        )
        assert config.layer_types == [kept, "full_attention", "seqmix_convolution", kept]
        model = perturb(SeqMixHybridForCausalLM(config)).double().eval()
        ids = torch.randint(1, VOCAB, (2, 5))
        expected = model.generate(ids, max_new_tokens=8, use_cache=False)
        assert torch.equal(model.generate(ids, max_new_tokens=8), expected)
        static = model.generate(ids, max_new_tokens=8, cache_implementation="static", disable_compile=True)
        assert torch.equal(static, expected)


def test_gates_in_a_hybrid():
    own = {"num_attention_heads": 2, "kernel_power": 2, "forget_gate": True, "denominator": True}
    fields = {"vocab_size": VOCAB, "hidden_size": 16, "mixer_types": ["poly_transformer", "tnn"], "pad_token_id": 0}
    config = SeqMixHybridConfig(**fields, mixer_configs={"poly_transformer": own})
    assert config.base_model_tp_plan["layers.*.mixer.groups.*.gate_proj"] == "colwise"
    model = perturb(SeqMixHybridForCausalLM(config)).double().eval()
    ids = torch.randint(1, VOCAB, (2, 5))
    expected = model.generate(ids, max_new_tokens=8, use_cache=False)
    assert torch.equal(model.generate(ids, max_new_tokens=8), expected)
    with pytest.raises(ValueError, match="forget_gate is True, but is_causal is False"):
        SeqMixHybridConfig(**fields, mixer_configs={"poly_transformer": own}, is_causal=False)


@pytest.mark.parametrize("use_residual", [True, False])
def test_branches_begin_smaller_only_where_they_are_added_up(use_residual):
    fields = {"vocab_size": VOCAB, "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 8}
    model = PolyTransformerModel(PolyTransformerConfig(**fields, use_residual=use_residual))
    weight = model.layers[0].mixer.o_proj.weight
    assert weight.std().item() * weight.shape[1] ** 0.5 == pytest.approx(0.25 if use_residual else 1.0, rel=0.1)
