"""What cannot train on segments that continue each other's state, refused before training starts."""

from typing import Any

from transformers import DynamicCache, PreTrainedModel, TrainingArguments

from ..._compat import cache_argument
from ...cache import can_detach
from ...models.configuration import SeqMixConfig

__all__ = ["refuse_arguments", "refuse_model"]


def refuse_model(model: PreTrainedModel, tokens: int) -> None:
    """Refuse a model that cannot continue a state in training.

    Args:
        model: a causal language model, of this package or of the library.
        tokens: of a stream of segments.

    Raises:
        ValueError: naming the model or its first layer that has no state which segments could hand on, or for fewer
            positions than a stream has tokens.
    """
    name, config = type(model).__name__, model.config
    if cache_argument(model) is None:
        raise ValueError(f"--state-segments: {name} takes no past_key_values, so no segment can go on from another.")
    if not getattr(config, "is_causal", True):
        raise ValueError(
            f"--state-segments: {name} sees both sides (is_causal=False) and has no state: train a causal model."
        )
    mixers = config.layer_mixers if isinstance(config, SeqMixConfig) else None
    for index, layer in enumerate(DynamicCache(config=config).layers):
        if not can_detach(layer):
            of = f" ({mixers[index]})" if mixers is not None else ""
            raise ValueError(
                f"--state-segments: layer {index}{of} of {name} keeps a {type(layer).__name__}, which training cannot "
                "hand on from segment to segment: leave --state-segments out, or train a model of this package or of "
                "attention."
            )
    positions = _positions(config)
    if positions is not None and tokens > positions:
        raise ValueError(
            f"--state-segments: a stream has {tokens} tokens, but {name} has positions for {positions} "
            "(max_position_embeddings): take fewer or shorter segments, or a model with more positions."
        )


def _positions(config: Any) -> int | None:
    """Return for how many tokens a model is made; None where there is no bound."""
    longest: int | None = getattr(config, "max_position_embeddings", None)
    if not isinstance(config, SeqMixConfig):
        return longest
    mixings = {getattr(config.mixer_config(mixer), "mixing", None) for mixer in config.layer_mixers}
    bounded = config.position_embedding_type == "learned" or "triangular" in mixings
    return longest if bounded else None


def refuse_arguments(arguments: TrainingArguments) -> None:
    """Refuse training arguments under which a segment would not meet the state of the one before.

    Raises:
        ValueError: naming the argument, and what to do.
    """
    checkpointing = arguments.gradient_checkpointing or getattr(arguments, "activation_checkpointing", False)
    sampling = getattr(arguments, "train_sampling_strategy", "random")
    split = getattr(arguments.accelerator_config, "split_batches", False)
    several = f"one process would train on {arguments.n_gpu} GPUs and deal rows out anew"
    refused = {
        "--activation-checkpointing computes blocks again, which takes no cache: leave it out": checkpointing,
        "--torch-compile makes graphs, which cannot follow a state that grows: leave it out": arguments.torch_compile,
        "--auto-find-batch-size changes which rows belong together: leave it out": arguments.auto_find_batch_size,
        "--ignore-data-skip reads other data after a resume: leave it out": arguments.ignore_data_skip,
        f"--train-sampling-strategy {sampling} is another order of the data: leave it out": sampling != "random",
        "--deepspeed is not supported: start processes by torchrun alone": bool(arguments.deepspeed),
        "--fsdp is not supported: start processes by torchrun alone": bool(arguments.fsdp),
        "split_batches deals rows out anew: leave it out of --accelerator-config": split,
        f"{several}: start a process for each by torchrun, or show it one GPU": arguments.n_gpu > 1,
    }
    for reason, applies in refused.items():
        if applies:
            raise ValueError(f"--state-segments: {reason}.")
