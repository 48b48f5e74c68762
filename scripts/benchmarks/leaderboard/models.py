"""The models of the benchmark `leaderboard`: recipes of one file, made equal in parameters by their feed-forwards."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from hf_seqmix.training import config_from_overrides, merge_recipes, read_recipe

from ..jobs import SCRIPTS

RECIPES = SCRIPTS / "recipes" / "leaderboard"
REFERENCE = "tnn"
"""The model whose parameters the others have."""
FEED_FORWARD = 1.5
"""Times as wide as the model is its feed-forward."""

WIDTH = {"opt": "ffn_dim"}
"""Model type -> the field of the width of the feed-forward, where that is not `intermediate_size`."""
AS_WIDE = ("word_embed_proj_dim",)
"""Fields that are as wide as the model."""
STEP = {"ipa": 4}
"""Model type -> what the width must be a multiple of."""
TILE = 16
"""What the width of wider models is a multiple of, as matrix products of a GPU want."""
HEADS = ("num_attention_heads", "num_key_value_heads", "num_heads")
"""Fields of mixers that say how many heads there are."""

HEAD = 64
"""Channels of a head of wider models, about: fused attention takes as long for 40."""

DRAWN_WITH = {"opt": "init_std", **dict.fromkeys(("granite", "bert", "modernbert"), "initializer_range")}
"""Model type of the library -> the field that says with which deviation its weights are drawn.

The library's 0.02 is for thousands of channels. With 64, matrices of this package are drawn with 0.07; by 0.02 a Llama
and an OPT do not learn to repeat words in 1,000 updates, by 0.125 both do (one seed each).
"""

TOLERANCE = 0.01

SMALL = 0.4
"""Of the channels of a language model, that a model of a synthetic task has, in steps of 8."""
KERNEL_NETWORK = 32
"""Channels of networks of kernels there, at most."""


def names_of(objective: str) -> list[str]:
    """Return the names of all models of an objective, in the order of the recipe."""
    return list(yaml.safe_load((RECIPES / f"{objective}.yaml").read_text(encoding="utf-8"))["families"])


def recipe_of(objective: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the recipe of a model, without the width of its feed-forward."""
    recipe = read_recipe(RECIPES / f"{objective}.yaml", family=name)
    fields = recipe["model"]["config_overrides"]
    if "mixer_configs" in fields:
        mixers = {name: own for name, own in fields["mixer_configs"].items() if name in fields["mixer_types"]}
        fields["mixer_configs"] = mixers
    return recipe


def language_recipe(
    objective: str, name: str, vocab_size: int, times: int = 1, length: int | None = None
) -> dict[str, dict[str, Any]]:
    """Return the recipe of a language model, as many parameters as the reference.

    Args:
        objective: "causal" or "masked".
        name: of the model.
        vocab_size: of the tokenizer.
        times: as wide as the recipe says.
        length: of a row of training; the recipe's by default.

    Raises:
        ValueError: no width of the feed-forward gives as many parameters.
    """
    recipe = recipe_of(objective, name)
    length = length or int(recipe["data"]["block_size"])
    target = _target(objective, times, vocab_size, length)
    fields = _resized(recipe, times, length)
    return _with_equal_width(recipe, name, target, vocab_size, fields, TILE if times > 1 else 1)


def small_recipe(objective: str, name: str, vocab_size: int, length: int) -> dict[str, dict[str, Any]]:
    """Return the recipe of a model of a synthetic task: narrower, for rows of a length, equal in parameters, too.

    Raises:
        ValueError: no width of the feed-forward gives as many parameters.
    """
    recipe = recipe_of(objective, name)
    target = _target(objective, SMALL, vocab_size, length)
    return _with_equal_width(recipe, name, target, vocab_size, _resized(recipe, SMALL, length))


def num_parameters(objective: str, model: Mapping[str, Any], vocab_size: int) -> int:
    """Return the number of parameters of the model of a recipe, without making them."""
    return _num_parameters(objective, json.dumps(model, sort_keys=True), vocab_size)


