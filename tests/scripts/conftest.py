"""Pictures are drawn for the tests that look at them: drawing one takes longer than most runs here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def pictures() -> None:
    """Asked for by tests that look at pictures; those of other tests are empty files."""


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if "pictures" not in request.fixturenames:
            patch.setattr(Figure, "savefig", lambda _, path: Path(path).touch())
        yield
