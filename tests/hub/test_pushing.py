"""Pushing over HTTP to a small Hub on the loopback interface, and opening what was pushed from there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from hf_seqmix.hub import VerificationError, check_repository, push
from tests.hub.hub_server import HubServer
from tests.hub.test_cards import VALUES

ROOT = Path(__file__).resolve().parents[2]
CARD = "---\nlicense: mit\n---\n# X\n"

OPEN = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hf_seqmix":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocker())
import torch
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError
from transformers import AutoModelForCausalLM, AutoTokenizer, logging
logging.set_verbosity_error()
name = "someone/tnn-small"
model = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=True)
ids = AutoTokenizer.from_pretrained(name, trust_remote_code=True)("x = 1", return_tensors="pt").input_ids
torch.save((ids, model(ids).logits.detach()), {result!r})
print(snapshot_download(name))
assert type(model).__module__.startswith("transformers_modules."), type(model)
assert "hf_seqmix" not in sys.modules
try:
    HfApi().model_info(name, token=False)
except RepositoryNotFoundError:
    print("private")
"""


@pytest.fixture(scope="module")
def hub():
    with HubServer() as server:
        yield server


def run(command, environment):
    environment = {**os.environ, **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_push_and_open_from_there(exported, hub, tmp_path):
    _, model, tokenizer = exported["tnn"]
    model.save_pretrained(tmp_path / "checkpoint")
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(VALUES))
    script = [sys.executable, str(ROOT / "scripts" / "push.py"), str(tmp_path / "checkpoint"), "--private"]
    script += ["--repo-id", "someone/tnn-small", "--card", str(tmp_path / "card.yaml"), "--message", "The first"]
    run(script, hub.environment(tmp_path / "home"))
    repository = hub.repositories["someone/tnn-small"]
    assert repository.private and [message for _, message, _ in repository.commits] == ["initial commit", "The first"]
    assert {"README.md", "config.json", "modeling_tnn.py", "model.safetensors", "tokenizer.json"} <= set(
        repository.files
    )
    assert b"# TNN small" in repository.files["README.md"]
    assert len(hub.objects) == 1 and not hub.unknown, hub.unknown
    assert not any(
        "/mods" in path or path.startswith(("/", ".")) for path in set(repository.files) - {".gitattributes"}
    )

    code = OPEN.format(result=str(tmp_path / "result.pt"))
    *_, snapshot, private = run(
        [sys.executable, "-W", "ignore", "-c", code], hub.environment(tmp_path / "home")
    ).splitlines()
    assert private == "private" and not hub.unknown, hub.unknown
    ids, logits = torch.load(tmp_path / "result.pt", weights_only=True)
    assert torch.equal(logits, model(ids).logits) and ids.tolist() == [tokenizer("x = 1")["input_ids"]]
    assert check_repository(snapshot).model_type == "tnn"
    assert json.loads(Path(snapshot, "config.json").read_text())["architectures"] == ["TNNForCausalLM"]


class NoHub:
    """Stands for the client of the Hub where nothing may be asked of it."""

    def __init__(self, *_, **__):
        raise AssertionError("the Hub was asked")


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setattr("hf_seqmix.hub.pushing.HfApi", NoHub)


def test_a_dry_run_asks_nothing_of_the_hub(exported, no_hub, monkeypatch):
    _, model, tokenizer = exported["tnn"]
    seen = []

    def verify(folder, *_):
        seen.append(check_repository(folder).model_type)
        return {"heads": {}}

    monkeypatch.setattr("hf_seqmix.hub.pushing.verify", verify)
    pushed = push(model, tokenizer, "someone/tnn-small", card=CARD, dry_run=True)
    assert pushed.url is None and seen == ["tnn"] and pushed.files["README.md"] == len(CARD)
    with pytest.raises(AssertionError, match="the Hub was asked"):
        push(model, tokenizer, "someone/tnn-small", card=CARD)


def test_nothing_is_uploaded_that_does_not_stand_alone(exported, no_hub, monkeypatch):
    def verify(*_):
        raise VerificationError("it does not open")

    monkeypatch.setattr("hf_seqmix.hub.pushing.verify", verify)
    with pytest.raises(VerificationError, match="it does not open"):
        push(exported["tnn"].model, None, "someone/x", card=CARD)


@pytest.mark.parametrize("name", ["../../etc/x", "/home/x", "a/../b", "a\\b/c", "no-user", "a/b/c"])
def test_names_with_path_tricks_are_refused_first(exported, no_hub, name):
    with pytest.raises(ValueError, match="the name of a repository is"):
        push(exported["tnn"].model, None, name, card=CARD)


def test_a_card_with_blanks_is_refused_first(exported, no_hub):
    with pytest.raises(ValueError, match="the card has blanks"):
        push(exported["tnn"].model, None, "someone/x", card=CARD + "[More Information Needed]\n")
