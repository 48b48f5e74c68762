"""Models of a family as hybrids and back, and other mixers in the place of some of a trained model."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig

from ...modules.glu import GatedLinearUnit
from ..auto import IMAGE_HEADS, TEXT_HEADS
from ..backbone import SeqMixModel
from ..block import build_feed_forward
from ..configuration import SeqMixConfig
from ..family import KNOWN_FAMILIES, Family
from ..pretrained import SeqMixPreTrainedModel
from .configuration_hybrid import SeqMixHybridConfig
from .modeling_hybrid import HYBRID_FAMILY

__all__ = ["from_hybrid", "replace_mixers", "to_hybrid"]

# What the library keeps with a configuration that belongs to the head or the weights, and not to a family.
_OF_THE_LIBRARY = ("dtype", "id2label", "label2id", "problem_type")


def to_hybrid(model: SeqMixPreTrainedModel) -> SeqMixPreTrainedModel:
    """Return the hybrid all of whose layers have the mixer of a family's model, with copies of its weights.

    Parameters have the same names, and outputs are the same, bit for bit: `TNNForCausalLM` becomes
    `SeqMixHybridForCausalLM`. A distilled decoder, the dtype and the device are kept, and so are the implementation of
    attention, gradient checkpointing, and which weights are trained (`requires_grad`).

    Args:
        model: of any family, with any head.

    Raises:
        TypeError: for anything but a model.
        ValueError: for a hybrid, for a model of another package or with adapters, and for what hybrids do not have: a
            feed-forward other than the gated linear unit (IPA; degree d without one), iterations of one block, mixing
            along the two axes of an image.
    """
    _check_model(model)
    config = model.config
    if isinstance(config, SeqMixHybridConfig):
        raise ValueError(f"{type(model).__name__} is a hybrid already: use it as it is.")
    _check_blocks(config)
    mixers = {config.family_type: _fields_of_mixer(config)}
    hybrid = SeqMixHybridConfig(**_shared_fields(config), mixer_types=list(config.layer_mixers), mixer_configs=mixers)
    return _with_weights(HYBRID_FAMILY, model, hybrid)


def from_hybrid(model: SeqMixPreTrainedModel) -> SeqMixPreTrainedModel:
    """Return the model of a family with copies of the weights of a hybrid whose layers all have its mixer.

    The inverse of [`to_hybrid`], with the same outputs, bit for bit.

    Args:
        model: a hybrid, with any head that the family has.

    Raises:
        TypeError: for anything but a model.
        ValueError: for a model that is no hybrid or has adapters, whose layers have several mixers, whose mixer is of
            no family ("attention", "short_conv"), or whose family has another feed-forward than hybrids (IPA) or not
            this head.
    """
    _check_model(model)
    config = model.config
    if not isinstance(config, SeqMixHybridConfig):
        raise ValueError(f"{type(model).__name__} is no hybrid, but a model of a family: use it as it is.")
    names = sorted(set(config.layer_mixers))
    if len(names) > 1:
        raise ValueError(f"the layers have the mixers {', '.join(names)}; a family has one mixer in all layers.")
    families = {name: family for name, family in KNOWN_FAMILIES.items() if family is not HYBRID_FAMILY}
    if names[0] not in families:
        raise ValueError(
            f"the mixer {names[0]!r} is of no family, but of hybrids alone; families: {', '.join(sorted(families))}."
        )
    family = families[names[0]]
    own = (config.mixer_configs or {}).get(names[0], {})
    converted = family.config_class(**_shared_fields(config), **own)
    _check_blocks(converted)
    return _with_weights(family, model, converted)


def replace_mixers(
    model: SeqMixPreTrainedModel,
    replacements: Mapping[str | int, str],
    mixer_configs: Mapping[str, Mapping[str, Any]] | None = None,
) -> SeqMixPreTrainedModel:
    """Return a hybrid with other mixers in some layers of a model, and copies of all other weights.

    New mixers are drawn as the configuration says; with `zero_init_outputs` they begin by adding nothing. Norms,
    feed-forwards and convolutions before the mixers stay. The mixer "short_conv" has no convolution before it: a layer
    that gets it loses its own, and one that had it gets a new one. What [`to_hybrid`] keeps is kept; new weights are
    trained. The model has to be healed by a short training.

    Args:
        model: a hybrid, or a model of a family that [`to_hybrid`] takes; not distilled.
        replacements: name of a mixer, or number of a layer, -> name of the mixer that takes its place. A number counts
            before a name.
        mixer_configs: fields of new mixers where they differ from their defaults. Where layers of the same mixer stay,
            a new one has their fields.

    Raises:
        TypeError: for anything but a model.
        ValueError: for a model of another package or with adapters, where nothing is replaced, a name or number is of
            no layer, a new mixer does not fit the model, or its fields would change layers that stay.
    """
    _check_model(model)
    hybrid = model if isinstance(model.config, SeqMixHybridConfig) else to_hybrid(model)
    config = hybrid.config
    assert isinstance(config, SeqMixHybridConfig)
    before = config.layer_mixers
    if not isinstance(replacements, Mapping) or not all(isinstance(name, str) for name in replacements.values()):
        raise ValueError(
            f"replacements is {replacements!r}; it must map a mixer, or the number of a layer, to the name of a mixer."
        )
    places = {*before, *range(len(before))}
    if unknown := [place for place in replacements if isinstance(place, bool) or place not in places]:
        raise ValueError(
            f"replacements names {', '.join(map(repr, unknown))}, but the layers are {', '.join(before)}: name a "
            f"mixer among them, or a layer from 0 to {len(before) - 1}."
        )
    after = [replacements.get(layer, replacements.get(name, name)) for layer, name in enumerate(before)]
    changed = [layer for layer, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    if not changed:
        raise ValueError("replacements puts no mixer in the place of another: every layer would stay as it is.")
    fields = copy.deepcopy(config.mixer_configs or {})
    if distilled := [name for name, own in fields.items() if own.get("decoder_modes")]:
        raise ValueError(
            f"the decoder of {', '.join(distilled)} is distilled, which replacing layers would undo: take the model "
            "before `distill_decoder`, and distill after healing."
        )
    staying = {name for name, new in zip(before, after, strict=True) if name == new}
    fields = {name: own for name, own in fields.items() if name in staying}
    if not isinstance(mixer_configs, Mapping | None):
        raise ValueError(f"mixer_configs is {mixer_configs!r}; it must map the name of a mixer to its fields.")
    for name, own in (mixer_configs or {}).items():
        if name not in after or not isinstance(own, Mapping):
            raise ValueError(
                f"mixer_configs has {name!r}: {own!r}; it must map a mixer of the new model "
                f"({', '.join(sorted({*after}))}) to its fields."
            )
        of_old = hybrid.config.mixer_config(name) if name in staying else None
        if other := [
            field for field, value in own.items() if hasattr(of_old, field) and getattr(of_old, field) != value
        ]:
            raise ValueError(
                f"mixer_configs[{name!r}] sets {', '.join(other)} otherwise than the layers of that mixer that stay, "
                "and all layers of a mixer share its fields: leave that out, or replace those layers, too."
            )
        fields[name] = {**fields.get(name, {}), **own}
    new_config = SeqMixHybridConfig(**_shared_fields(config), mixer_types=after, mixer_configs=fields)
    backbone = "" if hybrid.base_model is hybrid else f"{hybrid.base_model_prefix}."
    new_parts = [f"{backbone}layers.{layer}.mixer." for layer in changed]
    one_sided = [layer for layer in changed if "short_conv" in (before[layer], after[layer])]
    new_parts += [f"{backbone}layers.{layer}.short_conv." for layer in one_sided]  # see `build_short_convolution`
    return _with_weights(HYBRID_FAMILY, hybrid, new_config, left_out=tuple(new_parts))


def _check_model(model: Any) -> None:
    """Refuse what is no model of the package, and models with adapters, whose weights have other names."""
    kind = type(model).__name__
    if hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            f"this {kind} has adapters: merge the adapters first (peft's merge_and_unload), or delete them."
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"a {kind} was given; it must be a model, such as one that from_pretrained opened.")
    if isinstance(getattr(model, "_orig_mod", getattr(model, "module", None)), SeqMixPreTrainedModel):
        raise ValueError(f"{kind} wraps a model: give the model inside, or convert before it is compiled or wrapped.")
    if not isinstance(model, SeqMixPreTrainedModel):
        raise ValueError(f"{kind} is of no family of this package; hybrids take over layers of these only.")


def _shared_fields(config: SeqMixConfig) -> dict[str, Any]:
    """Return the fields of the whole model, which every family has."""
    names = [*(field.name for field in dataclasses.fields(SeqMixConfig)), *_OF_THE_LIBRARY]
    given = {name: getattr(config, name, None) for name in names}
    return {name: copy.deepcopy(value) for name, value in given.items() if value is not None}


def _fields_of_mixer(config: SeqMixConfig) -> dict[str, Any]:
    """Return the fields that a hybrid may set for the mixer of a family; None only where that is not the default."""
    whole = {*(field.name for field in dataclasses.fields(SeqMixConfig)), *config.whole_model_fields}
    own = [field for field in dataclasses.fields(config) if field.name not in whole]
    values = {field.name: getattr(config, field.name) for field in own}
    return {f.name: copy.deepcopy(values[f.name]) for f in own if (values[f.name], f.default) != (None, None)}


def _check_blocks(config: SeqMixConfig) -> None:
    """Refuse a family's model whose blocks a hybrid does not have."""
    name = config.model_type
    if config.num_blocks != config.num_hidden_layers:
        raise ValueError(f"the layers of this {name!r} model are one block, iterated: the layers of a hybrid are not.")
    if config.mixing_grid is not None:
        raise ValueError(f"this {name!r} model mixes rows and columns of images: hybrids mix images as sequences.")
    with torch.device("meta"):
        feed_forward = build_feed_forward(config)
    if not isinstance(feed_forward, GatedLinearUnit):
        kind = "none" if feed_forward is None else type(feed_forward).__name__
        raise ValueError(
            f"the feed-forward of this {name!r} model is {kind}, and that of hybrids a gated linear unit: weights do "
            "not carry over."
        )


