"""The checkpoints that are kept here open and beat a baseline; their cards are up to date and run as written."""

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from hf_seqmix.analysis import evaluate_language_model
from hf_seqmix.analysis.text.masked_modeling import evaluate_masked_model, mask_documents, ngram_bits_per_byte
from hf_seqmix.data import ByteNGram, listops, load_corpus
from hf_seqmix.hub import check_repository, open_checkpoint
from hf_seqmix.hub.eval_results import eval_results, read_eval_results
from hf_seqmix.hub.kept import read_card_values, render_card
from tests.hub.hub_server import HubServer

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "model_cards").glob("*/config.json"))
SAMPLE = 6_000  # bytes of held-out text

LISTOPS = [folder for folder in FOLDERS if folder.name.endswith("-listops")]
LANGUAGE_MODELS = [folder for folder in FOLDERS if folder not in LISTOPS]


# One worker, which counts the 5-grams once.
pytestmark = pytest.mark.xdist_group("published")


def of(folders):
    return pytest.mark.parametrize("folder", folders, ids=lambda folder: folder.name)


each_folder = of(FOLDERS)


def test_every_family_has_one():
    families = {check_repository(folder).model_type for folder in FOLDERS}
    assert families == {"tnn", "fd_tnn", "ski_tnn", "ipa", "poly_transformer", "seqmix_hybrid"}
    classifiers = {check_repository(folder).model_type for folder in LISTOPS}
    assert classifiers == {"tnn", "fd_tnn", "ski_tnn", "seqmix_hybrid"}


@each_folder
def test_weights_are_small_and_the_card_is_up_to_date(folder):
    model, tokenizer = open_checkpoint(folder)
    assert model.dtype == (torch.float32 if folder in LISTOPS else torch.bfloat16)
    assert len(tokenizer) <= model.config.vocab_size
    assert all(path.stat().st_size <= 4 * 2**20 for path in folder.iterdir())
    assert (folder / "README.md").read_text(encoding="utf-8") == render_card(folder)
    assert not (folder / "training_args.bin").exists()
    results = read_card_values(folder / "card.yaml")["results"]
    assert read_eval_results(folder) == eval_results(results)
    # Generated lists and files of this machine are no dataset of the Hub.
    assert not any("benchmark" in result for result in results if "generated" in result["dataset"])
    assert not any("benchmark" in result for result in results if "standard library" in result["dataset"])


@each_folder
def test_card_runs_as_written(folder, monkeypatch):
    monkeypatch.chdir(ROOT)
    card = (folder / "README.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, str(folder), "exec"), names)
    assert {"tokenizer", "model"} <= names.keys()
    for command in re.findall(r"```bash\n(.*?)```", card, flags=re.DOTALL):
        script, *arguments = command.split()[1:]
        assert (ROOT / script).is_file()
        for argument in arguments:
            if argument.startswith(("model_cards/", "scripts/")):
                assert (ROOT / argument).exists(), argument


@pytest.fixture(scope="module")
def corpus():
    texts = load_corpus("embedded:python-stdlib")
    sample, left = [], SAMPLE
    for text in texts["test"]["text"]:
        sample.append(text[:left])
        left -= len(sample[-1])
        if left <= 0:
            break
    ngram = ByteNGram(5).fit(texts["train"]["text"])
    return sample, ngram, ngram.bits_per_byte(sample)


@of(LANGUAGE_MODELS)
@pytest.mark.one_in(4)
def test_it_beats_the_five_gram_on_held_out_text(folder, corpus):
    texts, ngram, baseline = corpus
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if check_repository(folder).is_causal:
        model = AutoModelForCausalLM.from_pretrained(folder)
        [score] = evaluate_language_model(model, tokenizer, texts, context_lengths=[256], progress=False)
        assert score.bits_per_byte < baseline
    else:
        model = AutoModelForMaskedLM.from_pretrained(folder)
        blocks = mask_documents(tokenizer, texts, context_length=128)
        score = evaluate_masked_model(model, tokenizer, blocks, context_length=128, progress=False)
        assert score.bits_per_byte < ngram_bits_per_byte(ngram, texts, blocks)


@pytest.fixture(scope="module")
def expressions():
    return listops({"train": 1000, "test": 240}, min_length=16, max_length=65, seed=7)


@of(LISTOPS)
def test_it_beats_what_the_outermost_operator_tells(folder, expressions):
    def operator(source):
        return re.search(r"\[\w+", source)[0]

    values = defaultdict(Counter)
    for source, target in zip(expressions["train"]["Source"], expressions["train"]["Target"], strict=True):
        values[operator(source)][target] += 1
    rows = expressions["test"]
    guesses = [values[operator(source)].most_common(1)[0][0] for source in rows["Source"]]
    baseline = sum(guess == target for guess, target in zip(guesses, rows["Target"], strict=True)) / len(rows)

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(list(rows["Source"]), padding=True, return_tensors="pt")
    with torch.no_grad():
        said = model(**inputs).logits.argmax(-1).tolist()
    right = [int(model.config.id2label[index]) == target for index, target in zip(said, rows["Target"], strict=True)]
    assert sum(right) / len(rows) > baseline + 0.15


def test_claimed_results_beat_the_claimed_baselines():
    for folder in FOLDERS:
        for result in read_card_values(folder / "card.yaml")["results"]:
            higher_is_better = "accuracy" in result["metric"]
            names = ("5-gram", "always", "majority class", "outermost operator")
            to_beat = [value for name, value in result["baselines"].items() if any(known in name for known in names)]
            assert to_beat
            for value in to_beat:
                assert (result["value"] > value) if higher_is_better else (result["value"] < value)


@each_folder
def test_pictures_of_the_card_are_there(folder):
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert {path.name for path in folder.glob("*.png")} == set(shown)
    assert bool(shown) == (folder in LISTOPS)


OPEN = """
import sys
sys.modules["hf_seqmix"] = None
import torch, transformers
name, auto_class, result = sys.argv[1:]
model = getattr(transformers, auto_class).from_pretrained(name, trust_remote_code=True)
tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=True)
torch.save(model(**tokenizer("def main(x):", return_tensors="pt")).logits.detach(), result)
"""


@pytest.mark.slow
@each_folder
def test_pushed_and_loaded_back_from_a_hub(folder, tmp_path):
    with HubServer() as hub:
        environment = {**os.environ, **hub.environment(tmp_path / "home")}
        push = [
            sys.executable,
            str(ROOT / "scripts" / "publishing" / "push.py"),
            str(folder),
            "--repo-id",
            f"someone/{folder.name}",
        ]
        done = subprocess.run(push, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        pushed = hub.repositories[f"someone/{folder.name}"].files
        assert b"trust_remote_code=True" in pushed["README.md"] and "model.safetensors" in pushed
        model, tokenizer = open_checkpoint(folder)
        language = "AutoModelForCausalLM" if model.config.is_causal else "AutoModelForMaskedLM"
        auto_class = "AutoModelForSequenceClassification" if folder in LISTOPS else language
        assert {path.name for path in folder.glob("*.png")} <= pushed.keys()
        command = [sys.executable, "-c", OPEN, f"someone/{folder.name}", auto_class, str(tmp_path / "logits.pt")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert not hub.unknown, hub.unknown
    logits = torch.load(tmp_path / "logits.pt", weights_only=True)
    assert torch.equal(logits, model(**tokenizer("def main(x):", return_tensors="pt")).logits)
