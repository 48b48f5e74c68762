"""The README's Python examples run as written, one after another."""

import re
from pathlib import Path

import pytest

import hf_seqmix

README = Path(hf_seqmix.__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_python_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model_cards").symlink_to(README.parent / "model_cards")
    examples = blocks("python")
    assert len(examples) >= 4
    exec(compile("\n".join(examples), str(README), "exec"), {})


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"(?:scripts|tests|hf_seqmix)/[\w./-]+\.\w+", README.read_text())))
)
def test_files_that_are_named_exist(path):
    assert (README.parent / path).is_file()
