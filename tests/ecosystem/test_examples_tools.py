"""The examples of scripts/examples that drive other people's tools: each runs on a small checkpoint."""

import importlib.util
import io
import json
import os
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.ecosystem.tiny import TEXT, tiny_model, tiny_tokenizer

EXAMPLES = Path(__file__).resolve().parents[2] / "scripts" / "examples"
OLD_NAME = "ignore:.gradient_checkpointing.* is deprecated:FutureWarning"  # by which TRL asks for it

pytestmark = pytest.mark.ecosystem


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def checkpoint(tmp_path):
    """Write a checkpoint of a family, and return its folder."""

    def write(model_type: str = "tnn", **fields: object) -> str:
        folder = tmp_path / "-".join([model_type, *fields])
        tiny_model(model_type, **fields).save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        return str(folder)

    return write


@pytest.mark.ecosystem("peft", "accelerate", "datasets")
@pytest.mark.parametrize("targets", [[], ["--target-modules", "o_proj"]], ids=["all", "named"])
def test_adapters(checkpoint, tmp_path, capsys, targets):
    (tmp_path / "text.txt").write_text("".join(TEXT) * 3)
    options = ["--train-file", str(tmp_path / "text.txt"), "--max-steps", "12", "--length", "32", "--use-cpu"]
    folder = checkpoint("fd_tnn")
    results = load("lora").main([folder, *options, "--output-dir", str(tmp_path / "out"), *targets])
    assert results["after"] < results["before"] and results["difference"] < 1e-4
    assert 0 < results["trainable"] < 0.5 * results["total"]
    printed = capsys.readouterr().out
    assert f"loss on the text {results['before']:.3f} -> {results['after']:.3f} in 12 steps" in printed
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "merged")
    start = AutoModelForCausalLM.from_pretrained(folder)
    changed = {name for name, value in merged.state_dict().items() if not torch.equal(value, start.state_dict()[name])}
    assert changed and all(name.endswith("weight") for name in changed)
    assert not targets or all("o_proj" in name for name in changed)


@pytest.mark.ecosystem("peft", "datasets")
def test_a_text_too_short_for_adapters(checkpoint, tmp_path):
    (tmp_path / "text.txt").write_text("x = 1")
    with pytest.raises(SystemExit, match=r"the text has \d tokens; give a text of at least 64, or a smaller --length"):
        load("lora").main(
            [checkpoint(), "--train-file", str(tmp_path / "text.txt"), "--output-dir", str(tmp_path / "out")]
        )


def test_a_conversation(checkpoint, capsys, monkeypatch):
    folder, chat = checkpoint("ipa"), load("chat")
    options = ["--max-new-tokens", "8", "--system", "def"]
    conversation = chat.main([folder, *options, "--message", "add 1", "--message", "add 2"])
    assert [message["role"] for message in conversation] == ["system", *["user", "assistant"] * 2]
    printed = capsys.readouterr().out
    answers = [message["content"] for message in conversation if message["role"] == "assistant"]
    assert f"> add 1\n{answers[0]}\n> add 2\n{answers[1]}\n" in printed
    assert re.search(r"^\d+ tokens, \d+ a second$", printed, re.MULTILINE)

    # Typed messages are answered alike; an empty line ends the conversation.
    monkeypatch.setattr("sys.stdin", io.StringIO("add 1\nadd 2\n\nnever said\n"))
    assert chat.main([folder, *options]) == conversation
    sampled = [chat.main([folder, "--message", "x", "--temperature", "3", "--seed", seed]) for seed in "001"]
    assert sampled[0] == sampled[1] != sampled[2]


@pytest.mark.ecosystem("trl", "peft")
@pytest.mark.filterwarnings(OLD_NAME)
def test_supervised_fine_tuning(checkpoint, tmp_path, capsys):
    sft, chat = load("sft"), load("chat")
    out = str(tmp_path / "out")
    results = sft.main(
        [checkpoint(), "--output-dir", out, "--max-steps", "150", "--learning-rate", "1e-2", "--use-cpu"]
    )
    assert results["losses"][-1] < 0.1 * results["losses"][0] and len(results["losses"]) == 150
    question, right = next(iter(sft.QUESTIONS.items()))
    assert results["after"] == right != results["before"]
    printed = capsys.readouterr().out
    assert "tnn, trained by SFTTrainer" in printed and f"after:  {right!r}" in printed
    # What was saved holds the template that it was trained on.
    assert AutoTokenizer.from_pretrained(out).chat_template == (EXAMPLES / "chat_template.jinja").read_text()
    assert chat.main([out, "--message", question])[-1]["content"] == right


