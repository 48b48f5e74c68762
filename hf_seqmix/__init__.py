"""Sequence mixers other than softmax attention, as ordinary Hugging Face models.

Importing the package registers its configurations, models and image processor with the `Auto` classes. `__init__.pyi`
lists the public names and where each is defined; a name is loaded when it is first asked for.
"""

import ast
import importlib
import pkgutil
from typing import Any

_ORIGINS = {
    alias.asname or alias.name: (node.module or "", alias.name)
    for node in ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"").body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Public name -> (module that defines it, its name there); the module is "" for a part of the package itself."""

__all__ = sorted(name for name, (module, _) in _ORIGINS.items() if module)


def __getattr__(name: str) -> Any:
    if name not in _ORIGINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, original = _ORIGINS[name]
    loaded = importlib.import_module(f".{module or original}", __name__)
    globals()[name] = getattr(loaded, original) if module else loaded
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_ORIGINS})


importlib.import_module(".models.auto", __name__)  # registers every family
