"""The example that puts other mixers in the place of some of a trained model."""

import copy
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_seqmix import SeqMixHybridConfig, SeqMixHybridForCausalLM, replace_mixers
from hf_seqmix.data import build_tokenizer

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "examples"
OWN = {"attention": {"num_heads": 2}, "tnn": {"rpe_hidden_size": 4}}


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("replace_mixers")


def make(**more: Any) -> Any:
    torch.manual_seed(0)
    fields = {"vocab_size": len(build_tokenizer("byte")), "hidden_size": 16, "max_position_embeddings": 16}
    fields |= {"mixer_types": ["attention", "tnn"], "mixer_configs": OWN, "hidden_dropout": 0.0}
    return SeqMixHybridForCausalLM(SeqMixHybridConfig(**{**fields, **more})).eval()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make().save_pretrained(tmp_path / "model")
    build_tokenizer("byte").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_new_mixers_learn_the_outputs_of_the_old_ones(script: Any) -> None:
    old = make()
    same = script.Transfer(old, replace_mixers(old, {0: "fd_tnn"}, {"fd_tnn": {"rpe_hidden_size": 4}}))
    assert same.layers == [0] and not any(parameter is p for p in same.parameters() for parameter in old.parameters())
    ids = torch.randint(200, (2, 16))
    loss = same(ids)["loss"]
    # By its definition, from what the first layer's mixer reads.
    inputs = old.model.layers[0].mixer_norm(old.model.embed_tokens(ids) * old.model.embedding_scale)
    target = old.model.layers[0].mixer(inputs)
    expected = (same.mixers[0](inputs) - target).square().sum() / target.square().sum()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-6, check_device=False)
    loss.backward()
    assert all(parameter.grad is not None for parameter in same.parameters())
    assert all(parameter.grad is None for parameter in old.parameters())
    # A mixer that gives what the old one gave has nothing to learn.
    same.mixers[0] = copy.deepcopy(old.model.layers[0].mixer)
    assert same(ids)["loss"] == 0


@pytest.mark.parametrize("given", ["{tnn", "[1]", '{"tnn": 1}'])
def test_fields_that_are_no_json_are_said_to_be(script: Any, capsys: pytest.CaptureFixture[str], given: str) -> None:
    with pytest.raises(SystemExit):
        script.main(["model", "--replace", "0=tnn", "--mixer-configs", given])
    said = capsys.readouterr().err
    assert f"--mixer-configs: {given!r} given; it must be JSON that maps mixers to their fields, such as " in said


def test_a_model_is_replaced_and_healed(script: Any, checkpoint: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a few words, again and again. " * 60)
    options = ["--train-file", str(text), "--validation-file", str(text), "--eval-bytes", "300", "--use-cpu"]
    options += ["--output-dir", str(tmp_path / "out"), "--transfer-steps", "20", "--steps", "30", "--batch-size", "4"]
    found = script.main([str(checkpoint), "--replace", "attention=tnn", *options])
    stages = ["as trained", "mixers replaced", "outputs learned", "healed", "as trained, and so many updates more"]
    assert list(found) == stages
    assert found["healed"] < found["mixers replaced"]
    healed = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert healed.config.layer_mixers == ["tnn", "tnn"]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["bits_per_byte"] == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--replace", "attention"], "--replace takes OLD=NEW, such as attention=tnn"),
        (["--replace", "mamba=tnn"], "replacements names 'mamba', but the layers are attention, tnn"),
        (["--replace", "attention=tnn", "--train-file", "x"], "--train-file and --validation-file together"),
    ],
)
def test_what_makes_no_sense_is_refused(script: Any, checkpoint: Path, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        script.main([str(checkpoint), *options])


def test_a_checkpoint_that_is_not_there_is_said_in_a_line(script: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^replace_mixers\.py: .*no-such"):
        script.main([str(tmp_path / "no-such"), "--replace", "attention=tnn", "--output-dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
