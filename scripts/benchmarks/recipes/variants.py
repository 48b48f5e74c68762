"""Variants of the benchmark `recipes`: their fields are training arguments or fields of the configuration."""

import argparse
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hf_seqmix.training import check_fields, parse_overrides
from hf_seqmix.training.spelling import allowed_names
from hf_seqmix.training.training_arguments import SeqMixTrainingArguments

from ..jobs import LENGTHS
from .report import PLAIN

OWN = (*LENGTHS, "eval_strategy", "eval_steps", "save_steps", "seed")
"""Training arguments that the benchmark sets, in each run the same or for each run its own."""


def parse_variants(given: Sequence[Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Return name -> fields and values of the variants of a command line.

    Raises:
        ValueError: two have one name, one has a name that is no folder's, no field, or one that the benchmark sets.
    """
    variants: dict[str, dict[str, Any]] = {}
    for name, *fields in given:
        if name in variants or name == PLAIN or "=" in name:
            raise ValueError(f"{name!r} cannot be the name of a variant here: give each a name of its own, first.")
        if name.strip() in ("", ".", "..") or not {"/", "\\"}.isdisjoint(name):
            raise ValueError(
                f"{name!r} cannot be the name of a variant, by which its folder of runs is called: give one of "
                "letters and digits, without / and \\."
            )
        if not fields:
            raise ValueError(f"the variant {name} changes nothing: give FIELD=VALUE after its name.")
        variants[name] = parse_overrides(fields)
        if fixed := [field for field in OWN if field in variants[name]]:
            raise ValueError(f"the variant {name} says {', '.join(fixed)}, which the benchmark itself says.")
    return variants


def refuse_hidden(arguments: argparse.Namespace, variants: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse what the command line says for every run where the benchmark or a variant says it, too: it would win.

    Raises:
        ValueError: there is such a field.
    """
    for option, given in (("--training", arguments.training), ("--config-overrides", arguments.config_overrides)):
        fields = parse_overrides(given or [])
        own = {"the benchmark itself": OWN, **{f"the variant {name}": [*said] for name, said in variants.items()}}
        for who, said in own.items():
            if both := [field for field in said if field in fields]:
                raise ValueError(f"{option} says {', '.join(both)} for every run, and {who} says it: leave one out.")


def training_names(arguments: argparse.Namespace) -> set[str]:
    """Return the training arguments of pretrain.py, all others of which are fields of a configuration."""
    kinds = (SeqMixTrainingArguments, arguments.scripts["pretrain.py"].RunArguments)
    return {entry.name for kind in kinds for entry in dataclasses.fields(kind)}


def check_variants(
    arguments: argparse.Namespace,
    models: Mapping[str, Mapping[str, Mapping[str, Any]]],
    variants: Mapping[str, Mapping[str, Any]],
) -> None:
    """Refuse fields of variants that a recipe's model has not.

    Raises:
        ValueError: a field is neither a training argument nor a field of the configuration.
    """
    training = training_names(arguments)
    for recipe in models.values():
        model_type = (recipe.get("model") or {}).get("model_type")
        if model_type is None:  # a configuration from a file
            continue
        allowed = training | check_fields(model_type, ())
        for variant, fields in variants.items():
            if unknown := sorted(set(fields) - allowed):
                hint = allowed_names(unknown, sorted(allowed), "pretrain.py --help lists the former.")
                raise ValueError(
                    f"the variant {variant} says {', '.join(unknown)}: no training argument, and no field of a "
                    f"{model_type} configuration; {hint}"
                )


def sections_of(fields: Mapping[str, Any], known: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the fields of a variant as a recipe: training arguments, and fields of the configuration.

    Args:
        fields: of the variant.
        known: names of training arguments.
    """
    training = {name: value for name, value in fields.items() if name in known}
    overrides = {name: value for name, value in fields.items() if name not in known}
    return {"training": training, **({"model": {"config_overrides": overrides}} if overrides else {})}
