"""The library's server: by itself it finds no class of another package; the example puts them where it looks."""

import runpy
from pathlib import Path

import pytest
from transformers.cli.serving import model_manager

from hf_seqmix import PolyTransformerForCausalLM
from hf_seqmix.models.auto import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = f"{ROOT / 'model_cards' / 'poly3-python-2m'}@main"


def test_the_server_opens_a_checkpoint(monkeypatch):
    manager = model_manager.ModelManager(device="cpu")
    with pytest.raises(AttributeError, match="has no attribute PolyTransformerForCausalLM"):
        manager._load_model(CHECKPOINT)
    for family in FAMILIES:
        for model_class in family.classes.values():
            monkeypatch.setattr(
                model_manager.transformers, model_class.__name__, None, raising=False
            )  # undone afterwards
    runpy.run_path(str(ROOT / "scripts" / "examples" / "serve.py"))
    assert isinstance(manager._load_model(CHECKPOINT), PolyTransformerForCausalLM)
