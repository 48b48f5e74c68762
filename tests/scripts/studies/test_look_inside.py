"""The report about what each layer of a model does."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerFast

import hf_seqmix
from hf_seqmix.training.result_files import read_results

ROOT = Path(hf_seqmix.__file__).parent.parent
PATH = ROOT / "scripts" / "studies" / "look_inside.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("look_inside", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["look_inside"] = module
    spec.loader.exec_module(module)
    return module


def test_a_checkpoint_has_a_page(script, tmp_path, capsys):
    model = ROOT / "model_cards" / "hybrid-python-2m"
    sizes = ["--length", "16", "--rows", "2", "--heads", "2", "--probes", "1"]
    rows = script.main(["--model", str(model), *sizes, "--output-dir", str(tmp_path)])
    assert [row["mixer"] for row in rows] == ["TNNMixer", "SoftmaxAttention"] * 2
    page = (tmp_path / "inside.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 4  # with kernels
    assert "the first 2 x 16 tokens of the test split of embedded:python-stdlib" in page
    report = json.loads((tmp_path / "inside.json").read_text(encoding="utf-8"))
    assert [len(layer["singular_values"]) for layer in report] == [16] * 4
    assert [sum(layer["memory_shares"]) for layer in report] == pytest.approx([1] * 4)
    assert {result.metric for result in read_results(tmp_path / "inside.jsonl")} >= {"stable_rank", "memory"}
    assert "| SoftmaxAttention |" in capsys.readouterr().out


def test_models_of_the_library_and_texts_of_ones_own(script, tmp_path):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(ROOT / "model_cards" / "tnn-python-2m")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    LlamaModel(config).save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    (tmp_path / "notes.txt").write_text("def f(x):\n    return x\n" * 20, encoding="utf-8")
    command = ["--model", str(tmp_path / "llama"), "--text-file", str(tmp_path / "notes.txt")]
    (row,) = script.main([*command, "--length", "12", "--rows", "1", "--output-dir", str(tmp_path / "out")])
    assert row["mixer"] == "softmax attention"
    assert "kernels.png" not in {path.name for path in (tmp_path / "out").iterdir()}
    with pytest.raises(SystemExit, match=r"notes.txt has \d+ tokens, but 4 rows of 9999 were asked for: lower --rows"):
        script.main([*command, "--length", "9999", "--output-dir", str(tmp_path / "out")])


def test_data_without_a_held_out_split_is_refused(script, tmp_path):
    (tmp_path / "notes.txt").write_text("x = 1\n" * 40, encoding="utf-8")
    command = ["--model", str(ROOT / "model_cards" / "tnn-python-2m"), "--dataset", str(tmp_path / "notes.txt")]
    with pytest.raises(SystemExit, match=r"neither a test nor a validation split, only train: give a file by --text"):
        script.main([*command, "--length", "8", "--rows", "1", "--output-dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_bad_numbers_and_models_are_refused(script, tmp_path):
    with pytest.raises(SystemExit, match="--probes is 0; it must be at least 1"):
        script.main(["--model", "x", "--probes", "0", "--output-dir", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"look_inside.py: "):
        script.main(["--model", str(tmp_path / "nothing"), "--output-dir", str(tmp_path)])
