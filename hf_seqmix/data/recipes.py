"""Recipes: a training run as a file, read as if its lines had been typed on the command line."""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["parse_overrides", "read_recipe", "recipe_arguments"]


def read_recipe(path: str | Path, allowed: Mapping[str, Collection[str]]) -> dict[str, dict[str, Any]]:
    """
    Reads a YAML recipe of the form `section: {key: value}`.

    Args:
        path: the file.
        allowed: the sections there may be, and the keys of each.

    Raises:
        ValueError: if the file is missing or not YAML, or has a section or key that is not allowed; the allowed ones are
            listed.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no recipe {path}. Check the spelling; paths start from {Path.cwd()}.")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"The recipe {path} is not YAML: {error}") from error
    if not isinstance(recipe, dict) or not all(isinstance(section, dict) for section in recipe.values()):
        raise ValueError(
            f"The recipe {path} must map each of the sections {', '.join(allowed)} to its keys and values."
        )
    for section, values in recipe.items():
        if section not in allowed:
            raise ValueError(f"The recipe {path} has a section {section!r}; allowed are {', '.join(allowed)}.")
        unknown = sorted(set(map(str, values)) - set(allowed[section]))
        if unknown:
            raise ValueError(
                f"The section {section!r} of the recipe {path} has the unknown key {', '.join(map(repr, unknown))}; allowed"
                f" are {', '.join(sorted(allowed[section]))}."
            )
    return recipe


def recipe_arguments(recipe: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """
    The command-line arguments a recipe stands for; put before the user's own, these override it.

    A list becomes several values, `config_overrides` becomes `key=value` pairs, any other mapping becomes JSON, and a key
    without a value is left out.
    """
    arguments = []
    for values in recipe.values():
        for key, value in values.items():
            if key == "config_overrides":
                arguments += [f"--{key}", *(f"{name}={json.dumps(entry)}" for name, entry in value.items())]
            elif isinstance(value, list):
                arguments += [f"--{key}", *map(str, value)]
            elif isinstance(value, dict):
                arguments.append(f"--{key}={json.dumps(value)}")
            elif value is not None:
                arguments.append(f"--{key}={value}")
    return arguments


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """
    Reads `key=value` pairs, the later of equal keys winning; a value is JSON or else YAML, so `1e-6` is a number.

    Raises:
        ValueError: if a pair has no key or no equals sign.
    """
    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{pair!r} is no override; write key=value, for example hidden_size=256.")
        overrides[key] = _parse_value(value)
    return overrides


def _parse_value(text: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = yaml.safe_load(text)
    if isinstance(value, str):
        # YAML reads 1e-6, without a decimal point, as text; quoted or not, a number is meant.
        try:
            return float(value)
        except ValueError:
            return value
    return value
