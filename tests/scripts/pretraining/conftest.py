"""The script, a small text, and a cache of its own for each test."""

import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType

import datasets
import pytest

from tests.scripts.pretraining.inputs import SCRIPT


@pytest.fixture(scope="session")
def pretrain() -> ModuleType:
    specification = importlib.util.spec_from_file_location("pretrain", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    sys.modules["pretrain"] = module  # where the training arguments look up their types
    specification.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten documents in ten lines of JSON."""
    rng = random.Random(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "caf\u00e9", "\u20ac"]
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    lines = [json.dumps({"text": " ".join(rng.choices(words, k=60))}) for _ in range(10)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
