"""What the package needs of transformers' internals, in one place.

The cache and mask tables below were renamed several times within 5.x; everything else uses public names.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING, DynamicLayer, StaticLayer
from transformers.masking_utils import LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
)
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

__all__ = [
    "DamageNamed",
    "DynamicLayer",
    "PicklableCapture",
    "ShapesFirst",
    "StaticLayer",
    "attends",
    "can_return_tuple",
    "capture_outputs",
    "merge_with_config_defaults",
    "register_causal_lm_name",
    "register_image_classification_name",
    "register_layer_type",
]

_DRAWN_BYTES = 2**32
"""Weights that a checkpoint may lack in any case, such as a new head's."""


class PicklableCapture:
    """Lets a module be pickled and copied after `output_hidden_states` was asked for.

    The library then leaves a local function as a forward hook on each block, which pickle refuses, and a mark on the
    model that it did so. Without both, it simply installs the hooks again when they are next needed.
    """

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("_output_capturing_hooks_installed", None)
        hooks = state.get("_forward_hooks", {})
        kept = {key: hook for key, hook in hooks.items() if not _captures_outputs(hook)}
        if len(kept) < len(hooks):
            state["_forward_hooks"] = type(hooks)(kept)
        return state


class DamageNamed:
    """Says which weights file cannot be read, where the library only passes on what is wrong with it."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Loads a model as `PreTrainedModel.from_pretrained` does; a `ValueError` names a weights file that is damaged."""
        name = pretrained_model_name_or_path
        try:
            return super().from_pretrained(name, *args, **kwargs)  # type: ignore[misc]
        except (SafetensorError, json.JSONDecodeError) as error:
            file = _damaged_file(Path(str(name)) / (kwargs.get("subfolder") or ""))
            if file is None and isinstance(error, json.JSONDecodeError):
                raise  # of another file, which the library names
            raise ValueError(
                f"the weights file {file or f'of {name}'} is cut short or damaged ({error}). Write or download it again; the run that "
                "wrote it can go on from a checkpoint."
            ) from error


def _damaged_file(folder: Path) -> Path | None:
    for path in sorted(folder.glob("*.safetensors*")):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
                continue
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, ValueError):
            return path
    return None


class ShapesFirst:
    """Compares the shapes of a checkpoint's weights with the model's before memory is allocated for those that do not fit.

    `from_pretrained` builds the model without memory and then reads the file. Weights that the file lacks, or has in another
    shape, it allocates and draws before it complains, so that a few bytes of a hostile config.json could ask for all memory
    there is.
    """

    @staticmethod
    def _finalize_model_loading(model: Any, load_config: Any, loading_info: Any) -> Any:
        wrong = sorted(loading_info.mismatched_keys)
        if wrong and not load_config.ignore_mismatched_sizes:
            lines = [
                f"{name}: {list(found)} in the file, {list(wanted)} by the configuration"
                for name, found, wanted in wrong
            ]
            more = f"\n  and {len(lines) - 8} more" if len(lines) > 8 else ""
            raise ValueError(
                "the weights are of other shapes than the configuration says (ignore_mismatched_sizes=True draws them anew):\n  "
                + "\n  ".join(lines[:8])
                + more
            )
        tied = getattr(model, "all_tied_weights_keys", None) or {}
        missing = {name for name in loading_info.missing_keys if name not in tied}
        sizes = {name: tensor.nbytes for name, tensor in model.state_dict().items()}
        drawn = sum(sizes.get(name, 0) for name in missing)
        loaded = sum(size for name, size in sizes.items() if name not in missing)
        if drawn > max(_DRAWN_BYTES, 16 * loaded):
            raise ValueError(
                f"the file has {loaded / 2**20:.0f} MiB of the model's weights, and {drawn / 2**30:.1f} GiB are missing, "
                f"{min(missing)} among them: the configuration is of another model."
            )
        return PreTrainedModel._finalize_model_loading(model, load_config, loading_info)


def _captures_outputs(hook: Any) -> bool:
    return "output_capturing_hook" in getattr(hook, "__qualname__", "")


def register_causal_lm_name(model_type: str, class_name: str) -> None:
    """Tell the `Trainer` that a class is a causal language model.

    With label smoothing it computes the loss itself, and shifts the labels only for classes named in this table; without
    the shift a model learns to copy its input.
    """
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] = class_name


def register_image_classification_name(model_type: str, class_name: str) -> None:
    """Tell the image classification pipeline that it supports a class; it logs an error for those not in this table."""
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES[model_type] = class_name


def register_layer_type(dynamic: type[DynamicLayer], static: type[StaticLayer], attends: bool = False) -> None:
    """Make `DynamicCache(config=...)`, `StaticCache(config=...)` and `generate` know a pair of cache layers.

    Args:
        dynamic: growing layer; its `_layer_type` is the name under which a config's `layer_types` asks for it (the
            library registers it by that attribute when the class is defined).
        static: preallocated layer of the same `_layer_type`.
        attends: whether the mixer wants to know which keys each query sees, as softmax attention does, and not only which
            tokens of the call are real.
    """
    name = dynamic._layer_type
    if name is None or static._layer_type != name:
        raise ValueError(f"{dynamic.__name__} and {static.__name__} must share one _layer_type.")
    STATIC_LAYER_TYPE_MAPPING[name] = static
    masks = LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING
    masks[name] = masks["full_attention"] if attends else _trailing_mask


def attends(layer_type: str) -> bool:
    """Whether a layer's mixer must know which of the cached tokens are real, as softmax attention must."""
    masks = LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING
    return masks.get(layer_type) is masks["full_attention"]


def _trailing_mask(
    config: Any, inputs_embeds: Tensor, attention_mask: Tensor | None = None, **_: Any
) -> Tensor | None:
    """Cut a 2D mask to the tokens of this call, so that a compiled decoding step sees one shape at every step."""
    if attention_mask is None or attention_mask.ndim != 2:
        return None
    if not torch.compiler.is_compiling() and bool((attention_mask != 0).all()):
        return None
    return attention_mask[:, -inputs_embeds.shape[1] :].contiguous()
