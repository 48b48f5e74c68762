"""Everything offline, seeded, and on one thread a test process."""

import gc
import os
import sys
from collections import Counter
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
# Small tensors: threads that wait for each other cost ten times what they save.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
import transformers

transformers.utils.logging.disable_progress_bar()
if not torch.cuda.is_available():
    # Kernels run in Triton's interpreter, which has to be chosen before anything imports Triton.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def _place(params: dict[str, Any], axis: pytest.Mark) -> int:
    """Return which of an axis's cases a test has; pytest's own `indices` count the combinations of all axes."""
    names, cases = axis.args
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    own = [id(params[name]) for name in names]
    for place, case in enumerate(cases):
        values = case.values if isinstance(case, type(pytest.param())) else [case] if len(names) == 1 else case
        if [id(value) for value in values] == own:
            return place
    raise AssertionError(f"{names} are none of the cases {list(cases)}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test marked `one_in(n)` make all but one in n slow ones, where kernels are interpreted.

    On one axis every n-th case that is not slow already stays. On several axes those cases stay whose places sum to a
    multiple of n. Each pair of values of two axes then runs, where a third axis has as many values as n.
    """
    if torch.cuda.is_available():
        return
    places: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is None or item.get_closest_marker("slow") is not None:
            continue
        assert isinstance(item, pytest.Function)
        axes = list(item.iter_markers("parametrize"))
        test = item.nodeid.partition("[")[0]
        if len(axes) > 1:
            place = sum(_place(item.callspec.params, axis) for axis in axes)
        else:
            place = places[test]
            places[test] += 1
        if place % mark.args[0]:
            item.add_marker(pytest.mark.slow)


_frozen = 0
"""How many modules there were when garbage was last collected and the rest left out."""


def _freeze() -> None:
    global _frozen
    _frozen = len(sys.modules)
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Leave libraries and collected tests out of garbage collections, one of which each `Trainer.train` asks for."""
    _freeze()
    # Tracing makes objects by the million, few of which are garbage.
    gc.set_threshold(100_000, 50, 1000)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave out what tests imported, too, and between files what they keep, of which tracing makes much."""
    between = nextitem is not None and nextitem.path != item.path
    if len(sys.modules) > _frozen + 100 or (between and len(gc.get_objects()) > 200_000):
        _freeze()


def pytest_unconfigure() -> None:
    """Let libraries clean up at the end as they would."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill memory that is allocated without a value with NaN, so that an entry never written is seen."""
    empty_like, new_empty = torch.empty_like, torch.Tensor.new_empty

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: poison(empty_like(*args, **kwargs)))
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **kwargs: poison(new_empty(*args, **kwargs)))
