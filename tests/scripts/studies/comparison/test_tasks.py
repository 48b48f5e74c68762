"""Tokenizers that comparisons train once and keep."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
from transformers import PreTrainedTokenizerBase


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


def test_a_tokenizer_that_was_not_saved_whole_is_made_again(
    study: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, text = study("comparison.tasks"), datasets.Dataset.from_dict({"text": ["aba abb " * 50]})
    whole = PreTrainedTokenizerBase.save_pretrained

    def killed(self: Any, folder: Path, **options: Any) -> None:
        whole(self, folder, **options)
        (Path(folder) / "tokenizer.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(PreTrainedTokenizerBase, "save_pretrained", killed)
    with pytest.raises(KeyboardInterrupt):
        script._tokenizer("bpe:262", text, True, tmp_path)
    monkeypatch.undo()
    made = script._tokenizer("bpe:262", text, True, tmp_path)
    assert script._tokenizer("bpe:262", text, True, tmp_path).get_vocab() == made.get_vocab()
