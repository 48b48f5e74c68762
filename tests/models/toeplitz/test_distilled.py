"""Models whose decoders are distilled, against uncached models whose kernels are the modal taps."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache

from hf_seqmix import (
    FDTNNConfig,
    FDTNNForCausalLM,
    SeqMixHybridConfig,
    SeqMixHybridForCausalLM,
    TNNConfig,
    TNNForCausalLM,
)
from tests.models.suite import perturb
from tests.tolerances import MODEL_TOLERANCE, relative_error

VOCAB, TAPS = 31, 5
SIZES = {"vocab_size": VOCAB, "hidden_size": 8, "pad_token_id": 0, "hidden_dropout": 0.0}
MODELS = {
    "tnn": lambda: TNNForCausalLM(TNNConfig(**SIZES, num_hidden_layers=2, decay=0.95)),
    "fd_tnn": lambda: FDTNNForCausalLM(FDTNNConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=200)),
    "hybrid": lambda: SeqMixHybridForCausalLM(
        SeqMixHybridConfig(
            **SIZES,
            mixer_types=["tnn", "attention", "fd_tnn"],
            mixer_configs={"attention": {"num_heads": 2}, "tnn": {"decay": 0.9}},
            max_position_embeddings=200,
            short_conv_taps=3,
        )
    ),
    "learned_taps": lambda: SeqMixHybridForCausalLM(
        SeqMixHybridConfig(
            **SIZES,
            mixer_types=["poly_transformer", "tnn"],
            mixer_configs={
                "poly_transformer": {"mixing": "toeplitz", "num_attention_heads": 2},
                "tnn": {"decay": 0.9},
            },
            max_position_embeddings=400,
        )
    ),
}
LAYERS = {"tnn": [0, 1], "fd_tnn": [0, 1], "hybrid": [0, 2], "learned_taps": [1]}


def build(name, seed=0):
    torch.manual_seed(seed)
    return perturb(MODELS[name]()).double().eval()


class ModalTaps(torch.nn.Module):
    """The kernel of a distilled operator, for calls without a cache."""

    def __init__(self, operator):
        super().__init__()
        self.modal = operator.modal_kernel(torch.float64, torch.device("cpu"))

    def forward(self, length, device=None):
        return self.modal.first(length)


@pytest.fixture(scope="module", params=list(MODELS))
def distilled(request):
    """Return a distilled model, the same with its kernels replaced, the report, and token ids."""
    model = build(request.param)
    report = model.distill_decoder(tolerance=1e-2, exact_taps=TAPS)
    oracle = copy.deepcopy(model)
    for layer in report.fits:
        operator = oracle.model.layers[layer].mixer.operator
        operator.kernel = ModalTaps(operator)
    return model, oracle, report, torch.randint(1, VOCAB, (3, 330))


def assert_same(actual, expected):
    assert relative_error(actual, expected) < MODEL_TOLERANCE[torch.float64]


@torch.no_grad()
def test_calls_with_a_cache_mix_by_modes_and_others_do_not(distilled):
    model, oracle, report, ids = distilled
    exact, modal = model(ids, use_cache=False).logits, oracle(ids, use_cache=False).logits
    cache, outputs, done = DynamicCache(config=model.config), [], 0
    for count in (129, 1, 1, 67, 1, 30, 101):
        outputs.append(model(ids[:, done : done + count], past_key_values=cache).logits)
        done += count
    assert_same(torch.cat(outputs, dim=1), modal)
    assert all(cache.layers[layer].keys.shape[2] < ids.shape[1] for layer in report.fits)
    assert (modal - exact).abs().max() > 1e-8
    training = copy.deepcopy(model).train()
    assert_same(training(ids, past_key_values=DynamicCache(config=model.config)).logits, exact)


def test_generation_equals_the_uncached_model_with_these_kernels(distilled):
    model, oracle, _, ids = distilled
    prompt, mask = ids[:, :90], torch.ones(3, 90, dtype=torch.long)
    mask[0, :31] = 0
    given = {"input_ids": prompt, "attention_mask": mask, "max_new_tokens": 30, "do_sample": False}
    assert torch.equal(model.generate(**given), oracle.generate(**given, use_cache=False))
    del given["attention_mask"]
    beams = {"num_beams": 3, "max_new_tokens": 5}
    assert torch.equal(model.generate(**(given | beams)), oracle.generate(**(given | beams), use_cache=False))
    given["input_ids"] = prompt[:1].repeat(1, 2)
    looked_up = model.generate(**given, prompt_lookup_num_tokens=5)
    assert torch.equal(looked_up, oracle.generate(**given, use_cache=False))


def test_requests_of_mixed_lengths_get_the_tokens_they_get_alone(distilled):
    model, oracle, _, ids = distilled
    prompts = [ids[0, :150].tolist(), ids[1, :7].tolist(), ids[2, :61].tolist()]
    results = model.generate_batch(prompts, max_new_tokens=10, do_sample=False)
    for prompt, result in zip(prompts, results.values(), strict=True):
        alone = oracle.generate(torch.tensor([prompt]), max_new_tokens=10, do_sample=False, use_cache=False)
        assert result.generated_tokens == alone[0, len(prompt) :].tolist()


def test_modes_are_saved_with_the_model(distilled, tmp_path):
    model, _, _, ids = distilled
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert loaded.config.layer_types == model.config.layer_types
    with torch.no_grad():
        assert_same(loaded(ids).logits, model(ids).logits)  # weights of a file are aligned otherwise: last bits differ
    modes = {name: bits for name, bits in model.state_dict().items() if ".tail." in name}
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for copied in (half, loaded.half()):  # a rounded pole is another pole
        assert all(torch.equal(copied.state_dict()[name], bits) for name, bits in modes.items())


def test_the_way_back(distilled, request):
    model, ids = copy.deepcopy(distilled[0]), distilled[3]
    exact = model(ids, use_cache=False).logits
    model.undo_distillation()
    fresh = MODELS[request.node.callspec.params["distilled"]]()
    assert set(model.state_dict()) == set(fresh.state_dict())
    for field in ("decoder_modes", "decoder_taps", "mixer_configs"):
        assert getattr(model.config, field, None) == getattr(fresh.config, field, None)
    assert model.config.layer_types == fresh.config.layer_types
    assert_same(model(ids).logits, exact)


def test_the_report_says_what_each_layer_costs(distilled, request):
    model, oracle, report, ids = distilled
    rows = report.rows()
    assert [row["layer"] for row in rows] == list(report.fits) == LAYERS[request.node.callspec.params["distilled"]]
    assert all(0 < row["error"] <= 1e-2 and row["tap_error"] <= row["tap_bound"] for row in rows)
    assert str(report).count("\n") == len(rows) + 1
    errors = report.measure(ids)
    with torch.no_grad():
        all_layers = (oracle(ids, use_cache=False).logits - model(ids, use_cache=False).logits).abs().max()
    assert errors["all"] == pytest.approx(float(all_layers))
    assert set(errors) == {"all", *(f"layer {layer}" for layer in report.fits)}
    assert all(0 < error < 1 for error in errors.values())
    assert all(model.model.layers[layer].mixer.operator.tail is not None for layer in report.fits)


def test_a_refused_hybrid_stays_as_it_was():
    model = build("learned_taps")
    ids, config = torch.randint(1, VOCAB, (2, 9)), copy.deepcopy(model.config.to_dict())
    before, weights = model(ids).logits, {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"layer 1: .*keep more exact taps"):
        model.distill_decoder(tolerance=1e-8, exact_taps=1)
    assert model.config.to_dict() == config
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(ids).logits, before)


def test_what_cannot_be_distilled_is_refused():
    attention = SeqMixHybridForCausalLM(SeqMixHybridConfig(**(SIZES | {"hidden_size": 16}), num_hidden_layers=1))
    with pytest.raises(ValueError, match="no causal Toeplitz layer"):
        attention.distill_decoder()
    own = {"poly_transformer": {"mixing": "toeplitz"}}
    learned = SeqMixHybridForCausalLM(SeqMixHybridConfig(**SIZES, mixer_types=["poly_transformer"], mixer_configs=own))
    with pytest.raises(ValueError, match="no causal Toeplitz layer of TNN or FD-TNN"):
        learned.distill_decoder()
    endless = TNNForCausalLM(TNNConfig(**SIZES, num_hidden_layers=1, decay=1.0))
    with pytest.raises(ValueError, match=r"has no end.*or a kernel_max_lag"):
        endless.distill_decoder()
    model = build("fd_tnn")
    with pytest.raises(ValueError, match=r"layer 0: .*keep more exact taps"):
        model.distill_decoder(tolerance=1e-8, exact_taps=1)
    assert model.config.decoder_modes is None
    model.distill_decoder(order=2)
    with pytest.raises(ValueError, match="undo_distillation"):
        model.set_context_length(300)
    with pytest.raises(ValueError, match="context length of a distilled model cannot change"):
        model.base_model.set_context_length(300)
    assert model.config.max_position_embeddings != 300
    with pytest.raises(ValueError, match="decoder_modes has 1 entries"):
        TNNConfig(num_hidden_layers=2, decoder_modes=[3])


def test_a_call_that_wants_derivatives_has_those_of_the_kernel(distilled):
    model, _, _, ids = distilled
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    actual, expected = (
        torch.autograd.grad(model(ids, use_cache=use_cache).logits.sin().sum(), weights, allow_unused=True)
        for use_cache in (True, False)
    )
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_same(one, other)


def test_the_report_measures_decoding_whatever_the_mode_of_the_model():
    model = TNNForCausalLM(TNNConfig(**{**SIZES, "hidden_dropout": 0.5}, num_hidden_layers=2, decay=0.95))
    report, ids = model.eval().distill_decoder(tolerance=1e-2, exact_taps=TAPS), torch.randint(1, VOCAB, (2, 90))
    expected = report.measure(ids)
    model.train()
    assert report.measure(ids) == expected
    assert model.training and model.model.layers[0].mixer.training


def test_a_file_without_the_modes_is_refused(tmp_path):
    """Modes of zero would decode something else without a word."""
    model = TNNForCausalLM(TNNConfig(**SIZES, num_hidden_layers=1, decay=0.95)).eval()
    model.distill_decoder(tolerance=1e-2, exact_taps=TAPS)
    model.save_pretrained(tmp_path)
    kept = {name: value for name, value in load_file(tmp_path / "model.safetensors").items() if ".tail." not in name}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"the file lacks the modes, .*tail\.poles among them"):
        TNNForCausalLM.from_pretrained(tmp_path)
