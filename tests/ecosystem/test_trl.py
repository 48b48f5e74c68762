"""TRL: supervised fine-tuning and preference optimization of the causal families."""

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from hf_seqmix.hub import export
from tests.ecosystem.tiny import CAUSAL, TEXT, tiny_model, tiny_tokenizer
from tests.tolerances import relative_error

EXAMPLES = Path(__file__).resolve().parents[2] / "scripts" / "examples"
TEMPLATE = (EXAMPLES / "chat_template.jinja").read_text()

pytestmark = [
    pytest.mark.ecosystem("trl", "peft"),
    # TRL asks for it by its old name.
    pytest.mark.filterwarnings("ignore:.gradient_checkpointing.* is deprecated:FutureWarning"),
]

ONE_UPDATE = {
    "max_steps": 1,
    "learning_rate": 0.1,
    "lr_scheduler_type": "constant",
    "optim": "sgd",
    "max_grad_norm": 0.0,
    "per_device_train_batch_size": 12,
    "max_length": 64,
    "bf16": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
}


@pytest.fixture
def settings(tmp_path):
    """Return arguments of one update by plain gradient descent, without clipping; keywords change arguments."""

    def make(kind: str = "SFTConfig", **options: Any) -> Any:
        import trl

        return getattr(trl, kind)(str(tmp_path / "run"), **{**ONE_UPDATE, **options})

    return make


def flat(model: PreTrainedModel) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def texts() -> datasets.Dataset:
    """Documents of different lengths."""
    return datasets.Dataset.from_dict({"text": [text * (1 + n % 3) for n, text in enumerate(TEXT)]})


def conversations() -> datasets.Dataset:
    rows = [
        [
            {"role": "user", "content": f"add {n}"},
            {"role": "assistant", "content": f"x + {n}"},
            {"role": "user", "content": "return"},
            {"role": "assistant", "content": "y" * (n + 1)},
        ]
        for n in range(6)
    ]
    return datasets.Dataset.from_dict({"messages": rows})


def chat_tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def mean_loss(model: PreTrainedModel, rows: list[tuple[list[int], list[bool]]]) -> float:
    """Mean over all counted tokens of all rows, each row read alone: (ids, whether each id counts)."""
    total, count = 0.0, 0
    for ids, counted in rows:
        with torch.no_grad():
            scores = model.eval()(torch.tensor([ids])).logits[0, :-1].float().log_softmax(dim=-1)
        kept = torch.tensor(counted[1:])
        total -= scores.gather(1, torch.tensor(ids[1:])[:, None])[kept].sum().item()
        count += int(kept.sum())
    return total / count