@pytest.mark.ecosystem("trl", "peft")
@pytest.mark.filterwarnings(OLD_NAME)
@pytest.mark.parametrize("options", [["--packing"], ["--lora-rank", "4"], ["--packing", "--lora-rank", "2"]], ids=str)
def test_fine_tuning_on_a_file(checkpoint, tmp_path, options):
    messages = [{"role": "user", "content": "add"}, {"role": "assistant", "content": "x + y"}]
    lines = [json.dumps({"messages": messages})] * 8
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out"
    files = ["--train-file", str(tmp_path / "chats.jsonl"), "--output-dir", str(out)]
    results = load("sft").main([checkpoint("poly_transformer"), *files, "--max-steps", "6", "--use-cpu", *options])
    assert results["losses"][-1] < results["losses"][0]
    assert (out / "adapter_model.safetensors").is_file() == ("--lora-rank" in options)


@pytest.mark.ecosystem("trl", "peft")
@pytest.mark.filterwarnings(OLD_NAME)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("hello\n", "could not be read as JSON lines"),
        ('{"question": "add"}\n', "has the fields question; give messages, text, or prompt and completion"),
        (None, "No such file"),
    ],
)
def test_files_that_are_no_conversations(checkpoint, tmp_path, content, message):
    path = tmp_path / "chats.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit, match=message):
        load("sft").main([checkpoint(), "--train-file", str(path), "--output-dir", str(tmp_path / "out"), "--use-cpu"])


@pytest.mark.ecosystem("trl", "peft")
@pytest.mark.filterwarnings(OLD_NAME)
def test_a_copy_head_is_trained(checkpoint, tmp_path, capsys):
    folder, out = checkpoint("ipa", copy_head=True, rank=4), tmp_path / "out"
    load("sft").main([folder, "--output-dir", str(out), "--max-steps", "3", "--use-cpu"])
    assert "trained by ModelLossTrainer" in capsys.readouterr().out
    start, trained = (AutoModelForCausalLM.from_pretrained(path).copy_head.state_dict() for path in (folder, out))
    assert all(not torch.equal(start[name], trained[name]) for name in start)


@pytest.mark.ecosystem("lm_eval")
def test_the_harness(checkpoint, tmp_path, capsys):
    folder, harness = checkpoint(), load("harness")
    results = harness.main([folder])
    assert set(results) == {"python_choice", "python_completion", "python_text"}
    printed = capsys.readouterr().out
    assert "tnn, context 64" in printed and "|bits_per_byte" in printed
    some = harness.main([folder, "--tasks", "python_choice", "--limit", "4", "--max-length", "32"])
    assert set(some) == {"python_choice"} and some["python_choice"]["acc,none"] * 4 % 1 == 0
    assert "context 32" in capsys.readouterr().out

    # A task of one's own, in a folder of its own.
    (tmp_path / "own").mkdir()
    for file in ("documents.py", "choice.jsonl"):
        (tmp_path / "own" / file).write_text((EXAMPLES / "lm_eval_task" / file).read_text())
    task = (EXAMPLES / "lm_eval_task" / "python_choice.yaml").read_text().replace("task: python_choice", "task: mine")
    (tmp_path / "own" / "mine.yaml").write_text(task)
    mine = harness.main([folder, "--include-path", str(tmp_path / "own")])
    assert mine["mine"]["acc,none"] == results["python_choice"]["acc,none"]


@pytest.mark.slow
@pytest.mark.ecosystem("lm_eval")
def test_the_harness_reads_an_exported_folder_by_its_own_command(tmp_path):
    """In a process of its own that never imports hf_seqmix."""
    import subprocess
    import sys

    from hf_seqmix.hub import export

    export(tiny_model("fd_tnn"), tiny_tokenizer(), tmp_path / "repository")
    code = (
        "import sys; sys.modules['hf_seqmix'] = None\nfrom lm_eval.__main__ import cli_evaluate\nsys.argv = "
        f"['lm_eval', '--model', 'hf', '--model_args', 'pretrained={tmp_path / 'repository'},trust_remote_code=True', "
        f"'--include_path', '{EXAMPLES / 'lm_eval_task'}', '--tasks', 'python_choice', '--device', 'cpu', "
        f"'--output_path', '{tmp_path / 'results'}']\ncli_evaluate()\n"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "python_choice" in done.stdout
    (written,) = (tmp_path / "results").rglob("results_*.json")
    folder = tmp_path / "native"
    tiny_model("fd_tnn").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    here = load("harness").main([str(folder), "--tasks", "python_choice"])["python_choice"]
    there = json.loads(written.read_text())["results"]["python_choice"]
    assert there["acc,none"] == here["acc,none"] and there["acc_norm,none"] == here["acc_norm,none"]
