"""The code of a family as two files, which need nothing but torch and transformers.

A person who is asked for `trust_remote_code=True` reads them. The library's loader of remote code copies files next to
each other and knows relative imports of siblings only. Operators and cache layers are registered under names that are
global to a process. Those of exported code carry a hash of the code, so that code of another version, or the package
itself, may be loaded beside it.
"""

import ast
import hashlib
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import cache as cache_layers
from .._version import __version__
from ..models.auto import AUTO_CLASSES, FAMILIES
from ..models.configuration import MIXER_CONFIGS, SeqMixConfig
from ..models.family import Family
from ..models.hybrid.configuration_hybrid import SeqMixHybridConfig
from ..models.mixers import MIXERS
from .concatenation.source_modules import Module, Package
from .concatenation.writing import File, Made, concatenate

__all__ = ["RemoteCode", "family_of", "remote_code"]

_PACKAGE = Package(Path(__file__).resolve().parents[1])
_OPERATORS = "hf_seqmix::"
_PROCESSOR: Module = ("models", "images", "processing")
_PROCESSOR_FILE = "image_processing_seqmix"


@dataclass(frozen=True)
class RemoteCode:
    """The code of a model.

    Args:
        files: name of a file -> its text.
        auto_map: name of an `Auto` class of the library -> "file.Class", for a configuration's `auto_map`.
        processor_map: the same for an image processor; empty for a model of text.
        version: hash of the code, which its operators and cache layers carry in their names.
    """

    files: dict[str, str]
    auto_map: dict[str, str]
    processor_map: dict[str, str]
    version: str


def family_of(config: Any) -> Family:
    """Return the family of a configuration.

    Raises:
        ValueError: for a configuration that is not one of the package's own families.
    """
    for family in FAMILIES:
        if type(config) is family.config_class:
            return family
    kind = type(config)
    known = ", ".join(family.config_class.__name__ for family in FAMILIES)
    raise ValueError(
        f"{kind.__module__}.{kind.__name__} is not a configuration of the package's own families ({known}), and only "
        "those can be exported. If it came from a repository's own code, import hf_seqmix before opening the "
        "repository."
    )


def remote_code(config: SeqMixConfig) -> RemoteCode:
    """Collect the code that a model needs, as two files; a model of images has a third, with its image processor.

    Args:
        config: of the model. A hybrid gets the mixers that it names.

    Raises:
        ValueError: for a configuration, or the mixer of a hybrid, that is not the package's own.
    """
    family = family_of(config)
    mixers = _mixers_of(config) if isinstance(config, SeqMixHybridConfig) else ()
    return _code(family.prefix, mixers, config.image_shape is not None)


@cache
def _code(prefix: str, mixers: tuple[str, ...], reads_images: bool) -> RemoteCode:
    family = next(family for family in FAMILIES if family.prefix == prefix)
    configuration, modeling = _configuration_of(family), _modeling_of(family)
    files = [
        # The configuration of a hybrid needs the configurations of its mixers, the model their modules.
        File(
            configuration[-1],
            (configuration,),
            names=tuple((_parts(MIXER_CONFIGS[name].__module__), MIXER_CONFIGS[name].__name__) for name in mixers),
        ),
        # A mixer is registered where the function that builds it stands.
        File(modeling[-1], (modeling,), tuple(_parts(MIXERS[name].__module__) for name in mixers)),
    ]
    if reads_images:
        files.append(File(_PROCESSOR_FILE, (_PROCESSOR,)))
    made = concatenate(_PACKAGE, files)
    version = hashlib.sha256("\0".join(each.text for each in made.values()).encode()).hexdigest()[:10]
    texts = {
        f"{name}.py": _header(each.modules, version) + "\n" + _with_version(each, version)
        for name, each in made.items()
    }
    _check_siblings(texts)

    auto_map = {"AutoConfig": f"{configuration[-1]}.{family.config_class.__name__}"}
    for suffix, auto_class in AUTO_CLASSES.items():
        if suffix in family.classes:
            auto_map[auto_class.__name__] = f"{modeling[-1]}.{family.classes[suffix].__name__}"
    processor_map = {"AutoImageProcessor": f"{_PROCESSOR_FILE}.SeqMixImageProcessor"} if reads_images else {}
    return RemoteCode(texts, auto_map, processor_map, version)


