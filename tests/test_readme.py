"""The README's Python examples run as written, and every page names files that exist."""

import re
from pathlib import Path

import pytest

import hf_seqmix

ROOT = Path(hf_seqmix.__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted(
    page
    for folder in (".github", "hf_seqmix", "scripts")
    for page in [*(ROOT / folder).rglob("*.md")]
    if not page.name.startswith("results")
)


def test_python_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model_cards").symlink_to(ROOT / "model_cards")
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) >= 4
    exec(compile("\n".join(examples), str(README), "exec"), {})


def test_the_first_page_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    text = page.read_text(encoding="utf-8")
    named = {
        ROOT / path for path in re.findall(r"(?<![\w/.-])(?:scripts|tests|hf_seqmix|model_cards)/[\w./-]*\w", text)
    }
    linked = {page.parent / path for path in re.findall(r"\]\(([\w./-]+)(?:#[\w-]*)?\)", text)}
    missing = sorted(str(path) for path in named | linked if not path.exists())
    assert not missing, f"{page.relative_to(ROOT)} names {', '.join(missing)}"
