"""Recipes: a training run as a file, read as if its lines had been typed on the command line.

A recipe is YAML; a file that holds a `Run` as JSON is one, too.
"""

import dataclasses
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from ..models.configuration import SeqMixConfig
from .run import Run
from .spelling import allowed_names

__all__ = [
    "check_fields",
    "config_from_overrides",
    "merge_recipes",
    "parse_overrides",
    "read_recipe",
    "recipe_arguments",
    "run_from_recipe",
    "tokenizer_fields",
    "without_replaced",
]

Recipe = dict[str, dict[str, Any]]

FAMILIES = "families"

# A tenth of the time, where it is there.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_ONCE = "Give each key once: all values of a section below one heading."


def read_recipe(
    path: str | Path, allowed: Mapping[str, Collection[str]] | None = None, family: str | None = None
) -> Recipe:
    """Read a YAML recipe of the form `section: {key: value}`, or a `Run` as JSON.

    A recipe for several families holds what they share in its sections, and what one family adds or changes in
    `families: {name: {section: {key: value}}}`. A family's value takes the place of the shared value, an empty value
    leaves the key out; `config_overrides` are merged field by field.

    Args:
        path: the file.
        allowed: the sections there may be, and the keys of each; None for any.
        family: which of its families, if it has any.

    Returns:
        The sections, those of the family merged into the shared ones.

    Raises:
        ValueError: the file is missing or not YAML, has a section or key twice or one that is not allowed, or the
            family is unknown, missing or too much; the message lists what is allowed.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no recipe {path}. Check the spelling; paths start from {Path.cwd()}.")
    try:
        text = path.read_text(encoding="utf-8")
        recipe = json.loads(text, object_pairs_hook=_json_object) if path.suffix == ".json" else _load_yaml(text)
    except (yaml.YAMLError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the recipe {path} is not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise ValueError(f"the recipe {path} could not be read: {error}") from error
    if isinstance(recipe, dict) and "task" in recipe:
        run = Run.from_json(recipe, str(path))
        training = {**run.training, "seed": run.seed}
        recipe = {"model": dict(run.model), "data": dict(run.data), "training": training}
    families = recipe.pop(FAMILIES, {}) if isinstance(recipe, dict) else {}
    if not isinstance(families, dict):
        raise ValueError(f"the section {FAMILIES!r} of the recipe {path} must map names of families to sections.")
    for sections in (recipe, *families.values()):
        _check_sections(path, sections, allowed)
    if family is None and families:
        raise ValueError(f"the recipe {path} is for several families: choose one of {', '.join(families)}.")
    if family is not None and family not in families:
        known = f"it has {', '.join(families)}" if families else "it has none"
        raise ValueError(f"the recipe {path} has no family {family!r}; {known}.")
    return recipe if family is None else merge_recipes(recipe, families[family])


def _load_yaml(text: str) -> Any:
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        _check_keys(node, set())
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _check_keys(node: yaml.Node | None, seen: set[yaml.Node]) -> None:
    """Raise a `ValueError` where a key stands twice, of which YAML takes the last; merged keys (`<<`) may be replaced.

    Args:
        node: what is written, before keys are merged.
        seen: nodes that were checked, which aliases repeat.
    """
    if not isinstance(node, yaml.CollectionNode) or node in seen:
        return
    seen.add(node)
    if not isinstance(node, yaml.MappingNode):
        for entry in node.value:
            _check_keys(entry, seen)
        return
    lines: dict[tuple[str, str], int] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise ValueError(f"the key {key.value!r} stands twice, in lines {lines[name]} and {line}. {_ONCE}")
            lines[name] = line
        _check_keys(value, seen)


def _json_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the key {twice[0]!r} stands twice. {_ONCE}")
    return dict(pairs)


def _check_sections(path: Path, recipe: Any, allowed: Mapping[str, Collection[str]] | None) -> None:
    if not isinstance(recipe, dict) or not all(isinstance(section, dict) for section in recipe.values()):
        of = f"each of the sections {', '.join(allowed)}" if allowed else "its sections"
        raise ValueError(f"the recipe {path} must map {of} to keys and values.")
    for section, values in recipe.items():
        overrides = values.get("config_overrides")
        if overrides is not None and not isinstance(overrides, dict):
            raise ValueError(
                f"config_overrides in the section {section!r} of the recipe {path} must map fields to values, such as "
                f"{{hidden_size: 256}}; given {overrides!r}."
            )
        for key, fields in values.items():
            for name, value in fields.items() if isinstance(fields, dict) else ():
                _check_json(value, f"{name} of {key} in the section {section!r} of the recipe {path}")
    if allowed is None:
        return
    for section, values in recipe.items():
        if section not in allowed:
            raise ValueError(f"the recipe {path} has a section {section!r}; {allowed_names([section], list(allowed))}")
        unknown = sorted(set(map(str, values)) - set(allowed[section]))
        if unknown:
            raise ValueError(
                f"the section {section!r} of the recipe {path} has the unknown key {', '.join(map(repr, unknown))}; "
                f"{allowed_names(unknown, sorted(allowed[section]))}"
            )


def _check_json(value: Any, name: str) -> None:
    try:
        json.dumps(value)
    except TypeError as error:
        raise ValueError(
            f"{name} is {value!r}; allowed are numbers, text, true, false, null, lists and mappings by name. Put text "
            "that looks like a date in quotes."
        ) from error


def merge_recipes(*recipes: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """Return the sections of all recipes, the later of equal keys winning; `config_overrides` merge field by field."""
    merged: Recipe = {}
    for recipe in recipes:
        for section, values in recipe.items():
            target = merged.setdefault(section, {})
            for key, value in values.items():
                if key == "config_overrides" and value is not None:
                    value = {**(target.get(key) or {}), **value}
                target[key] = value
    return merged


def run_from_recipe(task: str, recipe: Mapping[str, Mapping[str, Any]], seed: int) -> Run:
    """Return a recipe as a `Run`: without keys that have no value, with numbers for what YAML reads as text."""
    sections = {
        section: {key: _plain_value(value) for key, value in recipe.get(section, {}).items() if value is not None}
        for section in ("model", "data", "training")
    }
    sections["training"].pop("seed", None)
    return Run(task, seed=seed, **sections)


def _plain_value(value: Any) -> Any:
    """Return numbers for texts such as 1e-6, which YAML reads as text for want of a decimal point."""
    if isinstance(value, dict):
        return {name: _plain_value(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_plain_value(entry) for entry in value]
    return float(value) if isinstance(value, str) and _lacks_a_point(value) else value


def _lacks_a_point(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and isinstance(yaml.safe_load(text), str)  # "64" was put in quotes
    except ValueError:
        return False


def without_replaced(recipe: Recipe, argv: Sequence[str], replaces: Mapping[str, Collection[str]]) -> Recipe:
    """Return the recipe without the keys whose place something on the command line takes.

    Args:
        recipe: as [`read_recipe`] gives it.
        argv: the command line.
        replaces: name of an argument -> keys of a recipe that make no sense beside it.
    """
    given = {
        argument.partition("=")[0].lstrip("-").replace("-", "_") for argument in argv if argument.startswith("--")
    }
    replaced = {key for argument, keys in replaces.items() if argument in given for key in keys}
    return {
        section: {key: value for key, value in values.items() if key not in replaced}
        for section, values in recipe.items()
    }


def recipe_arguments(recipe: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the command-line arguments of a recipe, to be put before the user's own, which override them.

    A list becomes several values, `config_overrides` becomes `key=value` pairs, any other mapping becomes JSON, and a
    key without a value, or with an empty one, is left out.
    """
    arguments = []
    for values in recipe.values():
        for key, value in values.items():
            if value is None or value in ({}, []):
                continue
            if key == "config_overrides":
                arguments += [f"--{key}", *(f"{name}={json.dumps(entry)}" for name, entry in value.items())]
            elif isinstance(value, list):
                arguments += [f"--{key}", *map(str, value)]
            elif isinstance(value, dict):
                arguments.append(f"--{key}={json.dumps(value)}")
            else:
                arguments.append(f"--{key}={value}")
    return arguments


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` pairs, the later of equal keys winning; a value is JSON or else YAML, so `1e-6` is a number.

    Raises:
        ValueError: a pair has no key or no equals sign, or its value is neither JSON nor YAML.
    """
    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{pair!r} is no override; write key=value, for example hidden_size=256.")
        try:
            overrides[key] = _parse_value(value)
        except yaml.YAMLError as error:
            raise ValueError(
                f"the value of {pair!r} is neither JSON nor YAML; is a bracket or a quote missing?"
            ) from error
    return overrides


_OF_THE_LIBRARY = {"architectures", "auto_map", "torch_dtype", "transformers_version"}
"""What the library writes into files of configurations beside the fields."""


def check_fields(model_type: str, fields: Collection[str]) -> set[str]:
    """Return the fields of a configuration.

    Args:
        model_type: any that `AutoConfig` knows.
        fields: that it must have.

    Raises:
        ValueError: the model type or a field is unknown.
    """
    if model_type not in CONFIG_MAPPING:
        known = "allowed are the families of hf_seqmix and the model types of transformers, for example tnn, "
        known += "seqmix_hybrid, llama, bert."
        raise ValueError(
            f"there is no model type {model_type!r}; {allowed_names([model_type], list(CONFIG_MAPPING), known)}"
        )
    config_class = CONFIG_MAPPING[model_type]
    allowed = {entry.name for entry in dataclasses.fields(config_class)} | set(config_class.attribute_map)
    allowed.add("num_labels")  # a property of every configuration
    if unknown := sorted(set(fields) - allowed):
        raise ValueError(
            f"a {model_type} configuration has no field {', '.join(map(repr, unknown))}; "
            f"{allowed_names(unknown, sorted(allowed))}"
        )
    return allowed


def config_from_overrides(
    model_type: str, overrides: Mapping[str, Any], derived: Mapping[str, Any], kept: Mapping[str, Any] | None = None
) -> PreTrainedConfig:
    """Return a configuration of a model type.

    Args:
        model_type: any that `AutoConfig` knows.
        overrides: its fields.
        derived: what else is known; used where the type has such a field and it is not overridden.
        kept: values of a file, used where nothing else says so. A type of transformers reads old names there, too; one
            of this package has no others than its fields.

    Raises:
        ValueError: the model type, a field of `overrides` or, of this package, one of `kept` is unknown, or a value is
            refused.
    """
    allowed = check_fields(model_type, overrides)
    known = {name: value for name, value in derived.items() if name in allowed}
    if issubclass(CONFIG_MAPPING[model_type], SeqMixConfig):
        check_fields(model_type, [name for name in kept or () if name not in _OF_THE_LIBRARY and name[0] != "_"])
    try:
        return AutoConfig.for_model(model_type, **{**(kept or {}), **known, **overrides})
    except StrictDataclassError as error:
        raise ValueError(f"the {model_type} configuration is refused: {error}") from error


def tokenizer_fields(tokenizer: PreTrainedTokenizerBase, length: int) -> dict[str, Any]:
    """Return what a model from scratch takes from its tokenizer and its longest input in tokens."""
    return {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        "max_position_embeddings": length,
    }


def _parse_value(text: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = yaml.safe_load(text)
    return _plain_value(value)