@cache
def _num_parameters(objective: str, text: str, vocab_size: int) -> int:
    model = json.loads(text)
    auto = AutoModelForCausalLM if objective == "causal" else AutoModelForMaskedLM
    derived: dict[str, Any] = {"vocab_size": vocab_size, "is_causal": objective == "causal"}
    derived |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    with torch.device("meta"):
        config = config_from_overrides(model["model_type"], model["config_overrides"], derived)
        return int(auto.from_config(config).num_parameters())


@cache
def _target(objective: str, share: float, vocab_size: int, length: int) -> int:
    recipe = recipe_of(objective, REFERENCE)
    fields = recipe["model"]["config_overrides"] | _resized(recipe, share, length)
    model = {
        **recipe["model"],
        "config_overrides": {**fields, "intermediate_size": round(FEED_FORWARD * fields["hidden_size"])},
    }
    return num_parameters(objective, model, vocab_size)


def _resized(recipe: Mapping[str, Any], share: float, length: int) -> dict[str, Any]:
    """Return the fields of a model of a share of the channels, for rows of a length.

    Wider models have heads of about `HEAD` channels; narrower ones as many heads, and smaller networks of kernels.
    """
    fields = recipe["model"]["config_overrides"]
    width = 8 * round(share * fields["hidden_size"] / 8)
    resized: dict[str, Any] = {"hidden_size": width, "max_position_embeddings": length, **_points(fields, length)}
    parts = {
        name: {**own, **_points(own, length), **({} if share == 1 else _own_parts(own, share, width))}
        for name, own in fields.get("mixer_configs", {}).items()
    }
    resized |= {"mixer_configs": parts} if parts else {}
    if share == 1:
        return resized
    resized |= {name: width for name in AS_WIDE if name in fields} | _own_parts(fields, share, width)
    if share < 1 and (drawn := DRAWN_WITH.get(recipe["model"]["model_type"])):
        resized[drawn] = width**-0.5
        if "embedding_multiplier" in fields:
            resized["embedding_multiplier"] = width**0.5
    if "attention_multiplier" in fields:
        heads = resized.get("num_attention_heads", fields["num_attention_heads"])
        resized["attention_multiplier"] = (width / heads) ** -0.5
    return resized


def _points(fields: Mapping[str, Any], length: int) -> dict[str, int]:
    """Return the inducing points of a SKI-TNN, at most one in four tokens: with as many as tokens, W A W^T is A."""
    own = fields.get("num_inducing_points")
    return {} if own is None else {"num_inducing_points": min(own, max(2, length // 4))}


def _own_parts(fields: Mapping[str, Any], share: float, width: int) -> dict[str, Any]:
    if share > 1:
        of_a_head = min((n for n in range(8, width + 1, 8) if width % n == 0), key=lambda n: abs(n - HEAD))
        return {name: width // of_a_head for name in HEADS if name in fields}
    own = fields.get("rpe_hidden_size")
    return {} if own is None else {"rpe_hidden_size": min(own, KERNEL_NETWORK)}


def _with_equal_width(
    recipe: Mapping[str, Mapping[str, Any]],
    name: str,
    target: int,
    vocab_size: int,
    fields: Mapping[str, Any],
    tile: int = 1,
) -> dict[str, dict[str, Any]]:
    objective, model_type = recipe["model"]["objective"], recipe["model"]["model_type"]
    field, step = WIDTH.get(model_type, "intermediate_size"), max(STEP.get(model_type, 1), tile)

    def of_width(width: int) -> dict[str, dict[str, Any]]:
        return merge_recipes(recipe, {"model": {"config_overrides": {**fields, field: width}}})

    def count(width: int) -> int:
        return num_parameters(objective, of_width(width)["model"], vocab_size)

    narrow, wide = count(step), count(2 * step)
    # The number of parameters is linear in the width.
    width = step * max(1, round(1 + (target - narrow) / (wide - narrow)))
    found = count(width)
    if abs(found - target) > TOLERANCE * target:
        raise ValueError(
            f"{name} cannot have the {target:,} parameters of {REFERENCE} within {TOLERANCE:.0%}: with a feed-forward "
            f"of {width} channels it has {found:,}. Leave it out of --models, or change its recipe."
        )
    return of_width(width)
