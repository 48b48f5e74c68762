"""The README's Python examples run as written; pages name files that exist, and options that their scripts take."""

import argparse
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import hf_seqmix
from hf_seqmix.training import arguments

ROOT = Path(hf_seqmix.__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted(
    page
    for folder in (".github", "hf_seqmix", "scripts")
    for page in [*(ROOT / folder).rglob("*.md")]
    if not page.name.startswith("results")
)
OF_OTHERS = {"sft.py", "serve.py"}  # import trl, or what serves; the suite has neither


class Accepted(BaseException):
    """A command line has been read; no script catches this."""


def commands(page: Path) -> list[list[str]]:
    """Return the words of each command of a page that starts a script of Python, from the script on."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = []
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        scripts = [place for place, word in enumerate(words) if re.fullmatch(r"scripts/[\w/]+\.py", word)]
        if scripts and "$" not in line and "TEXT" not in words and Path(words[scripts[0]]).name not in OF_OTHERS:
            found.append(words[scripts[0] :])
    return found


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


def anchors(page):
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_sections_that_are_linked_exist(page):
    links = re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text(encoding="utf-8"))
    missing = [
        f"{path}#{anchor}" for path, anchor in links if anchor not in anchors(page.parent / path if path else page)
    ]
    assert not missing, f"{page.relative_to(ROOT)} links {', '.join(missing)}"


@pytest.mark.parametrize(
    "page", [p for p in [README, *PAGES] if commands(p)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_are_accepted(page, tmp_path, monkeypatch, capsys):
    def stopped(read: Callable[..., Any]) -> Callable[..., NoReturn]:
        def wrapper(*given: Any, **named: Any) -> NoReturn:
            read(*given, **named)
            raise Accepted

        return wrapper

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stopped(argparse.ArgumentParser.parse_args))
    monkeypatch.setattr(arguments, "read_arguments", stopped(arguments.read_arguments))
    monkeypatch.chdir(tmp_path)
    for folder in ("scripts", "model_cards"):
        Path(folder).symlink_to(ROOT / folder)
    replaced = {"RECIPE": "scripts/recipes/python-2m/tnn.yaml", "cuda": "cpu"}
    for command in commands(page):
        monkeypatch.setattr(sys, "argv", [replaced.get(word, word) for word in command])
        try:
            runpy.run_path(command[0], run_name="__main__")
        except Accepted:
            continue
        except SystemExit as end:
            if end.code == 0 and "--help" in command:
                continue
            pytest.fail(f"{shlex.join(command)}: {end.code} {capsys.readouterr().err}")
        pytest.fail(f"{shlex.join(command)} ended before its arguments were read")
