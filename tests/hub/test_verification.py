"""Exported repositories in a process that cannot import the package."""

import copy
import re
import shutil

import pytest
import torch

from hf_seqmix.hub import VerificationError, verify, verify_all


def test_every_family_stands_alone(exported):
    """Same values, same generated tokens, a training step, saved and opened again; one process for all."""
    reports = dict(zip(exported, verify_all(list(exported.values()), train=True), strict=True))
    own = {
        "tnn": "AutoModelForCausalLM",
        "fd_tnn": "AutoModelForImageClassification",
        "ski_tnn": "AutoModelForMaskedLM",
        "ipa": "AutoModelForCausalLM",
        "poly_transformer": "AutoModelForSequenceClassification",
        "seqmix_hybrid": "AutoModelForCausalLM",
    }
    for name, report in reports.items():
        heads = report["heads"]
        assert heads["AutoModel"] == heads[own[name]] == "equal"
        assert report["training"] == f"{own[name]} trained, saved, reopened: equal"
        assert report.get("generate") == ("equal" if own[name].endswith("CausalLM") else None)
    assert reports["tnn"]["tokenizer"] == "equal"
    assert reports["fd_tnn"]["image_processor"].startswith(("equal", "not checked: this release"))
    assert set(reports["tnn"]["heads"].values()) >= {"opens"}
    assert "is_causal is True" in reports["tnn"]["heads"]["AutoModelForMaskedLM"]
    assert "reads images" in reports["tnn"]["heads"]["AutoModelForImageClassification"]


def test_what_does_not_stand_alone_is_said(exported, tmp_path):
    folder, model, _ = exported["ski_tnn"]
    broken, changed = tmp_path / "broken", copy.deepcopy(model)
    shutil.copytree(folder, broken)
    text = (broken / "seqmix_models_pooling.py").read_text()
    (broken / "seqmix_models_pooling.py").write_text(
        text.replace("import torch\n", "import torch\nimport hf_seqmix\n", 1)
    )
    with torch.no_grad():
        changed.lm_head.bias[0] += 1
    with pytest.raises(VerificationError) as raised:
        verify_all([(broken, model, None), (folder, changed, None)])
    assert re.search(rf"{broken}: .*hf_seqmix is not to be imported here", str(raised.value))
    assert re.search(
        rf"{folder}: AssertionError: AutoModelForMaskedLM differs from the exported model by 1", str(raised.value)
    )


def test_a_process_that_hangs_is_ended(exported):
    folder, model, _ = exported["ski_tnn"]
    with pytest.raises(VerificationError, match=r"did not open within 0\.01 s"):
        verify(folder, model, timeout=0.01)
