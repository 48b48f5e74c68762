import json

import pytest
import torch
import yaml

from hf_seqmix.hub import open_checkpoint
from hf_seqmix.hub.kept import render_card, write_weights
from tests.ecosystem.tiny import tiny_model, tiny_tokenizer
from tests.hub.test_cards import VALUES


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model_cards" / "ipa"
    write_weights(tiny_model("ipa").to(torch.bfloat16), tiny_tokenizer(), folder)
    (folder / "card.yaml").write_text(yaml.safe_dump(VALUES))
    return folder


def test_weights_come_back_and_other_files_stay(folder, tmp_path):
    kept, tokenizer = open_checkpoint(folder)
    torch.testing.assert_close(kept.state_dict(), tiny_model("ipa").to(torch.bfloat16).state_dict(), rtol=0, atol=0)
    write_weights(tiny_model("ipa", seed=1), tokenizer, folder)
    again, tokenizer = open_checkpoint(folder)
    assert again.dtype == torch.float32 and (folder / "card.yaml").exists()
    assert tokenizer("x = 1").input_ids == tiny_tokenizer()("x = 1").input_ids
    assert [path.name for path in folder.parent.iterdir()] == ["ipa"]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert not {"is_local", "local_files_only", "name_or_path"} & set(settings)


def test_interrupted_writing_leaves_what_was_there(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    model = tiny_model("ipa", seed=1)

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(type(tiny_tokenizer()), "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        write_weights(model, tiny_tokenizer(), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["ipa"]


def test_a_failure_at_the_last_step_leaves_what_was_there(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    replace = type(folder).replace

    def fail(path, target):
        if path.name == "new":
            raise OSError("Input/output error")
        return replace(path, target)

    monkeypatch.setattr(type(folder), "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_weights(tiny_model("ipa", seed=1), None, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["ipa"]


def test_nothing_of_the_model_before_stays(folder):
    """Its tokenizer would be taken for the new model's, and its single weight file be read before an index."""
    (folder / "figures").mkdir()
    for name in ("README.md", "figures/loss.png", "evaluate.py"):
        (folder / name).write_text("mine")
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "pytorch_model.bin"):
        (folder / name).write_text("old")
    folder.chmod(0o750)
    write_weights(tiny_model("ipa", seed=1, vocab_size=50), None, folder)
    model, tokenizer = open_checkpoint(folder)
    assert tokenizer is None and model.config.vocab_size == 50
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    new = {"config.json", "generation_config.json", "model.safetensors"}
    assert files == {*new, "README.md", "figures/loss.png", "evaluate.py", "card.yaml"}
    assert (folder / "figures" / "loss.png").read_text() == "mine" and folder.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("place", [".", "..", "../ipa"])
def test_the_current_folder_is_not_replaced(folder, monkeypatch, place):
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match="is the current one, or one around it"):
        write_weights(tiny_model("ipa", seed=1), None, place)
    assert (folder / "model.safetensors").exists() and folder.samefile(".")


def test_card_of_a_folder_says_how_to_push_it(folder):
    card = render_card(folder)
    assert "python scripts/publishing/push.py model_cards/ipa --repo-id USER/NAME" in card
    assert 'from_pretrained("model_cards/ipa")' in card and "trust_remote_code" not in card
    pushed = render_card(folder, "someone/ipa")
    assert 'from_pretrained("someone/ipa", trust_remote_code=True)' in pushed and "push.py" not in pushed


def test_a_card_names_the_folder_however_it_is_spelled(folder, monkeypatch):
    expected = render_card(folder)
    monkeypatch.chdir(folder.parent)
    assert render_card(folder.name) == expected
    monkeypatch.chdir(folder)
    assert render_card(".") == expected


def test_wrong_values_are_named(folder):
    for content, message in (
        ("a: [", "cannot be read"),
        ("[" * 3000, "nested too deeply"),
        ("- 1", "holds a list"),
        ("model_name: X", "the card lacks"),
    ):
        (folder / "card.yaml").write_text(content)
        with pytest.raises(ValueError, match=message):
            render_card(folder)
    (folder / "card.yaml").unlink()
    with pytest.raises(ValueError, match="it holds the values of the card"):
        render_card(folder)


def test_tokenizer_of_another_model_is_refused(folder):
    with pytest.raises(ValueError, match="it is not the model's"):
        write_weights(tiny_model("tnn", vocab_size=40), tiny_tokenizer(), folder)


def test_folders_that_a_tokenizer_writes_can_be_entered(folder, monkeypatch):
    def save(processor, target):
        (target / "templates").mkdir(mode=0o700)
        (target / "templates" / "tool.jinja").touch(mode=0o600)

    monkeypatch.setattr("hf_seqmix.hub.kept.save_processor", save)
    write_weights(tiny_model("tnn"), None, folder)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*") if "templates" in str(path)}
    assert modes == {"templates": 0o755, "tool.jinja": 0o644}
