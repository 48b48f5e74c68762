"""The scripts of studies as modules."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "studies"


@pytest.fixture(scope="module")
def study() -> Iterator[Callable[[str], ModuleType]]:
    """What imports a script by its name, with those beside it in reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module
