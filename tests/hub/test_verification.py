"""Exported repositories in a process that cannot import the package."""

import copy
import re
import shutil
import sys

import pytest
import torch

from hf_seqmix.hub import VerificationError, verify, verify_all
from hf_seqmix.hub.verification import _open_elsewhere


@pytest.fixture(scope="module")
def outcomes(exported, tmp_path_factory):
    """What another process says of every export, of one whose code needs the package, and of one that is not the model's."""
    folder, model, _ = exported["ski_tnn"]
    broken, changed = tmp_path_factory.mktemp("broken") / "broken", copy.deepcopy(model)
    shutil.copytree(folder, broken)
    text = (broken / "seqmix_models_pooling.py").read_text()
    (broken / "seqmix_models_pooling.py").write_text(
        text.replace("import torch\n", "import torch\nimport hf_seqmix\n", 1)
    )
    with torch.no_grad():
        changed.lm_head.bias[0] += 1
    everything = [*exported.values(), (broken, model, None), (folder, changed, None)]
    found = _open_elsewhere(everything, sys.executable, {"train": True, "tolerance": 0.0}, timeout=300)
    return dict(zip([*exported, "broken", "changed"], found, strict=True))


def test_every_family_stands_alone(exported, outcomes):
    """Same values, same generated tokens, a training step, saved and opened again; one process for all."""
    reports = {name: outcomes[name] for name in exported}
    assert not [report for report in reports.values() if isinstance(report, str)]
    own = {
        "tnn": "AutoModelForCausalLM",
        "fd_tnn": "AutoModelForImageClassification",
        "ski_tnn": "AutoModelForMaskedLM",
        "ipa": "AutoModelForCausalLM",
        "poly_transformer": "AutoModelForSequenceClassification",
        "seqmix_hybrid": "AutoModelForCausalLM",
        "attention": "AutoModel",
    }
    for name, report in reports.items():
        heads = report["heads"]
        assert heads["AutoModel"] == heads[own[name]] == "equal"
        trained = "AutoModelForCausalLM" if own[name] == "AutoModel" else own[name]
        assert report["training"] == f"{trained} trained, saved, reopened: equal"
        assert report.get("generate") == ("equal" if own[name].endswith("CausalLM") else None)
    assert reports["tnn"]["tokenizer"] == "equal"
    assert reports["fd_tnn"]["image_processor"].startswith(("equal", "not checked: this release"))
    assert set(reports["tnn"]["heads"].values()) >= {"opens"}
    assert "is_causal is True" in reports["tnn"]["heads"]["AutoModelForMaskedLM"]
    assert "reads images" in reports["tnn"]["heads"]["AutoModelForImageClassification"]


def test_what_does_not_stand_alone_is_said(exported, outcomes, monkeypatch):
    assert "hf_seqmix is not to be imported here" in outcomes["broken"]
    assert re.search(
        r"AssertionError: AutoModelForMaskedLM differs from the exported model by (1|0\.99)", outcomes["changed"]
    )
    monkeypatch.setattr(
        "hf_seqmix.hub.verification._open_elsewhere", lambda *_: [outcomes["tnn"], outcomes["changed"]]
    )
    with pytest.raises(VerificationError, match=r"(?s)not all stands alone.*differs from the exported model"):
        verify_all([exported["tnn"], exported["ski_tnn"]])


def test_a_process_that_hangs_is_ended(exported):
    folder, model, _ = exported["ski_tnn"]
    with pytest.raises(VerificationError, match=r"did not open within 0\.01 s"):
        verify(folder, model, timeout=0.01)
    with pytest.raises(ValueError, match="/no/python cannot be run"):
        verify(folder, model, python="/no/python")
