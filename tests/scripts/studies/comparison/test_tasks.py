"""Tokenizers that comparisons train once and keep."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import datasets


def test_a_tokenizer_is_that_of_its_text_and_task(study: Callable[[str], ModuleType], tmp_path: Path) -> None:
    script = study("comparison.tasks")
    one, other = (datasets.Dataset.from_dict({"text": [text * 50]}) for text in ("aba abb ", "xyz xyy "))
    first = script._tokenizer("bpe:262", one, True, tmp_path)
    kept = list(tmp_path.iterdir())
    assert script._tokenizer("bpe:262", one, True, tmp_path).get_vocab() == first.get_vocab()
    assert list(tmp_path.iterdir()) == kept
    assert script._tokenizer("bpe:262", other, True, tmp_path).get_vocab() != first.get_vocab()
    assert script._tokenizer("bpe:262", one, False, tmp_path).mask_token is not None
    assert len(list(tmp_path.iterdir())) == 3
