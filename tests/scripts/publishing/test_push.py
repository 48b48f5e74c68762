"""The push script: what it refuses, in a line; pushing itself is tried in tests/hub/test_pushing.py."""

import importlib.util
import json
import socket
from pathlib import Path
from types import ModuleType

import pytest
from huggingface_hub import HfApi

from hf_seqmix import TNNConfig, TNNForCausalLM

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "publishing" / "push.py"
CARD = "---\nlicense: mit\n---\n# X\n"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("push", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def checkpoint(tmp_path):
    TNNForCausalLM(TNNConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def pushed(script, monkeypatch):
    """What would have been pushed: nothing leaves this process."""
    calls = []

    def push(model, processor, repo_id, **options):
        calls.append((model, processor, repo_id, options))
        return type("Pushed", (), {"report": {"heads": {"AutoModel": "equal"}}, "files": {"a": 1}, "url": None})()

    monkeypatch.setattr(script, "push", push)
    return calls


def test_options_reach_the_push(script, checkpoint, pushed, tmp_path, caplog):
    caplog.set_level("INFO")
    (checkpoint / "README.md").write_text(CARD)
    (checkpoint / ".eval_results").mkdir()
    (checkpoint / ".eval_results" / "a.yaml").write_text("- dataset: {id: a/b, task_id: c}\n  value: 1\n")
    export = tmp_path / "export"
    arguments = [str(checkpoint), "--repo-id", "a/b", "--private", "--dry-run", "--dtype", "bfloat16"]
    assert (
        script.main(
            [*arguments, "--export-dir", str(export), "--to-revision", "x", "--message", "m", "--tolerance", "1e-6"]
        )
        == 0
    )
    ((model, processor, repo_id, options),) = pushed
    assert type(model) is TNNForCausalLM and str(model.dtype) == "torch.bfloat16" and not model.training
    assert processor is None and repo_id == "a/b" and str(options["card"]).strip() == CARD.strip()
    assert options["private"] is True and options["dry_run"] and options["revision"] == "x"
    assert options["commit_message"] == "m" and options["tolerance"] == 1e-6
    assert (export / "modeling_tnn.py").is_file() and (export / ".eval_results" / "a-b.yaml").is_file()
    assert [(entry.dataset_id, entry.task_id) for entry in options["results"]] == [("a/b", "c")]
    assert "a: 1 bytes" in caplog.text and "dry run, nothing was uploaded" in caplog.text


@pytest.mark.parametrize("name", ["../x", "a/../b", "a", "/a/b"])
def test_path_tricks_are_refused(script, checkpoint, pushed, capsys, name):
    assert script.main([str(checkpoint), "--repo-id", name]) == 2
    assert "push.py: the name of a repository is" in capsys.readouterr().err and not pushed


def test_a_card_is_asked_for(script, checkpoint, pushed, capsys, tmp_path):
    assert script.main([str(checkpoint), "--repo-id", "a/b"]) == 2
    assert "a model is not published without a card" in capsys.readouterr().err
    for name, content, message in (
        ("card.json", json.dumps({"model_name": "X"}), "the card lacks model_summary, model_description, license"),
        ("card.yaml", "model_name: X\nmodel_sumary: Y\n", "has no place for model_sumary"),
        ("card.yaml", "[1, 2]", "holds a list"),
        ("card.json", "{", "cannot be read"),
        ("card.yaml", "a: [", "cannot be read"),
        ("card.md", CARD + "[More Information Needed]", "the card has blanks"),
        ("gone.md", None, "No such file"),
        ("gone.yaml", None, "there is no "),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        assert script.main([str(checkpoint), "--repo-id", "a/b", "--card", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err
    assert not pushed


def test_a_checkpoint_that_is_none_is_refused(script, pushed, capsys, tmp_path, checkpoint):
    assert script.main([str(tmp_path / "nothing"), "--repo-id", "a/b"]) == 2
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    assert script.main([str(checkpoint), "--repo-id", "a/b"]) == 2
    assert "architectures is ['BertModel']; it must name one of" in capsys.readouterr().err
    assert not pushed


def one_line(capsys):
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("push.py: ")
    return line


def test_a_damaged_checkpoint_is_refused_in_a_line(script, pushed, capsys, checkpoint):
    (checkpoint / "README.md").write_text(CARD)
    command = [str(checkpoint), "--repo-id", "a/b", "--dry-run"]
    weights = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(weights[:999])
    assert script.main(command) == 2
    assert one_line(capsys)
    (checkpoint / "model.safetensors").write_bytes(weights)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "hidden_size": "16"}))
    assert script.main(command) == 2
    assert "hidden_size" in one_line(capsys)
    assert not pushed


def test_a_hub_that_does_not_answer_is_named_in_a_line(script, capsys, checkpoint, monkeypatch):
    (checkpoint / "README.md").write_text(CARD)
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(script, "push", lambda *_, **__: HfApi(endpoint=endpoint, token="hf_x").create_repo("a/b"))
        assert script.main([str(checkpoint), "--repo-id", "a/b"]) == 2
    assert "refused" in one_line(capsys)


@pytest.mark.parametrize("kind", [RuntimeError, OSError, ValueError])
def test_errors_of_pushing_are_one_line(script, capsys, checkpoint, monkeypatch, kind):
    (checkpoint / "README.md").write_text(CARD)

    def fail(*_, **__):
        raise kind("it went wrong")

    monkeypatch.setattr(script, "push", fail)
    assert script.main([str(checkpoint), "--repo-id", "a/b"]) == 2
    assert one_line(capsys) == "push.py: it went wrong"


def test_pictures_that_the_card_shows_go_with_it(script, checkpoint, pushed, tmp_path):
    card = "![a](a.PNG)\n![b](<my loss.svg> 'Loss')\n<img width='3' src='./c.jpg'>\n[d](d.pdf)\n"
    elsewhere = "![](https://x.org/y.png) ![](data:image/png;base64,AA) `![](f.png)`\n```\n![](g.png)\n```\n"
    (tmp_path / "card.md").write_text(CARD + card + elsewhere)
    for name in ("a.PNG", "my loss.svg", "c.jpg", "d.pdf", "z.png", "y.png", "AA.PNG", "PNG.png"):
        (checkpoint / name).write_bytes(b"x")
    (tmp_path / "a.PNG").write_bytes(b"x")
    assert script.main([str(checkpoint), "--repo-id", "a/b", "--card", str(tmp_path / "card.md")]) == 0
    ((_, _, _, options),) = pushed
    expected = [tmp_path / "a.PNG", *(checkpoint / name for name in ("c.jpg", "d.pdf", "my loss.svg"))]
    assert options["pictures"] == expected


@pytest.mark.parametrize("link", ["gone.png", "figures/a.png", "../a.png"])
def test_a_picture_that_is_missing_is_named(script, checkpoint, pushed, capsys, link):
    (checkpoint / "README.md").write_text(f"{CARD}![a]({link})\n")
    (checkpoint / "figures").mkdir()
    for place in (checkpoint / "figures" / "a.png", checkpoint.parent / "a.png"):
        place.write_bytes(b"x")
    assert script.main([str(checkpoint), "--repo-id", "a/b"]) == 2
    assert f"the card shows {link}, which is not in {checkpoint}" in one_line(capsys) and not pushed
