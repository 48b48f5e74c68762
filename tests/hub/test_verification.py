"""Exported repositories in a process that cannot import the package."""

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_seqmix import (
    IPAConfig,
    IPAForCausalLM,
    PolyTransformerConfig,
    PolyTransformerForQuestionAnswering,
    TNNConfig,
    TNNForCausalLM,
)
from hf_seqmix.hub import VerificationError, export, verification, verify, verify_all
from hf_seqmix.hub.clean_load import compare, generate
from hf_seqmix.hub.verification import _open_elsewhere, _plan
from tests.hub.conftest import TEXT, perturbed

CHANGES = {
    "broken": ("modeling_ski_tnn.py", "import torch\n", "import torch\nimport hf_seqmix\n"),
    "nan": ("modeling_ski_tnn.py", "        logits = ", "        logits = float('nan') * "),
    "other refusal": ("modeling_ski_tnn.py", 'f"image_size is None', 'f"no: image_size is None'),
}


@pytest.fixture(scope="module")
def outcomes(exported, tmp_path_factory):
    """What another process says of every export, and of others; one process for all.

    There are some whose code was changed, some that are not the model's, and some that are hard to compare or generate
    with.
    """
    place = tmp_path_factory.mktemp("others")
    folder, model, _ = exported["ski_tnn"]
    others = {}
    for name, (file, old, new) in CHANGES.items():
        shutil.copytree(folder, place / name)
        text = (place / name / file).read_text()
        assert old in text
        (place / name / file).write_text(text.replace(old, new))
        others[name] = (place / name, model, None)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.lm_head.bias[0] += 1
    others["changed"] = (folder, changed, None)

    torch.manual_seed(0)
    answers = perturbed(PolyTransformerForQuestionAnswering(PolyTransformerConfig(**TEXT, is_causal=False)))
    few = {**TEXT, "position_embedding_type": "learned"}
    more = {
        "end logits": answers,
        "odd sizes, no cache": perturbed(IPAForCausalLM(IPAConfig(**TEXT, rank=3, kernel_rank=5, use_cache=False))),
        **{
            f"{number} positions": TNNForCausalLM(TNNConfig(**{**few, "max_position_embeddings": number})).eval()
            for number in (1, 2, 7)
        },
    }
    for name, each in more.items():
        others[name] = (export(each, None, place / name.replace(" ", "-")), each, None)
    changed = copy.deepcopy(answers)
    with torch.no_grad():
        changed.qa_outputs.bias[1] += 100
    others["end logits"] = (others["end logits"][0], changed, None)

    # For each head that is opened the library reads the code anew, half a second. Other heads than a model's
    # own are the same code in every family: those of two exports are opened. Only whole exports are trained.
    every_head = [exported["tnn"].folder.resolve(), others["other refusal"][0].resolve()]
    whole = [each.folder.resolve() for each in exported.values()]

    def shorter_plan(folder, model, processor, place):
        plan = _plan(folder, model, processor, place)
        heads = {name: found for name, found in plan["heads"].items() if folder in every_head or found == "equal"}
        if len(heads) == 1:  # the backbone alone, which is trained below a head
            heads["AutoModelForCausalLM"] = "opens"
        return {**plan, "heads": heads, "train": folder in whole}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "_plan", shorter_plan)
        each = [*exported.values(), *others.values()]
        found = _open_elsewhere(each, sys.executable, {"tolerance": 0.0}, timeout=900)
    return dict(zip([*exported, *others], found, strict=True))


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
        "images": "AutoModelForImageClassification",
    }
    for name, report in reports.items():
        heads = report["heads"]
        assert heads["AutoModel"] == heads[own[name]] == "equal"
        trained = "AutoModelForCausalLM" if own[name] == "AutoModel" else own[name]
        assert report["training"] == f"{trained} trained, saved, reopened: equal"
        assert report.get("generate") == ("equal" if own[name].endswith("CausalLM") else None)
    assert reports["tnn"]["tokenizer"] == "equal"
    for name in ("fd_tnn", "images"):
        assert reports[name]["image_processor"].startswith(("equal", "not checked: this release"))
    assert set(reports["tnn"]["heads"].values()) >= {"opens"}
    assert "is_causal is True" in reports["tnn"]["heads"]["AutoModelForMaskedLM"]
    assert "reads images" in reports["tnn"]["heads"]["AutoModelForImageClassification"]


