"""PEFT: low-rank adapters of every family, trained, saved, laid over and merged."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer, TrainingArguments

from hf_seqmix.models.auto import FAMILIES
from tests.ecosystem.tiny import CAUSAL, thorough, tiny_model
from tests.tolerances import MODEL_TOLERANCE, relative_error

pytestmark = pytest.mark.ecosystem("peft", "accelerate")

IDS = torch.arange(48).view(4, 12) % 31
TARGETS = {"all-linear": "all-linear", "named": ["o_proj"]}
CLASSIFIERS = [
    (family.config_class.model_type, suffix)
    for family in FAMILIES
    for suffix in ("ForSequenceClassification", "ForTokenClassification", "ForImageClassification")
    if suffix in family.classes
]


def train(model: Any, rows: list[dict[str, Tensor]], folder: Path) -> tuple[float, float]:
    """Train for a few steps, and return the first loss and the last."""
    arguments = TrainingArguments(
        str(folder),
        max_steps=8,
        learning_rate=2e-2,
        per_device_train_batch_size=4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    model.eval()
    return losses[0], losses[-1]


def parameters(model: Any) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def check_equal(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert relative_error(actual, expected) < MODEL_TOLERANCE[dtype]


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("model_type", CAUSAL)
@pytest.mark.one_in(2)
def test_a_language_model(model_type, targets, tmp_path):
    import peft

    tiny_model(model_type).save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    plain = base(IDS).logits.detach()
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=TARGETS[targets], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    before = parameters(model)
    first, last = train(model, [{"input_ids": row, "labels": row} for row in IDS], tmp_path)
    assert last < first
    for name, value in parameters(model).items():
        changed = not torch.equal(value, before[name])
        assert changed == ("lora_" in name), name
    adapted = model(input_ids=IDS).logits.detach()
    assert relative_error(adapted, plain) > 1e-2
    with model.disable_adapter():
        assert torch.equal(model(input_ids=IDS).logits, plain)

    model.save_pretrained(str(tmp_path / "adapter"))
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files
    # The adapter's folder names its base, whose class the library finds.
    opened = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    assert torch.equal(opened(input_ids=IDS).logits, adapted)

    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    prompts = {"input_ids": IDS[:2, :5], "attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])}
    for cached in (True, False):
        written = opened.generate(**prompts, use_cache=cached, **options)
        alone = opened.generate(IDS[:1, 2:5], use_cache=cached, **options)
        assert torch.equal(written[0, 5:], alone[0, 3:])
    merged = opened.merge_and_unload()
    assert type(merged) is type(base) and not [name for name, _ in merged.named_parameters() if "lora" in name]
    check_equal(merged(IDS).logits, adapted, torch.float32)
    assert torch.equal(merged.generate(**prompts, **options), written)
    merged.save_pretrained(tmp_path / "merged")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert torch.equal(again(IDS).logits, merged(IDS).logits)


@pytest.mark.parametrize("model_type", CAUSAL)
def test_a_prompt_is_tuned(model_type, tmp_path):
    """PEFT looks for a number of heads among the fields, which prefix tuning alone needs."""
    import peft

    options = {"num_virtual_tokens": 4, "task_type": "CAUSAL_LM"}
    model = peft.get_peft_model(tiny_model(model_type), peft.PromptTuningConfig(num_attention_heads=1, **options))
    before = parameters(model)
    first, last = train(model, [{"input_ids": row, "labels": row} for row in IDS], tmp_path)
    assert last < first
    for name, value in parameters(model).items():
        assert torch.equal(value, before[name]) != ("prompt_encoder" in name), name


@pytest.mark.parametrize("model_type", CAUSAL)
def test_adapters_are_exchanged_and_merging_is_undone(model_type):
    import peft

    base = tiny_model(model_type).double().eval()
    plain = base(IDS).logits.detach()
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules="all-linear"), adapter_name="one")
    model.add_adapter("two", peft.LoraConfig(r=3, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    adapted = {}
    for name in ("one", "two"):
        model.set_adapter(name)
        adapted[name] = model(input_ids=IDS).logits.detach()
    assert relative_error(adapted["one"], adapted["two"]) > 1e-2
    for name in ("one", "two"):
        model.set_adapter(name)
        check_equal(model(input_ids=IDS).logits, adapted[name], torch.float64)
        model.merge_adapter()
        check_equal(model(input_ids=IDS).logits, adapted[name], torch.float64)
        model.unmerge_adapter()
    check_equal(model.unload()(IDS).logits, plain, torch.float64)


def with_two_adapters(model_type: str, **kwargs: Any) -> Any:
    import peft

    config = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, **kwargs)
    model = peft.get_peft_model(tiny_model(model_type).double(), config, adapter_name="one")
    model.add_adapter("two", config)
    return model.eval()


@pytest.mark.parametrize("model_type", CAUSAL)
def test_rows_have_adapters_of_their_own(model_type):
    """As many rows as tokens: PEFT would take the lags of a kernel for rows."""
    ids, makes_kernels = torch.randint(300, (12, 12)), model_type in ("tnn", "fd_tnn", "seqmix_hybrid")
    model = with_two_adapters(model_type, **({"exclude_modules": r".*kernel\.encoder.*"} if makes_kernels else {}))
    mixed = model(input_ids=ids, adapter_names=["one"] * 5 + ["two"] * 7).logits
    for name, rows in (("one", slice(5)), ("two", slice(5, 12))):
        model.set_adapter(name)
        check_equal(mixed[rows], model(input_ids=ids[rows]).logits, torch.float64)


@pytest.mark.parametrize("model_type", ["tnn", "fd_tnn", "seqmix_hybrid"])
def test_a_kernel_has_one_adapter_for_all_rows(model_type):
    ids = torch.randint(300, (12, 12))
    model = with_two_adapters(model_type)
    with pytest.raises(ValueError, match=r"adapter_names gives the rows .* exclude_modules=r\"\.\*kernel"):
        model(input_ids=ids, adapter_names=["one"] * 5 + ["two"] * 7)


@pytest.mark.parametrize(("model_type", "suffix"), thorough(CLASSIFIERS))
@pytest.mark.one_in(3)
def test_a_classifier_keeps_its_head(model_type, suffix, tmp_path):
    """`modules_to_save`: the head, which is new, is trained as a whole and saved with the adapter."""
    import peft

    fields: dict[str, Any] = {"num_labels": 3}
    if suffix == "ForImageClassification":
        fields |= {"image_size": [6, 4], "patch_size": 2, "num_channels": 1}
    base = tiny_model(model_type, suffix, **fields)
    start = copy.deepcopy(base).eval()
    config = peft.LoraConfig(r=3, target_modules="all-linear", modules_to_save=["classifier"])
    model = peft.get_peft_model(base, config)
    before = parameters(model)
    labels = IDS % 3 if suffix == "ForTokenClassification" else torch.arange(4) % 3
    rows = [{"input_ids": row, "labels": label} for row, label in zip(IDS, labels, strict=True)]
    if suffix == "ForImageClassification":
        rows = [{"pixel_values": torch.randn(1, 6, 4), "labels": row["labels"]} for row in rows]
    first, last = train(model, rows, tmp_path)
    assert last < first
    for name, value in parameters(model).items():
        changed = not torch.equal(value, before[name])
        assert changed == ("lora_" in name or "modules_to_save" in name), name
    key = next(iter(rows[0]))
    inputs = {key: torch.stack([row[key] for row in rows])}
    adapted = model(**inputs).logits.detach()

    model.save_pretrained(str(tmp_path / "adapter"))
    opened = peft.PeftModel.from_pretrained(start, tmp_path / "adapter").eval()
    assert torch.equal(opened(**inputs).logits, adapted)
    merged: PreTrainedModel = opened.merge_and_unload()
    assert type(merged) is type(base)
    check_equal(merged(**inputs).logits, adapted, torch.float32)
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(
        type(base).from_pretrained(tmp_path / "merged").eval()(**inputs).logits, merged(**inputs).logits
    )


TIED = {
    "tokens": {"target_modules": ["o_proj"], "trainable_token_indices": [3, 5]},
    "embedding": {"target_modules": ["o_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
}


@pytest.mark.parametrize("kwargs", TIED.values(), ids=TIED)
@pytest.mark.parametrize(
    ("suffix", "fields"), [("ForCausalLM", {}), ("ForCausalLM", {"copy_head": True}), ("ForMaskedLM", {})]
)
def test_embeddings_that_the_head_shares(suffix, fields, kwargs):
    """PEFT wraps the head, too, and the wrapper need not say how many logits the head computes."""
    import peft

    base = tiny_model("tnn", suffix, **fields)
    if base.lm_head.bias is not None:  # PEFT leaves the bias out where it ties a head, that of BERT, too
        torch.nn.init.zeros_(base.lm_head.bias)
    expected = base(IDS, labels=IDS)
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, **kwargs))
    found = model(input_ids=IDS, labels=IDS)
    check_equal(found.logits, expected.logits, torch.float32)
    torch.testing.assert_close(found.loss, expected.loss)
    found.loss.backward()
    trained = {name for name, value in model.named_parameters() if value.grad is not None and value.grad.abs().sum()}
    assert any("embed_tokens" in name for name in trained)
