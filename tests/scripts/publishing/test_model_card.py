"""The script that keeps a checkpoint in a folder with its card."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

from hf_seqmix.hub import open_checkpoint
from hf_seqmix.hub.eval_results import read_eval_results
from tests.ecosystem.tiny import tiny_model, tiny_tokenizer
from tests.hub.test_cards import VALUES

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "publishing" / "model_card.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("model_card", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "run"
    tiny_model("fd_tnn").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_weights_and_then_the_card(script, checkpoint, tmp_path, capsys):
    kept = tmp_path / "model_cards" / "small"
    assert script.main([str(kept), "--weights", str(checkpoint), "--dtype", "bfloat16"]) == 0
    assert open_checkpoint(kept)[0].dtype == torch.bfloat16 and not (kept / "README.md").exists()
    result = {**VALUES["results"][0], "benchmark": {"dataset": "openai/gsm8k", "task": "gsm8k"}}
    (kept / "card.yaml").write_text(yaml.safe_dump({**VALUES, "results": [result]}))
    assert script.main([str(kept)]) == 0
    assert [entry.task_id for entry in read_eval_results(kept)] == ["gsm8k"]
    assert 'from_pretrained("model_cards/small")' in (kept / "README.md").read_text()
    assert "README.md: written" in capsys.readouterr().out


def test_what_is_wrong_is_said_in_a_line(script, checkpoint, tmp_path, capsys):
    kept = tmp_path / "model_cards" / "small"
    script.main([str(kept), "--weights", str(checkpoint)])
    assert script.main([str(kept)]) == 2
    assert "card.yaml" in capsys.readouterr().err
    (kept / "card.yaml").write_text("model_name: X")
    assert script.main([str(kept)]) == 2
    assert "the card lacks model_summary" in capsys.readouterr().err and not (kept / "README.md").exists()
    assert script.main([str(kept), "--weights", str(tmp_path / "nothing")]) == 2
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "hidden_size": "16"}))
    assert script.main([str(kept), "--weights", str(checkpoint)]) == 2
    assert "hidden_size" in capsys.readouterr().err