def test_what_does_not_stand_alone_is_said(exported, outcomes, monkeypatch):
    assert "hf_seqmix is not to be imported here" in outcomes["broken"]
    assert re.search(
        r"AssertionError: AutoModelForMaskedLM: logits differs from the exported model by (1|0\.99)",
        outcomes["changed"],
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


def test_every_output_is_compared_and_nan_is_not_equal(outcomes):
    differs = "AutoModelForQuestionAnswering: end_logits differs from the exported model by 100"
    assert differs in outcomes["end logits"]
    assert "AutoModelForMaskedLM: logits differs from the exported model by nan" in outcomes["nan"]


def test_a_refusal_has_to_say_the_same(outcomes):
    assert isinstance(outcomes["other refusal"], str) and "ValueError: no: " in outcomes["other refusal"]


def test_where_weights_lie_in_a_file_changes_nothing(outcomes):
    """Sums over memory at other boundaries may round otherwise: weights of odd sizes begin anywhere in a file."""
    assert outcomes["odd sizes, no cache"]["heads"] == {"AutoModel": "equal", "AutoModelForCausalLM": "equal"}


def test_a_model_without_a_cache_generates(outcomes):
    assert outcomes["odd sizes, no cache"]["generate"] == "equal"


@pytest.mark.parametrize("number", [1, 2, 7])
def test_models_of_few_positions(outcomes, number):
    report = outcomes[f"{number} positions"]
    assert report["heads"]["AutoModelForCausalLM"] == "equal"
    assert report.get("generate") == (None if number == 1 else "equal")


def test_comparing():
    one = torch.ones(2, 3)
    assert compare("x", one, one.clone(), 0.0) == 0
    assert compare("x", one, one + 2**-20, 1e-6) == 2**-20
    for other, message in (
        (one + 2**-19, r"by 1\.91e-06"),
        (one * torch.nan, "by nan"),
        (one.double(), "is torch.float64 of shape .2, 3., but torch.float32"),
        (one[:1], r"is torch.float32 of shape \[1, 3\], but torch.float32 of shape \[2, 3\]"),
    ):
        with pytest.raises(AssertionError, match=message):
            compare("x", other, one, 1e-6)


@pytest.mark.parametrize("tolerance", [float("nan"), float("inf"), -1e-9, "1", True, None], ids=str)
def test_a_tolerance_that_compares_nothing_is_refused(exported, tolerance):
    folder, model, _ = exported["tnn"]
    with pytest.raises(ValueError, match="it must be a finite number, 0 or more"):
        verify(folder, model, tolerance=tolerance)


def test_what_is_no_model_of_a_family_is_refused(exported):
    folder, model, _ = exported["tnn"]

    class Mine(TNNForCausalLM):
        pass

    for other, advice in (
        (None, "open the model with hf_seqmix"),
        (Mine(model.config), "load the weights into the package's own class"),
        (torch.compile(model, backend="eager"), "made by torch.compile"),
    ):
        with pytest.raises(ValueError, match=f"is not a class of the package's families: .*{advice}"):
            verify(folder, other)


def test_generating_leaves_the_settings_as_they_were(exported, monkeypatch):
    model = copy.deepcopy(exported["tnn"].model)
    settings, prompt = model.generation_config, torch.tensor([[5, 6]])
    settings.update(return_dict_in_generate=True, num_beams=3, eos_token_id=7, forced_bos_token_id=3)
    before = settings.to_dict()
    assert generate(model, prompt, 6).shape == (1, 6)
    monkeypatch.setattr(model, "forward", None)
    with pytest.raises(TypeError):
        generate(model, prompt, 6)
    assert model.generation_config is settings and settings.to_dict() == before


def test_reports_of_those_that_were_done_are_kept(exported, monkeypatch):
    def run(command, timeout, **_):
        Path(command[3]).with_name("report.json").write_text(json.dumps({"heads": {}}))
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(
        VerificationError, match=r"(?s)not all stands alone.*ski_tnn: did not open within 5 s"
    ) as error:
        verify_all([exported["tnn"], exported["ski_tnn"]], timeout=5)
    first, second = error.value.results
    assert first == {"heads": {}} and isinstance(second, str)
