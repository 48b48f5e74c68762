"""The code of a family as one flat folder that needs nothing but torch and transformers.

The library's loader of remote code copies files next to each other and knows relative imports of siblings only. So every
module that a family needs becomes one file, and its imports are rewritten. Operators and cache layers are registered under
names that are global to a process; those of exported code carry a hash of the code, so that code of another version, or the
package itself, may be loaded beside it.
"""

import ast
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import cache
from .._version import __version__
from ..models.auto import AUTO_CLASSES, FAMILIES
from ..models.configuration import SeqMixConfig
from ..models.family import Family
from ..models.hybrid.configuration_hybrid import SeqMixHybridConfig
from .import_graph import PACKAGE_FOLDER, Module, import_closure, relative_imports, source_of

__all__ = ["RemoteCode", "family_of", "remote_code"]

_LINE_LENGTH = 119
_OPERATORS = "hf_seqmix::"
_PROCESSOR: Module = ("models", "image_processing")


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
        "those can be exported. If it came from a repository's own code, import hf_seqmix before opening the repository."
    )


def remote_code(config: SeqMixConfig) -> RemoteCode:
    """Collect the modules that a model needs, and flatten them.

    Args:
        config: of the model. A hybrid gets the mixers that it names, a model of images its image processor.

    Raises:
        ValueError: for a configuration, or the mixer of a hybrid, that is not the package's own.
    """
    family = family_of(config)
    configuration, modeling = _parts(family.config_class.__module__), _parts(family.classes["Model"].__module__)
    mixers = _mixers_of(config) if isinstance(config, SeqMixHybridConfig) else []
    models = [(_parts(mixer.classes["Model"].__module__), mixer.classes["Model"].__name__) for mixer in mixers]
    reads_images = config.image_shape is not None
    modules = import_closure(
        [configuration, modeling, *(module for module, _ in models), *([_PROCESSOR] if reads_images else [])]
    )

    texts = {module: _flatten(module) for module in modules}
    if mixers:
        # The configuration needs the mixers' configurations, the model their models: each file has a table of its own.
        configs = [(_parts(mixer.config_class.__module__), mixer.config_class.__name__) for mixer in mixers]
        texts[configuration] += "\n\n" + _imports_for_effect(configs)
        texts[modeling] += "\n\n" + _imports_for_effect(models)
    version = hashlib.sha256("\0".join(texts[module] for module in modules).encode()).hexdigest()[:10]
    files = {f"{_flat_name(module)}.py": _with_version(texts[module], version) for module in modules}
    _check_siblings(files)

    auto_map = {"AutoConfig": f"{_flat_name(configuration)}.{family.config_class.__name__}"}
    for suffix, auto_class in AUTO_CLASSES.items():
        if suffix in family.classes:
            auto_map[auto_class.__name__] = f"{_flat_name(modeling)}.{family.classes[suffix].__name__}"
    processor_map = {"AutoImageProcessor": f"{_flat_name(_PROCESSOR)}.SeqMixImageProcessor"} if reads_images else {}
    return RemoteCode(files, auto_map, processor_map, version)


def _parts(name: str) -> Module:
    package, *parts = name.split(".")
    if package != PACKAGE_FOLDER.name:
        raise ValueError(f"{name} is not a module of {PACKAGE_FOLDER.name}, whose own code alone can be exported.")
    return tuple(parts)


def _mixers_of(config: SeqMixHybridConfig) -> list[Family]:
    """Return the families of the mixers that a hybrid names, but for attention, which is its own."""
    families = {family.config_class.model_type: family for family in FAMILIES if family.build_mixer is not None}
    names = {*config.layer_mixers, *(config.mixer_configs or {})} - {"attention"}
    foreign = sorted(names - set(families))
    if foreign:
        raise ValueError(
            f"mixer_types names {', '.join(foreign)}, registered from outside the package: only its own mixers can be exported."
        )
    return [families[name] for name in sorted(names)]


def _imports_for_effect(names: Iterable[tuple[Module, str]]) -> str:
    return "".join(f"from .{_flat_name(module)} import {name}  # noqa: E402, F401\n" for module, name in names)


def _flat_name(module: Module) -> str:
    """Name a file: "modeling_tnn", as users look for it, or "seqmix_ops_toeplitz"."""
    if module == _PROCESSOR:
        return "image_processing_seqmix"
    if module[-1].startswith(("configuration_", "modeling_")):
        return module[-1]
    return "_".join(["seqmix", *(part.strip("_") for part in module)])


def _flatten(module: Module) -> str:
    """Return the source of a module with its relative imports as those of files in one folder."""
    lines = source_of(module).splitlines()
    for statement in reversed(relative_imports(module)):
        lines[statement.first_line - 1 : statement.last_line] = _flat_imports(statement.names, " " * statement.indent)
    origin = "/".join((PACKAGE_FOLDER.name, *module))
    header = (
        f"# {origin}.py of {PACKAGE_FOLDER.name} {__version__}, as one file of a flat folder. Licence: Apache-2.0.\n"
    )
    text = header + "\n".join(lines) + "\n"
    ast.parse(text)
    return text


def _flat_imports(names: Iterable[tuple[Module, str, str]], indent: str) -> list[str]:
    by_module: dict[Module, list[str]] = {}
    for module, name, given in names:
        by_module.setdefault(module, []).append(name if name == given else f"{name} as {given}")
    lines = []
    for module, given_names in sorted(by_module.items(), key=lambda item: _flat_name(item[0])):
        line = f"{indent}from .{_flat_name(module)} import {', '.join(given_names)}"
        if len(line) <= _LINE_LENGTH:
            lines.append(line)
        else:
            begin, end = f"{indent}from .{_flat_name(module)} import (", f"{indent})"
            lines += [begin, *(f"{indent}    {name}," for name in given_names), end]
    return lines


def _with_version(text: str, version: str) -> str:
    """Put the hash into the names of operators and cache layers, wherever they stand as a string."""
    layers = {value for name in cache.__all__ if isinstance(value := getattr(cache, name), str)}
    lines = text.encode().split(b"\n")
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
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
    ast.parse(changed)
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
