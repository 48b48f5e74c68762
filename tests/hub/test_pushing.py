"""Pushing over HTTP to a small Hub on the loopback interface, and opening what was pushed from there."""

import copy
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import EvalResultEntry, HfApi, parse_eval_result_entries

from hf_seqmix.hub import VerificationError, check_repository, open_checkpoint, push
from tests.hub.hub_server import TOKEN, HubServer
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


@pytest.mark.slow
@pytest.mark.ecosystem("huggingface_hub")
def test_push_and_open_from_there(exported, hub, tmp_path):
    _, model, tokenizer = exported["tnn"]
    model.save_pretrained(tmp_path / "checkpoint")
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    result = {**VALUES["results"][0], "benchmark": {"dataset": "openai/gsm8k", "task": "gsm8k"}}
    (tmp_path / "card.yaml").write_text(yaml.safe_dump({**VALUES, "results": [result]}))
    script = [
        sys.executable,
        str(ROOT / "scripts" / "publishing" / "push.py"),
        str(tmp_path / "checkpoint"),
        "--private",
    ]
    script += ["--repo-id", "someone/tnn-small", "--card", str(tmp_path / "card.yaml"), "--message", "The first"]
    run(script, hub.environment(tmp_path / "home"))
    repository = hub.repositories["someone/tnn-small"]
    assert repository.private and [message for _, message, _ in repository.commits] == ["initial commit", "The first"]
    assert {"README.md", "config.json", "modeling_tnn.py", "model.safetensors", "tokenizer.json"} <= set(
        repository.files
    )
    assert b"# TNN small" in repository.files["README.md"]
    (entry,) = parse_eval_result_entries(yaml.safe_load(repository.files[".eval_results/openai-gsm8k.yaml"]))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("openai/gsm8k", "gsm8k", result["value"])
    assert len(hub.objects) == 1 and not hub.unknown, hub.unknown
    assert not any(
        "/mods" in path or path.startswith(("/", "."))
        for path in set(repository.files) - {".gitattributes", ".eval_results/openai-gsm8k.yaml"}
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


# huggingface_hub uploads large files by an argument that its HTTP client has renamed
uploads = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")


@pytest.fixture
def here(hub, monkeypatch):
    """This process as a client of the small Hub; what is pushed counts as verified."""
    for name, value in (
        ("HF_HUB_OFFLINE", False),
        ("HF_HUB_DISABLE_XET", True),
        ("HF_HUB_DISABLE_PROGRESS_BARS", True),
    ):
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    client = functools.partial(HfApi, endpoint=hub.endpoint)
    monkeypatch.setattr("hf_seqmix.hub.pushing.HfApi", client)
    monkeypatch.setattr("hf_seqmix.hub.pushing.verify", lambda *_, **__: {"heads": {}})
    return client(token=TOKEN)


@uploads
@pytest.mark.parametrize("sizes", [("5GB", "8KB"), ("8KB", "5GB"), ("8KB", "20KB")], ids=str)
def test_nothing_of_an_older_push_stays_in_force(exported, hub, here, tmp_path, sizes):
    """A single weight file would be read before the index of a new push in several."""
    _, model, tokenizer = exported["tnn"]
    name = f"someone/again-{'-'.join(sizes)}"
    older = copy.deepcopy(model)
    with torch.no_grad():
        older.lm_head.weight += 1
    push(older, tokenizer, name, card=CARD, max_shard_size=sizes[0], token=TOKEN)
    others = {"notes.md": b"mine", "examples/run.py": b"mine", "onnx/model.safetensors": b"mine"}
    left = {
        "pytorch_model.bin": b"old",
        "adapter_config.json": b"{}",
        "modeling_[old].py": b"old",
        "tf_model.h5": b"old",
        ".eval_results/of-other-weights.yaml": b"- value: 1",
    }
    for path, content in {**others, **left}.items():
        here.upload_file(path_or_fileobj=content, path_in_repo=path, repo_id=name)
    number = len(hub.repositories[name].commits)
    pushed = push(model, None, name, card=CARD, max_shard_size=sizes[1], token=TOKEN)
    files = hub.repositories[name].files
    assert len(hub.repositories[name].commits) == number + 1 and not hub.unknown
    assert set(files) == {*pushed.files, *others, ".gitattributes"}
    for path in pushed.files:
        (tmp_path / path).write_bytes(files[path])
    opened, tokenizer = open_checkpoint(tmp_path)
    assert torch.equal(opened.lm_head.weight, model.lm_head.weight) and tokenizer is None
    assert check_repository(tmp_path).model_type == "tnn"


@uploads
def test_a_branch_is_made(exported, hub, here):
    _, model, _ = exported["tnn"]
    name = "someone/branches"
    push(model, None, name, card=CARD, token=TOKEN)
    for number, revision in enumerate(("trial", "trial", "main")):
        pushed = push(model, None, name, card=f"{CARD}{number}\n", revision=revision, token=TOKEN)
        assert pushed.url is not None
    repository = hub.repositories[name]
    assert list(repository.branches) == ["trial"] and not hub.unknown
    assert repository.at("trial")[1]["README.md"].endswith(b"1\n") and repository.files["README.md"].endswith(b"2\n")


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

    def verify(folder, *_, **__):
        seen.append(check_repository(folder).model_type)
        return {"heads": {}}

    monkeypatch.setattr("hf_seqmix.hub.pushing.verify", verify)
    results = [EvalResultEntry(dataset_id="openai/gsm8k", task_id="gsm8k", value=0.02)]
    pushed = push(model, tokenizer, "someone/tnn-small", card=CARD, results=results, dry_run=True)
    assert pushed.url is None and seen == ["tnn"] and pushed.files["README.md"] == len(CARD)
    assert pushed.files[".eval_results/openai-gsm8k.yaml"] > 0
    with pytest.raises(AssertionError, match="the Hub was asked"):
        push(model, tokenizer, "someone/tnn-small", card=CARD)


def test_nothing_is_uploaded_that_does_not_stand_alone(exported, no_hub, monkeypatch):
    def verify(*_, **__):
        raise VerificationError("it does not open")

    monkeypatch.setattr("hf_seqmix.hub.pushing.verify", verify)
    with pytest.raises(VerificationError, match="it does not open"):
        push(exported["tnn"].model, None, "someone/x", card=CARD)


@pytest.mark.parametrize(
    "name", ["../../etc/x", "/home/x", "a/../b", "a\\b/c", "no-user", "a/b/c", "a/b.GIT", "a/b.ipynb", "datasets/x"]
)
def test_names_with_path_tricks_are_refused_first(exported, no_hub, name):
    with pytest.raises(ValueError, match="the name of a repository is"):
        push(exported["tnn"].model, None, name, card=CARD)


def test_a_card_with_blanks_is_refused_first(exported, no_hub):
    with pytest.raises(ValueError, match="the card has blanks"):
        push(exported["tnn"].model, None, "someone/x", card=CARD + "[More Information Needed]\n")
    with pytest.raises(ValueError, match="a model is not published without one"):
        push(exported["tnn"].model, None, "someone/x", card=None)


def test_a_tolerance_that_compares_nothing_is_refused_first(exported, no_hub, monkeypatch):
    monkeypatch.setattr("hf_seqmix.hub.pushing.export", None)
    with pytest.raises(ValueError, match=r"tolerance is -1\.0; it must be a finite number, 0 or more"):
        push(exported["tnn"].model, None, "someone/x", card=CARD, tolerance=-1.0)
