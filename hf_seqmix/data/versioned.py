"""Functions of `datasets` maps whose caches end with the version of this package.

The library caches what a map returns by the name and the arguments of its function. The version is one of them here,
so that a release with other tokens, labels or byte counts does not read those of an earlier one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from .._version import __version__

__all__ = ["of_this_version"]


def of_this_version(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a function of a batch with some options given, known to the caches of `datasets` by the version, too."""
    return partial(_call, function, __version__, options)


def _call(function: Callable[..., Any], version: str, options: dict[str, Any], *batch: Any) -> Any:
    return function(*batch, **options)