def _with_weights(
    family: Family, model: SeqMixPreTrainedModel, config: SeqMixConfig, left_out: tuple[str, ...] = ()
) -> SeqMixPreTrainedModel:
    """Return the model of a family with the head of another, copies of its weights, and what else was set for it.

    That is dtypes and device, which weights are trained, gradient checkpointing, and the implementation of attention.

    Args:
        family: of the new model.
        model: whose weights are copied.
        config: of the new model.
        left_out: beginnings of the names of weights that are not copied; new ones stay as drawn, in the model's dtype.
    """
    name = type(model).__name__
    kinds = SeqMixModel, *TEXT_HEADS, *IMAGE_HEADS  # not by its name, which a derived class chooses
    head = next((base.__name__.removeprefix("SeqMix") for base in type(model).__mro__ if base in kinds), None)
    if head not in family.classes:
        raise ValueError(
            f"{name} has no counterpart in the family {family.prefix!r}, which has "
            f"{', '.join(family.prefix + suffix for suffix in family.classes)}."
        )
    config._attn_implementation = model.config._attn_implementation
    converted: Any = family.classes[head](config)
    converted.to(model.dtype)
    state = {key: value.clone() for key, value in model.state_dict().items() if not key.startswith(left_out)}
    missing, unexpected = converted.load_state_dict(state, strict=False, assign=True)
    if wrong := [*unexpected, *(key for key in missing if not key.startswith(left_out))]:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(f"weights do not carry over, since their names differ: {', '.join(wrong[:3])}{more}.")
    converted.tie_weights()
    trained = {key: parameter.requires_grad for key, parameter in model.named_parameters()}
    for key, parameter in converted.named_parameters():
        parameter.requires_grad_(key.startswith(left_out) or trained.get(key, True))
    recomputed = {name: part for name, part in model.named_modules() if getattr(part, "gradient_checkpointing", False)}
    for name, part in converted.named_modules():
        if name in recomputed:
            part.gradient_checkpointing = True
            part._gradient_checkpointing_func = recomputed[name]._gradient_checkpointing_func
    if isinstance(getattr(model, "generation_config", None), GenerationConfig):
        converted.generation_config = copy.deepcopy(model.generation_config)
    return converted.to(model.device).train(model.training)
