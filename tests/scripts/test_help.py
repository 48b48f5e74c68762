"""Every command says what it does, and what each of its options is."""

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
LIBRARY = {"serve.py"}
"""Scripts whose command line is the library's."""
COMMANDS = [
    path.relative_to(SCRIPTS).as_posix()
    for path in sorted(SCRIPTS.rglob("*.py"))
    if path.name not in LIBRARY and "__main__" in path.read_text(encoding="utf-8")
]


class _ParserMade(BaseException):
    """Raised with the parser in place of reading a command line."""


def parser_of(command: str, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """Return the parser of a command, without its work."""

    def made(self: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise _ParserMade(self)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", made)
    # Not needed before the command line is read, and a long import where it is there.
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(SFTConfig=object, SFTTrainer=object))
    spec = importlib.util.spec_from_file_location(f"help_of_{Path(command).stem}", SCRIPTS / command)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)
    spec.loader.exec_module(script)
    with pytest.raises(_ParserMade) as stopped:
        script.main([])
    return stopped.value.args[0]


def silent(parser: argparse.ArgumentParser, command: str) -> Iterator[str]:
    """Yield what has no text, of a command and of all its subcommands."""
    if not parser.description:
        yield command
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, part in action.choices.items():
                yield from silent(part, f"{command} {name}")
        elif not action.help:
            yield f"{command} {(action.option_strings or [action.dest])[0]}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_help_text(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(silent(parser_of(command, monkeypatch), command)) == []