@pytest.mark.parametrize("model_type", CAUSAL)
def test_supervised_fine_tuning_learns(settings, model_type, tmp_path):
    from trl import SFTTrainer

    model, tokenizer = tiny_model(model_type), tiny_tokenizer()
    ids = [tokenizer(text + tokenizer.eos_token)["input_ids"] for text in texts()["text"]]
    expected = mean_loss(model, [(row, [True] * len(row)) for row in ids])
    options = settings(max_steps=25, learning_rate=2e-2, optim="adamw_torch", bf16=model_type == "tnn")
    trainer = SFTTrainer(model, options, train_dataset=texts(), processing_class=tokenizer)
    trainer.train()
    curve = losses(trainer)
    assert curve[0] == pytest.approx(expected, rel=1e-2 if model_type == "tnn" else 1e-4)
    assert curve[-1] < 0.6 * curve[0]
    trainer.save_model(tmp_path / "trained")
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "trained").eval()
    assert torch.equal(flat(opened), flat(trainer.model))
    prompt = tokenizer("def add_3(x,", return_tensors="pt")
    written = opened.generate(**prompt, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert written.shape[1] == prompt["input_ids"].shape[1] + 4


def test_a_folder_is_trained_by_its_path(settings, tmp_path):
    from trl import SFTTrainer

    curves = []
    for model_type in CAUSAL:
        model = tiny_model(model_type)
        model.save_pretrained(tmp_path / model_type)
        tiny_tokenizer().save_pretrained(tmp_path / model_type)
        by_path = SFTTrainer(str(tmp_path / model_type), settings(), train_dataset=texts())
        by_object = SFTTrainer(model, settings(), train_dataset=texts(), processing_class=tiny_tokenizer())
        assert type(by_path.model) is type(model)
        for trainer in (by_path, by_object):
            trainer.train()
            curves.append(losses(trainer))
        assert curves[-1] == curves[-2]
        assert torch.equal(flat(by_path.model), flat(by_object.model))


@pytest.mark.parametrize("model_type", CAUSAL)
def test_packed_documents_are_trained_on_each_alone(settings, model_type):
    """One update on all documents: in separate rows, packed, and (wrapped) cut and joined wherever they end."""
    from trl import SFTTrainer

    start = tiny_model(model_type)
    weights, curves = {}, {}
    kinds = {"alone": {}, "packed": {"packing": True}, "flattened": {"padding_free": True, "max_length": None}}
    for kind, options in {**kinds, "wrapped": {"packing": True, "packing_strategy": "wrapped"}}.items():
        trainer = SFTTrainer(
            copy.deepcopy(start), settings(**options), train_dataset=texts(), processing_class=tiny_tokenizer()
        )
        rows = len(trainer.train_dataset)
        assert (rows < 12) == ("packing" in options)
        trainer.train()
        weights[kind], curves[kind] = flat(trainer.model), losses(trainer)[0]
    step = weights["alone"] - flat(start)
    assert step.norm() > 1e-2
    for kind in ("packed", "flattened"):
        assert curves[kind] == pytest.approx(curves["alone"], rel=1e-5)
        assert (weights[kind] - weights["alone"]).norm() < 1e-3 * step.norm()
    assert (weights["wrapped"] - weights["alone"]).norm() > 3e-2 * step.norm()


@pytest.mark.parametrize("model_type", CAUSAL)
def test_only_completions_are_learned_of_prompts(settings, model_type):
    from trl import SFTTrainer

    tokenizer, model = chat_tokenizer(), tiny_model(model_type)
    rows = [(f"def add_{n}(", f"x, y={n}):\n" * (n + 1)) for n in range(5)]
    data = datasets.Dataset.from_dict({"prompt": [p for p, _ in rows], "completion": [c for _, c in rows]})
    counted = []
    for prompt, completion in rows:
        before = len(tokenizer(prompt)["input_ids"])
        ids = tokenizer(prompt + completion + tokenizer.eos_token)["input_ids"]
        counted.append((ids, [place >= before for place in range(len(ids))]))
    expected = mean_loss(model, counted)
    assert expected != pytest.approx(mean_loss(model, [(ids, [True] * len(ids)) for ids, _ in counted]), rel=1e-3)
    for packing in (False, True):
        trainer = SFTTrainer(
            copy.deepcopy(model), settings(packing=packing), train_dataset=data, processing_class=tokenizer
        )
        trainer.train()
        assert losses(trainer) == pytest.approx([expected], rel=1e-4)


@pytest.mark.parametrize("model_type", CAUSAL)
def test_only_answers_are_learned_of_conversations(settings, model_type):
    from trl import SFTTrainer

    tokenizer, model = chat_tokenizer(), tiny_model(model_type)
    counted = []
    for messages in conversations()["messages"]:
        out = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        counted.append((out["input_ids"], [bool(kept) for kept in out["assistant_masks"]]))
        answers = tokenizer.decode([i for i, kept in zip(*counted[-1], strict=True) if kept])
        assert answers == "".join(m["content"] + tokenizer.eos_token for m in messages if m["role"] == "assistant")
    expected = mean_loss(model, counted)
    for packing in (False, True):
        options = settings(packing=packing, assistant_only_loss=True, max_length=256)
        trainer = SFTTrainer(copy.deepcopy(model), options, train_dataset=conversations(), processing_class=tokenizer)
        trainer.train()
        assert losses(trainer) == pytest.approx([expected], rel=1e-4)


@pytest.mark.parametrize("model_type", CAUSAL)
def test_adapters_by_a_configuration(settings, model_type, tmp_path):
    import peft
    from trl import SFTTrainer

    model, tokenizer = tiny_model(model_type), chat_tokenizer()
    start = copy.deepcopy(model)
    trainer = SFTTrainer(
        model,
        settings(max_steps=12, learning_rate=3e-2, optim="adamw_torch", packing=True, max_length=256),
        train_dataset=conversations(),
        processing_class=tokenizer,
        peft_config=peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    assert losses(trainer)[-1] < 0.95 * losses(trainer)[0]
    trainer.save_model(tmp_path / "adapter")
    ids = torch.tensor([tokenizer(TEXT[0])["input_ids"]])
    trained = trainer.model.eval()(input_ids=ids).logits
    assert relative_error(trained, start.eval()(ids).logits) > 1e-2
    laid_over = peft.PeftModel.from_pretrained(start, tmp_path / "adapter")
    torch.testing.assert_close(laid_over(input_ids=ids).logits, trained, rtol=1e-4, atol=1e-5)
    merged = laid_over.merge_and_unload()
    torch.testing.assert_close(merged(ids).logits, trained, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model_type", CAUSAL)
def test_preferences(settings, model_type, tmp_path):
    """Direct preference optimization: at first both models are one, so the loss is log 2; then the margin grows."""
    from trl import DPOTrainer

    rows = [{"prompt": f"def add_{n}(", "chosen": f"x, y={n}):\n", "rejected": "return\n" * (n + 1)} for n in range(6)]
    model = tiny_model(model_type)
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    trainer = DPOTrainer(
        str(tmp_path / "model"),
        args=settings(
            "DPOConfig", max_steps=8, learning_rate=3e-3, optim="adamw_torch", per_device_train_batch_size=6
        ),
        train_dataset=datasets.Dataset.from_list(rows),
    )
    trainer.train()
    margins = [entry["rewards/margins"] for entry in trainer.state.log_history if "rewards/margins" in entry]
    assert losses(trainer)[0] == pytest.approx(torch.tensor(2.0).log().item(), abs=1e-3)
    assert losses(trainer)[-1] < 0.9 * losses(trainer)[0]
    assert abs(margins[0]) < 1e-3 < margins[-1]


ELSEWHERE = """
import json, sys
sys.modules["hf_seqmix"] = None  # cannot be imported
import datasets, peft, trl
given = json.load(open("given.json"))
trainer = trl.SFTTrainer(
    given["folder"],
    trl.SFTConfig("run", trust_remote_code=True, **given["settings"]),
    train_dataset=datasets.Dataset.from_dict({"text": given["texts"]}),
    peft_config=peft.LoraConfig(**given["adapters"]),
)
trainer.train()
json.dump([entry["loss"] for entry in trainer.state.log_history if "loss" in entry], open("losses.json", "w"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", CAUSAL)
def test_an_exported_folder_is_trained_where_the_package_is_not(settings, model_type, tmp_path):
    """With adapters, by its path and its own code, in another process: the same losses as here."""
    import peft
    from trl import SFTTrainer

    folder = str(tmp_path / "repository")
    export(tiny_model(model_type), tiny_tokenizer(), folder)
    adapters = {"r": 2, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    options = {"max_steps": 3, "packing": True}
    given = {"folder": folder, "settings": {**ONE_UPDATE, **options}, "adapters": adapters}
    (tmp_path / "given.json").write_text(json.dumps({**given, "texts": list(texts()["text"])}))
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", ELSEWHERE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    here = SFTTrainer(folder, settings(**options), train_dataset=texts(), peft_config=peft.LoraConfig(**adapters))
    here.train()
    assert json.loads((tmp_path / "losses.json").read_text()) == pytest.approx(losses(here), rel=1e-5)


# -- losses of which TRL sees a part only ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> ModuleType:
    specification = importlib.util.spec_from_file_location("sft_example", EXAMPLES / "sft.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


OWN_LOSSES = {
    "copy head": ("ipa", {"copy_head": True, "copy_head_tokens": 2, "copy_head_state": True, "rank": 4}),
    "soft degrees": ("poly_transformer", {"degree_form": "soft", "degree_penalty": 0.5}),
    "soft degrees in a hybrid": (
        "seqmix_hybrid",
        {
            "mixer_types": ["poly_transformer", "tnn"],
            "mixer_configs": {
                "poly_transformer": {"num_attention_heads": 2, "degree_form": "soft", "degree_penalty": 0.5}
            },
        },
    ),
}


@pytest.mark.parametrize("name", OWN_LOSSES)
def test_losses_that_trl_does_not_compute(settings, example, name):
    """The trainer of the example makes the update of the `Trainer`; the trainer of TRL makes another update."""
    from trl import SFTTrainer

    model_type, fields = OWN_LOSSES[name]
    start = tiny_model(model_type, **fields)
    assert example.trainer_class(start) is example.ModelLossTrainer
    weights = {}
    for trainer_class in (example.ModelLossTrainer, SFTTrainer):
        model = copy.deepcopy(start)
        trainer = trainer_class(
            model,
            settings(per_device_train_batch_size=6, gradient_accumulation_steps=2, packing=True),
            train_dataset=texts(),
            processing_class=tiny_tokenizer(),
        )
        trainer.train()
        weights[trainer_class] = flat(model)
    rows = [tiny_tokenizer()(text + tiny_tokenizer().eos_token)["input_ids"] for text in texts()["text"]]
    total = sum(len(row) - 1 for row in rows)
    model = copy.deepcopy(start).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for row in rows:
        ids = torch.tensor([row])
        model(ids, labels=ids, num_items_in_batch=total).loss.backward()
    optimizer.step()
    step = (flat(model) - flat(start)).norm()
    assert (weights[example.ModelLossTrainer] - flat(model)).norm() < 1e-3 * step
    assert (weights[SFTTrainer] - flat(model)).norm() > 1e-2 * step


def test_other_models_are_trained_by_trl_itself(example):
    from trl import SFTTrainer

    for model_type in CAUSAL:
        assert example.trainer_class(tiny_model(model_type)) is SFTTrainer