def _header(modules: Sequence[Module], version: str) -> str:
    """Return the comment that says what a file is made from."""
    name = _PACKAGE.folder.name
    sources = ", ".join("/".join(module) + ".py" for module in modules)
    lines = [
        f"Made from {name} {__version__}, which need not be installed. License: Apache-2.0.",
        "",
        "This file holds the modules named below, in the order of their imports. Definitions that no class of this",
        "repository needs are left out. Where modules share a name, the name of the module stands at its end.",
        f"Operators and cache layers have {version} in their names, a hash of the code of this repository.",
        f"To change the code, change the package and export again: `{name}.hub.export(model, processor, folder)`.",
        "",
        *textwrap.wrap(f"Modules: {sources}.", 115, break_on_hyphens=False, break_long_words=False),
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def _configuration_of(family: Family) -> Module:
    return _parts(family.config_class.__module__)


def _modeling_of(family: Family) -> Module:
    return _parts(family.classes["Model"].__module__)


def _parts(name: str) -> Module:
    package, *parts = name.split(".")
    if package != _PACKAGE.folder.name:
        raise ValueError(f"{name} is not a module of {_PACKAGE.folder.name}, whose own code alone can be exported.")
    return tuple(parts)


def _mixers_of(config: SeqMixHybridConfig) -> tuple[str, ...]:
    """Return the names of the mixers of a hybrid, but for its own, attention."""
    names = sorted({*config.layer_mixers, *(config.mixer_configs or {})})
    foreign = [name for name in names if MIXERS[name].__module__.split(".")[0] != _PACKAGE.folder.name]
    if foreign:
        raise ValueError(
            f"mixer_types names {', '.join(foreign)}, registered from outside the package: only its own mixers can be "
            "exported."
        )
    return tuple(name for name in names if name != "attention")


def _with_version(made: Made, version: str) -> str:
    """Put the hash into the names of operators and cache layers, wherever they stand as a string."""
    layers = {value for name in cache_layers.__all__ if isinstance(value := getattr(cache_layers, name), str)}
    lines = made.text.encode().split(b"\n")
    nodes = [node for node in ast.walk(made.tree) if isinstance(node, ast.Constant)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        if not isinstance(node.value, str):
            continue
        if node.value.startswith(_OPERATORS):
            new = f"hf_seqmix_{version}::" + node.value.removeprefix(_OPERATORS)
        elif node.value in layers:
            new = f"{node.value}_{version}"
        else:
            continue
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + f'"{new}"'.encode() + line[node.end_col_offset :]
    changed = b"\n".join(lines).decode()
    if _OPERATORS in changed or any(re.search(rf"\b{layer}\b", changed) for layer in layers):
        raise ValueError(f"a name with {_OPERATORS!r} or of a cache layer is not a plain string:\n{changed}")
    return changed


def _check_siblings(files: dict[str, str]) -> None:
    """Make sure that the library, which looks for imports by a regular expression, finds those that there are."""
    for name, text in files.items():
        # transformers.dynamic_module_utils.get_relative_imports
        seen = set(re.findall(r"^\s*import\s+\.(\S+)\s*$", text, flags=re.MULTILINE))
        seen |= set(re.findall(r"^\s*from\s+\.(\S+)\s+import", text, flags=re.MULTILINE))
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.level]
        meant = {node.module for node in nodes}
        if seen != meant or not all(f"{module}.py" in files for module in seen):
            raise ValueError(
                f"{name}: the library sees imports of {sorted(seen)}, but there are {sorted(map(str, meant))}."
            )
