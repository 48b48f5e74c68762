"""The study of distilled decoders, on a small checkpoint."""

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import hf_seqmix
from hf_seqmix import SeqMixHybridConfig, SeqMixHybridForCausalLM
from hf_seqmix.training.result_files import read_results

ROOT = Path(hf_seqmix.__file__).parent.parent


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location(
        "distilled_decoding", ROOT / "scripts" / "studies" / "distilled_decoding.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["distilled_decoding"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_tables_results_and_a_plot(script, tmp_path, capsys):
    settings = ["--documents", "1", "--context-length", "128", "--lengths", "64", "512", "--rounds", "1"]
    settings += ["--tolerances", "1e-1", "1e-3", "--threads", str(torch.get_num_threads())]
    models = script.main(
        ["--models", str(ROOT / "model_cards" / "fd-tnn-python-2m"), *settings, "--output-dir", str(tmp_path)]
    )
    assert len(models) == 4 and all(abs(row["change"]) < 1e-2 for row in models)
    results = read_results(tmp_path / "distilled.jsonl")
    held = [result for result in results if result.metric == "cache_bytes" and "distilled" in str(result.setting)]
    assert len(held) == 2 and {result.metric for result in results} >= {"order", "tap_bound", "perplexity", "step_ms"}
    assert (tmp_path / "distilled.png").stat().st_size > 10_000
    assert "| fd-tnn-python-2m |" in capsys.readouterr().out


def test_attention_of_a_hybrid_holds_keys_and_values_and_has_no_kernel(script, tmp_path):
    options = {"attention": {"num_heads": 2}}
    config = SeqMixHybridConfig(
        vocab_size=32, hidden_size=16, mixer_types=["tnn", "attention"], mixer_configs=options, num_hidden_layers=2
    )
    SeqMixHybridForCausalLM(config).save_pretrained(tmp_path)
    arguments = argparse.Namespace(tolerances=[1e-1], exact_taps=[4], lengths=[64, 1024], rounds=0)
    rows = importlib.import_module("distillation.costs").costs_of(str(tmp_path), arguments)
    short, long = (row for row in rows if row["decoder"] == "distilled")
    assert long["cache_bytes"] - short["cache_bytes"] >= 800 * 2 * 16 * 4  # float32 keys and values
    assert long["products"] < 256  # and not the tokens that attention holds


def test_a_tolerance_that_is_none_is_refused(script, tmp_path):
    settings = ["--tolerances", "2", "--documents", "1", "--context-length", "16"]
    with pytest.raises(SystemExit, match="a tolerance between 0 and 1"):
        script.main(
            ["--models", str(ROOT / "model_cards" / "tnn-python-2m"), *settings, "--output-dir", str(tmp_path)]
        )


def test_models_without_kernels_and_texts_without_a_test_split_are_refused(script, tmp_path):
    options = ["--documents", "1", "--output-dir", str(tmp_path / "out")]
    cards = [str(ROOT / "model_cards" / name) for name in ("tnn-python-2m", "ipa-prod-python-2m")]
    with pytest.raises(SystemExit, match="ipa-prod-python-2m is a IPAForCausalLM, which has no kernels to distill"):
        script.main(["--models", *cards, *options])
    (tmp_path / "a.txt").write_text("a text")
    with pytest.raises(SystemExit, match=r"a\.txt has the splits train, and no test to score"):
        script.main(["--models", cards[0], "--dataset", str(tmp_path / "a.txt"), *options])


def test_two_checkpoints_of_one_name_are_refused(script, tmp_path):
    with pytest.raises(SystemExit, match=r"two of --models have one folder name.*a/tnn, b/tnn: rename a folder"):
        script.main(["--models", "a/tnn", "b/tnn", "--output-dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "values"), [("--tolerances", ["1e-2", "0.01"]), ("--exact-taps", ["4", "4"]), ("--lengths", ["8", "8"])]
)
def test_what_is_measured_twice_is_refused(script, tmp_path, option, values):
    with pytest.raises(SystemExit, match=f"{option} names .* twice"):
        script.main([option, *values, "--output-dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
