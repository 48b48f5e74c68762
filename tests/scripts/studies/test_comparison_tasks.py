"""Tokenizers that comparisons train once and keep."""

import importlib
from pathlib import Path
from typing import Any

import datasets
import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "studies"


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("comparison_tasks")


def test_a_tokenizer_is_that_of_its_text_and_task(script: Any, tmp_path: Path) -> None:
    one, other = (datasets.Dataset.from_dict({"text": [text * 50]}) for text in ("aba abb ", "xyz xyy "))
    first = script._tokenizer("bpe:262", one, True, tmp_path)
    kept = list(tmp_path.iterdir())
    assert script._tokenizer("bpe:262", one, True, tmp_path).get_vocab() == first.get_vocab()
    assert list(tmp_path.iterdir()) == kept
    assert script._tokenizer("bpe:262", other, True, tmp_path).get_vocab() != first.get_vocab()
    assert script._tokenizer("bpe:262", one, False, tmp_path).mask_token is not None
    assert len(list(tmp_path.iterdir())) == 3
