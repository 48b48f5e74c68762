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


OWN = {
    "tnn": "AutoModelForCausalLM",
    "fd_tnn": "AutoModelForImageClassification",
    "ski_tnn": "AutoModelForMaskedLM",
    "ipa": "AutoModelForCausalLM",
    "poly_transformer": "AutoModelForSequenceClassification",
    "seqmix_hybrid": "AutoModelForCausalLM",
    "attention": "AutoModel",
    "images": "AutoModelForImageClassification",
}
BACKBONES = ["tnn", "fd_tnn", "attention"]
TRAINED = ["tnn", "fd_tnn", "seqmix_hybrid", "attention"]
"""The exports whose backbones are opened by default, beside their own heads, and those that are trained."""


def of_positions(number):
    torch.manual_seed(0)
    fields = {**TEXT, "position_embedding_type": "learned", "max_position_embeddings": number}
    return TNNForCausalLM(TNNConfig(**fields)).eval()


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
    more = {
        "end logits": answers,
        "odd sizes, no cache": perturbed(IPAForCausalLM(IPAConfig(**TEXT, rank=3, kernel_rank=5, use_cache=False))),
        **{f"{number} positions": of_positions(number) for number in (1, 2)},
    }
    for name, each in more.items():
        others[name] = (export(each, None, place / name.replace(" ", "-")), each, None)
    changed = copy.deepcopy(answers)
    with torch.no_grad():
        changed.qa_outputs.bias[1] += 100
    others["end logits"] = (others["end logits"][0], changed, None)

    # For each head that is opened the library reads the code anew, half a second or more. So each model has its own
    # head opened, some their backbones, one a head of other tasks and the heads that refuse it, and few are trained.
    backbones, trained = ([exported[name].folder.resolve() for name in names] for names in (BACKBONES, TRAINED))
    backbones.append(others["odd sizes, no cache"][0].resolve())

    def shorter_plan(folder, model, processor, place):
        plan = _plan(folder, model, processor, place)
        wanted = {plan["own_head"]} | ({"AutoModel"} if folder in backbones else set())
        if folder == exported["attention"].folder.resolve():  # the backbone alone, which is trained below a head
            wanted.add("AutoModelForCausalLM")
        if folder in (exported["tnn"].folder.resolve(), others["other refusal"][0].resolve()):
            wanted |= {"AutoModelForTokenClassification", *plan["refusals"]}
        heads = {name: found for name, found in plan["heads"].items() if name in wanted}
        return {**plan, "heads": heads, "train": folder in trained}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "_plan", shorter_plan)
        each = [*exported.values(), *others.values()]
        found = _open_elsewhere(each, sys.executable, {"tolerance": 0.0}, timeout=900)
    return dict(zip([*exported, *others], found, strict=True))


def check_reports(reports, backbones, trained):
    """Same values, same generated tokens, for some a training step, saved and opened again."""
    assert not [report for report in reports.values() if isinstance(report, str)]
    for name, report in reports.items():
        heads, own = report["heads"], OWN[name]
        assert heads[own] == "equal"
        assert heads.get("AutoModel") == ("equal" if name in backbones else None)
        head = "AutoModelForCausalLM" if own == "AutoModel" else own
        assert report.get("training") == (f"{head} trained, saved, reopened: equal" if name in trained else None)
        assert report.get("generate") == ("equal" if own.endswith("CausalLM") else None)
    assert reports["tnn"]["tokenizer"] == "equal"
    for name in ("fd_tnn", "images"):
        assert reports[name]["image_processor"].startswith(("equal", "not checked: this release"))
    assert set(reports["tnn"]["heads"].values()) >= {"opens"}
    assert "is_causal is True" in reports["tnn"]["heads"]["AutoModelForMaskedLM"]
    assert "reads images" in reports["tnn"]["heads"]["AutoModelForImageClassification"]


def test_every_family_stands_alone(exported, outcomes):
    """In one process for all."""
    check_reports({name: outcomes[name] for name in exported}, BACKBONES, TRAINED)


@pytest.mark.slow
def test_every_family_stands_alone_with_every_head_and_is_trained(exported):
    reports = dict(zip(exported, verify_all(list(exported.values()), train=True), strict=True))
    check_reports(reports, exported, exported)


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


@pytest.mark.slow
def test_a_model_of_some_positions(tmp_path):
    report = verify(export(of_positions(7), None, tmp_path / "few"), of_positions(7))
    assert report["heads"]["AutoModelForCausalLM"] == report["generate"] == "equal"


@pytest.mark.parametrize("number", [1, 2])
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
