"""Distilled models whose kernels changed afterwards are refused; those that were only rounded decode as before."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.hub import export
from tests.models.toeplitz.test_distilled import LAYERS, MODELS, TAPS, VOCAB, build

REFUSED = r"the kernel of layer {} changed after distill_decoder\(\), .* call undo_distillation\(\) .* distill_decoder"
IDS = torch.arange(2 * 90).reshape(2, 90) % (VOCAB - 1) + 1


@pytest.fixture(scope="module", params=list(MODELS))
def distilled(request):
    model = build(request.param).float()
    model.distill_decoder(tolerance=1e-2, exact_taps=TAPS)
    return model


@pytest.fixture
def saved(tmp_path):
    """Return a distilled model, and the folder that it was saved to."""
    model = build("tnn").float()
    model.distill_decoder(tolerance=1e-2, exact_taps=TAPS)
    model.save_pretrained(tmp_path)
    return model, tmp_path


def tails(model):
    return [module for name, module in model.named_modules() if name.endswith(".tail")]


@torch.no_grad()
def is_distilled(model):
    """Whether a call with a cache mixes by modes."""
    cache = DynamicCache(config=model.config)
    model(IDS, past_key_values=cache)
    return any(getattr(layer, "kernel", None) is not None for layer in cache.layers)


def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        model.train()(IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def test_training_makes_modes_stale(distilled, request):
    model = train(copy.deepcopy(distilled))
    message = REFUSED.format(LAYERS[request.node.callspec.params["distilled"]][0])
    with torch.no_grad(), pytest.raises(ValueError, match=message):
        model(IDS)
    with pytest.raises(ValueError, match=message):
        model.generate(IDS, max_new_tokens=2)
    exact = model(IDS, use_cache=False).logits
    torch.testing.assert_close(model(IDS).logits, exact)  # gradients are recorded: by the exact kernel
    undone = copy.deepcopy(model)
    undone.undo_distillation()
    with torch.no_grad():
        torch.testing.assert_close(undone(IDS).logits, exact)
    model.distill_decoder(tolerance=1e-2, exact_taps=TAPS)
    assert is_distilled(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_rounded_weights_are_no_alarm(distilled, dtype, tmp_path):
    model = copy.deepcopy(distilled).to(dtype)
    assert is_distilled(model)
    assert is_distilled(copy.deepcopy(model).float())
    model.save_pretrained(tmp_path)
    assert is_distilled(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype))
    assert is_distilled(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16))


def test_a_model_made_of_a_distilled_configuration_decodes_by_its_kernels(distilled, tmp_path):
    model = train(AutoModelForCausalLM.from_config(distilled.config))
    model.save_pretrained(tmp_path)
    for fresh in (model, AutoModelForCausalLM.from_pretrained(tmp_path).eval()):
        with torch.no_grad():
            torch.testing.assert_close(fresh(IDS).logits, fresh(IDS, use_cache=False).logits)
        assert not is_distilled(fresh)
    fresh.load_state_dict(distilled.state_dict())  # whose modes are looked at anew
    assert is_distilled(fresh)
    model.distill_decoder(tolerance=1e-2, exact_taps=TAPS)
    assert is_distilled(model) and is_distilled(copy.deepcopy(model))


def test_more_tokens_are_no_alarm(distilled):
    model = copy.deepcopy(distilled)
    model.resize_token_embeddings(VOCAB + 7)
    assert is_distilled(model)


@pytest.mark.parametrize("changed", [{"decay": 0.5}, {"channel_decays": [0.95, 0.9], "decay": None}])
def test_another_decay_makes_them_stale(saved, changed):
    model = TNNForCausalLM.from_pretrained(saved[1], **changed)
    with torch.no_grad(), pytest.raises(ValueError, match=REFUSED.format(0)):
        model(IDS)


def test_other_weights_make_them_stale(saved, tmp_path):
    model, other = saved[0], build("tnn", seed=1).float()
    model.load_state_dict(other.state_dict(), strict=False)
    model.save_pretrained(tmp_path / "stale")
    for stale in (model, TNNForCausalLM.from_pretrained(tmp_path / "stale")):
        with torch.no_grad(), pytest.raises(ValueError, match=REFUSED.format(0)):
            stale(IDS)


def test_files_without_the_taps_are_not_checked(saved, caplog):
    model, folder = saved
    old = {name: value for name, value in load_file(folder / "model.safetensors").items() if "kernel_taps" not in name}
    assert len(old) == len(model.state_dict()) - 2 - ("lm_head.weight" not in old)
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    loaded = TNNForCausalLM.from_pretrained(folder)
    assert "kernel_taps" not in caplog.text
    model.load_state_dict(old | {"lm_head.weight": model.lm_head.weight})
    for unchecked in (loaded, model):
        assert not any(tail.kernel_taps.any() for tail in tails(unchecked))
        assert is_distilled(train(unchecked))


@torch.no_grad()
def test_a_compiled_call_compares_nothing(saved):
    """It has the exact kernel, and where it goes on by modes, nothing is read from a device within a graph."""
    with torch.enable_grad():
        model = train(saved[0])
    exact = model(IDS, use_cache=False).logits
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(IDS).logits, exact)
    operator = model.model.layers[0].mixer.operator
    kernel = torch.compile(operator.modal_kernel, backend="eager", fullgraph=True)(torch.float32, IDS.device)
    torch.testing.assert_close(kernel.exact, operator.kernel(TAPS))


def test_exported_repositories_refuse_them_too(saved, tmp_path):
    folder = export(saved[0], None, tmp_path / "exported")
    opened = get_class_from_dynamic_module("modeling_tnn.TNNForCausalLM", str(folder)).from_pretrained(folder)
    assert not type(opened).__module__.startswith("hf_seqmix")
    assert is_distilled(opened)
    train(opened)
    with torch.no_grad(), pytest.raises(ValueError, match=REFUSED.format(0)):
        opened(IDS)


def test_a_faint_tail_tells_little():
    """Rounding errors at lags where nothing is left are no change of the kernel."""
    model = TNNForCausalLM(TNNConfig(vocab_size=VOCAB, hidden_size=8, num_hidden_layers=1, decay=0.1)).eval()
    model.distill_decoder(exact_taps=64)
    assert is_distilled(model.bfloat16())
