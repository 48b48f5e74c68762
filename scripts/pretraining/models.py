"""What pretrain.py trains: a model with random weights, or a trained one further."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

# Importing the package registers its families with the Auto classes.
from hf_seqmix.analysis.text.language_modeling import refuse_future
from hf_seqmix.models.configuration import SeqMixConfig
from hf_seqmix.models.pretrained import SeqMixPreTrainedModel
from hf_seqmix.training import (
    config_from_overrides,
    explain_model_error,
    fault_of_model,
    parse_overrides,
    tokenizer_fields,
)

from .arguments import Arguments


def check_model(arguments: Arguments) -> None:
    """Check what can be known of the model before its data is read, which may take long.

    Raises:
        ValueError: if the family or a field is unknown, a value is refused, the family has no language model of this
            kind, or a file of a trained model is missing or damaged.
    """
    name, objective = arguments.model.model, arguments.model.objective
    if name is not None and (fault := fault_of_model(name)):
        raise ValueError(f"--model {name}: {fault}")
    config = build_config(arguments, None)
    if name is not None and isinstance(config, SeqMixConfig) and config.is_causal != (objective == "causal"):
        own = "causal" if config.is_causal else "masked"
        heads = [head for head in config.architectures or [] if not head.endswith(("ForCausalLM", "ForMaskedLM"))]
        if heads:
            raise ValueError(
                f"--model {name} is a {heads[0]}, which is no language model: give a {objective} one, or --model-type "
                "for random weights."
            )
        raise ValueError(
            f"--model {name} is a {own} model, but --objective is {objective}: give --objective {own}, or another "
            "model."
        )
    kind = type(config)
    if kind not in (MODEL_FOR_CAUSAL_LM_MAPPING if objective == "causal" else MODEL_FOR_MASKED_LM_MAPPING):
        raise ValueError(f"there is no {objective} language model of the type {kind.model_type}.")


def build_config(arguments: Arguments, tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedConfig:
    """Return the configuration of a trained model, or one of what tokenizer, data and user ask for.

    Without a tokenizer, where rows hold tokens, the overrides say the vocabulary, and no token ends a text.

    Raises:
        ValueError: if the family or a field is unknown, a value is refused, the vocabulary is too small, or the
            positions are fewer than the tokens of a block.
    """
    model, data = arguments.model, arguments.data
    config = _config_from_scratch(arguments, tokenizer) if model.model is None else _read(AutoConfig, model.model)
    if tokenizer is not None and config.vocab_size < len(tokenizer):
        masks = (tokenizer.mask_token_id or 0) >= config.vocab_size
        raise ValueError(
            f"vocab_size is {config.vocab_size}, but the tokenizer has {len(tokenizer)} tokens"
            f"{', with the mask token of --objective masked' if masks else ''}; give at least that many."
        )
    limit = config.position_limit if isinstance(config, SeqMixConfig) else None
    # Positions of documents that are mixed alone restart, so a block may have more tokens than positions.
    if limit is not None and data.block_size > limit and not data.respect_documents:
        raise ValueError(
            f"--block-size is {data.block_size}, but the model has positions for {limit} tokens "
            "(max_position_embeddings): give blocks of at most that many, or a model with more positions."
        )
    return config


def _config_from_scratch(arguments: Arguments, tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedConfig:
    model = arguments.model
    overrides = parse_overrides(model.config_overrides)
    if model.config_file is not None:
        if not Path(model.config_file).is_file():
            raise ValueError(f"there is no configuration file {model.config_file}. Check the spelling.")
        try:
            values = PreTrainedConfig.get_config_dict(model.config_file)[0]
        except OSError as error:
            raise ValueError(f"--config-file {model.config_file} is not JSON.") from error
        model_type = values.pop("model_type", None)
    else:
        values, model_type = {}, model.model_type
    derived = {
        **_fields_of(tokenizer, arguments.data.block_size * max(1, arguments.run.state_segments)),
        "is_causal": model.objective == "causal",
    }
    if "max_position_embeddings" in values.keys() | overrides.keys():
        del derived["max_position_embeddings"]
    try:
        config = config_from_overrides(str(model_type), overrides, derived, kept=values)
    except ValueError as error:
        if model.objective == "causal" and "is_causal is True" in str(error):
            raise ValueError(f"{error} Or give --objective masked, which such a model needs.") from error
        raise
    if model.objective == "causal" and hasattr(config, "is_decoder"):
        config.is_decoder = True  # encoders of transformers, such as BERT, see the future else
    return config


def _fields_of(tokenizer: PreTrainedTokenizerBase | None, length: int) -> dict[str, Any]:
    if tokenizer is not None:
        return tokenizer_fields(tokenizer, length)
    return {**dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")), "max_position_embeddings": length}


def build_model(arguments: Arguments, config: PreTrainedConfig) -> PreTrainedModel:
    """Return the model to be trained further, or one with random weights from the seed of the run.

    Raises:
        ValueError: if the model cannot be read, or cannot tell documents apart where that is asked for.
    """
    auto = AutoModelForCausalLM if arguments.model.objective == "causal" else AutoModelForMaskedLM
    set_seed(arguments.training.seed)
    if arguments.model.model is not None:
        # Weights are trained in float32, whatever they were saved in; --bf16 computes in less.
        model = _read(auto, arguments.model.model, dtype=torch.float32)
    else:
        model = auto.from_config(config)
    has_values = model.device.type != "meta"
    if arguments.model.objective == "causal" and has_values and not isinstance(model, SeqMixPreTrainedModel):
        size = model.get_input_embeddings().weight.shape[0]
        refuse_future(model, np.arange(16) % size)
    if arguments.data.respect_documents and "position_ids" not in inspect.signature(model.forward).parameters:
        raise ValueError(
            f"{type(model).__name__} takes no position_ids, so it cannot tell documents apart; leave out"
            " --respect-documents."
        )
    return model


def _read(auto: Any, name: str, **options: Any) -> Any:
    """Read a part of a trained model by one of the library's Auto classes."""
    try:
        return auto.from_pretrained(name, **options)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(explain_model_error(name, error)) from error
