"""Tests of other people's tools: `@pytest.mark.ecosystem("trl")` names the packages that a test needs.

The default suite leaves a test out where one of its packages is not installed. A run that asks for the marker
(`-m ecosystem`, as `scripts/test.sh --ecosystem` does) leaves none out: there a missing package is a failure.
"""

from importlib.util import find_spec

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "ecosystem" in config.getoption("markexpr"):
        return
    missing = [
        item
        for item in items
        if any(find_spec(package) is None for mark in item.iter_markers("ecosystem") for package in mark.args)
    ]
    config.hook.pytest_deselected(items=missing)
    left_out = set(missing)
    items[:] = [item for item in items if item not in left_out]
