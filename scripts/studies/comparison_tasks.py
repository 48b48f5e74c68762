"""What compare_mixers.py trains, and on what: the models, made equal in parameters, and the tasks."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

import hf_seqmix  # noqa: F401 - registers its families with the Auto classes
from hf_seqmix.data import (
    associative_recall,
    build_tokenizer,
    lagged_copy,
    load_corpus,
    mask_blocks,
    pack_for_evaluation,
    pack_for_training,
    rare_word_repetition,
    total_bytes,
)

__all__ = [
    "MODELS",
    "TASKS",
    "Sizes",
    "Task",
    "TaskKind",
    "build_config",
    "build_model",
    "build_task",
    "config_fields",
    "data_digest",
]

TOEPLITZ: dict[str, Any] = {"rpe_hidden_size": 32, "rpe_num_layers": 3}

# name -> model type and the fields that differ from its defaults
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tnn": ("tnn", TOEPLITZ),
    "attention": ("seqmix_hybrid", {"mixer_configs": {"attention": {"num_heads": 4}}}),
    # The library's own transformer, with its own scale of embeddings.
    "llama": ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "ski_tnn": ("ski_tnn", {}),
}
# Softmax, and no activation besides: the feed-forward is the product of two projections.
MODELS["attention-bilinear"] = ("seqmix_hybrid", MODELS["attention"][1] | {"hidden_act": "linear"})
MODELS |= {
    f"fd_tnn-{frequency_input}-{activation}": (
        "fd_tnn",
        TOEPLITZ | {"frequency_input": frequency_input, "rpe_activation": activation},
    )
    for frequency_input in ("omega", "cosine")
    for activation in ("relu", "silu", "gelu")
}

# Four centers or heads, as attention has heads here.
IPA: dict[str, Any] = {"num_centers": 4, "norm_type": "simple_rms"}
MODELS |= {f"ipa-{norm}": ("ipa", IPA | {"kernel_norm": norm}) for norm in ("p", "j", "prod", "mix", "none")}
MODELS |= {
    "ipa-p-shift": ("ipa", IPA | {"kernel_norm": "p", "token_shift": 3}),
    "ipa-p-copy": ("ipa", IPA | {"kernel_norm": "p", "copy_head": True}),
    # The paper's two sizes: P centers, and affine maps of rank k, hidden_size / P by default.
    "ipa-p-8-centers": ("ipa", IPA | {"kernel_norm": "p", "num_centers": 8, "num_row_centers": 4}),
    "ipa-p-half-rank": ("ipa", IPA | {"kernel_norm": "p", "rank": 12}),
    "ipa-p-double-rank": ("ipa", IPA | {"kernel_norm": "p", "rank": 48}),
}
# Sums over the past know no order, so these get positions, as attention has its rotary ones.
POLYNOMIAL: dict[str, Any] = {"num_attention_heads": 4, "position_embedding_type": "sinusoidal"}
MODELS |= {f"poly-{degree}": ("poly_transformer", POLYNOMIAL | {"degree": degree}) for degree in (2, 3, 4, 5)}
MODELS |= {
    "poly-e": ("poly_transformer", POLYNOMIAL | {"degree": math.e}),
    "poly-soft": ("poly_transformer", POLYNOMIAL | {"degree_form": "soft"}),
    # Degree 3 of a learned matrix over positions, as in a mixer of tokens, in place of content.
    "poly-3-mixer": ("poly_transformer", POLYNOMIAL | {"degree": 3, "mixing": "toeplitz"}),
    # What is no polynomial in degree 3, one after another: activations, norms, both.
    "poly-3-bilinear": ("poly_transformer", POLYNOMIAL | {"degree": 3, "hidden_act": "linear"}),
    "poly-3-static": ("poly_transformer", POLYNOMIAL | {"degree": 3, "normalization": "static"}),
    "poly-3-polynomial": (
        "poly_transformer",
        POLYNOMIAL | {"degree": 3, "normalization": "static", "hidden_act": "linear"},
    ),
}

BIDIRECTIONAL_ONLY = {"ski_tnn"}
CAUSAL_ONLY = {"llama"}
# The feed-forward of IPA is divided among its centers.
WIDTH_STEP = {"ipa": 4}


@dataclass(frozen=True)
class TaskKind:
    """A task before it has data: what is predicted, what is reported (metric -> header), and sizes that fit it."""

    causal: bool
    is_text: bool
    metrics: Mapping[str, str]
    defaults: Mapping[str, Any]


TEXT_DEFAULTS = {
    "embedding_scale": 1.0,
    "steps": 500,
    "batch_size": 4,
    "block_size": 256,
    "hidden_size": 96,
    "num_layers": 2,
    "eval_blocks": 200,
}
# With unscaled embeddings, masked models hardly leave the frequencies of the tokens in so few updates.
MASKED_DEFAULTS = TEXT_DEFAULTS | {"decay": 0.9, "embedding_scale": 10.0, "steps": 1000}
# Unscaled embeddings, of unit variance, are also the output's: with so few tokens, attention does not learn to recall
# then.
RECALL_DEFAULTS = {
    "embedding_scale": 8.0,
    "steps": 1500,
    "batch_size": 32,
    "block_size": 24,
    "hidden_size": 64,
    "num_layers": 2,
    "eval_blocks": 1000,
}
REPETITION_DEFAULTS = RECALL_DEFAULTS | {"steps": 1000, "block_size": 48, "eval_blocks": 2000}
COPY_DEFAULTS = RECALL_DEFAULTS | {"steps": 400, "block_size": 48}

CODE_LENGTH = {"bits_per_byte": "bits/byte", "perplexity": "perplexity"}
MASKED_SCORES = {"token_loss": "nats/masked token", "token_accuracy": "accuracy"}
ANSWERS = {"token_accuracy": "accuracy", "token_loss": "nats/answer"}

TASKS = {
    "lm-causal": TaskKind(True, True, CODE_LENGTH, TEXT_DEFAULTS | {"decay": 0.9}),
    "lm-masked": TaskKind(False, True, MASKED_SCORES, MASKED_DEFAULTS),
    "recall": TaskKind(True, False, ANSWERS, RECALL_DEFAULTS | {"decay": 0.99}),
    "recall-masked": TaskKind(False, False, ANSWERS, RECALL_DEFAULTS | {"decay": 0.99}),
    "repetition": TaskKind(True, False, ANSWERS, REPETITION_DEFAULTS | {"decay": 0.99}),
    "copy": TaskKind(True, False, ANSWERS, COPY_DEFAULTS | {"decay": 0.99}),
    "copy-masked": TaskKind(False, False, ANSWERS, COPY_DEFAULTS | {"decay": 0.99}),
}


def _repetition(num_rows: Mapping[str, int], length: int, causal: bool) -> datasets.DatasetDict:
    if not causal:
        raise ValueError("the task repetition is for causal models.")
    return rare_word_repetition(num_rows, length=length)


SYNTHETIC: dict[str, Callable[..., datasets.DatasetDict]] = {
    "recall": partial(associative_recall, num_pairs=4, vocab_size=34),
    "repetition": _repetition,
    "copy": partial(lagged_copy, min_lag=16, vocab_size=34),
}


@dataclass(frozen=True)
class Sizes:
    """What all models of a comparison have in common."""

    block_size: int
    hidden_size: int
    num_layers: int
    decay: float
    embedding_scale: float


@dataclass(frozen=True)
class Task:
    """Blocks of tokens with labels, and what scores them; `num_bytes` of text that each evaluation split predicts."""

    kind: TaskKind
    train: datasets.Dataset
    evaluation: Mapping[str, datasets.Dataset]
    num_bytes: Mapping[str, int]
    vocab_size: int
    tokenizer: PreTrainedTokenizerBase | None


def build_task(
    name: str,
    sizes: Sizes,
    *,
    eval_blocks: int,
    train_rows: int,
    files: Mapping[str, str | None],
    tokenizer_spec: str,
    folder: Path,
) -> Task:
    """Make or read the data of a task.

    Args:
        name: key of `TASKS`.
        sizes: of the comparison.
        eval_blocks: blocks of the validation and of the test split, the first ones of text.
        train_rows: rows that training sees; generated ones are never seen twice.
        files: split -> text file, for the text tasks.
        tokenizer_spec: see `build_tokenizer`; saved in `folder`, and read from there if it has been saved.
        folder: of the results.

    Raises:
        ValueError: for a missing file, or sizes that a generator refuses.
    """
    kind = TASKS[name]
    if not kind.is_text:
        rows = {"train": train_rows, "validation": eval_blocks, "test": eval_blocks}
        generate = SYNTHETIC[name.removesuffix("-masked")]
        splits = generate(rows, length=sizes.block_size, causal=kind.causal)
        vocab_size = 1 + max(int(np.max(rows.with_format("numpy")["input_ids"][:])) for rows in splits.values())
        return Task(kind, splits.pop("train"), splits, {}, vocab_size, None)
    missing = [f"--{split}-file" for split, path in files.items() if path is None]
    if missing:
        raise ValueError(f"the task {name} needs text; give {', '.join(missing)}.")
    corpus = load_corpus({split: str(path) for split, path in files.items()})
    tokenizer = _tokenizer(tokenizer_spec, corpus["train"], kind.causal, folder)
    train = pack_for_training(corpus["train"], tokenizer, sizes.block_size, causal=kind.causal)
    evaluation, num_bytes = {}, {}
    for split in ("validation", "test"):
        blocks = pack_for_evaluation(corpus[split], tokenizer, sizes.block_size, causal=kind.causal)
        blocks = blocks.take(min(eval_blocks, len(blocks)))
        num_bytes[split] = total_bytes(blocks)
        evaluation[split] = blocks if kind.causal else mask_blocks(blocks, tokenizer)
    return Task(kind, train, evaluation, num_bytes, len(tokenizer), tokenizer)


def _tokenizer(spec: str, documents: Any, causal: bool, folder: Path) -> PreTrainedTokenizerBase:
    saved = folder / f"tokenizer-{Path(spec).name.replace(':', '-')}"
    if (saved / "tokenizer_config.json").is_file():
        return AutoTokenizer.from_pretrained(saved)
    tokenizer = build_tokenizer(spec, documents["text"], mask_token=not causal)
    tokenizer.save_pretrained(saved)
    return tokenizer


def data_digest(task: Task) -> str:
    """Return a name for exactly these blocks, masks of the evaluation included."""
    digest = hashlib.sha256()
    for blocks in (task.train, *task.evaluation.values()):
        for column in ("input_ids", "labels"):
            if column in blocks.column_names:
                digest.update(np.asarray(blocks.with_format("numpy")[column][:], dtype=np.int32).tobytes())
    return digest.hexdigest()[:12]


def build_config(name: str, task: Task, sizes: Sizes) -> PreTrainedConfig:
    """Return the configuration of a model whose feed-forwards are so wide that it has as many parameters as `tnn`.

    Raises:
        ValueError: if there is no such model for the task, or if its mixers alone have more parameters.
    """
    if name in BIDIRECTIONAL_ONLY and task.kind.causal:
        raise ValueError(f"{name} is bidirectional; it has no causal form. Leave it out or take a masked task.")
    if name in CAUSAL_ONLY and not task.kind.causal:
        raise ValueError(f"{name} is causal; it has no masked form. Leave it out or take a causal task.")
    if name == "tnn":
        return _config(name, task, sizes, sizes.hidden_size)
    target = _num_parameters(_config("tnn", task, sizes, sizes.hidden_size), task)
    step = WIDTH_STEP.get(MODELS[name][0], 1)
    narrow, wide = (_num_parameters(_config(name, task, sizes, width), task) for width in (step, 2 * step))
    # The number of parameters is linear in the width.
    width = step * round(1 + (target - narrow) / (wide - narrow))
    if width < 1:
        raise ValueError(
            f"{name} has {narrow} parameters with the narrowest feed-forward, more than the {target} of tnn."
        )
    return _config(name, task, sizes, width)


def build_model(config: PreTrainedConfig, causal: bool, seed: int) -> PreTrainedModel:
    """Return a model with random weights from a seed."""
    set_seed(seed)
    return (AutoModelForCausalLM if causal else AutoModelForMaskedLM).from_config(config)


def config_fields(
    name: str, sizes: Sizes, *, vocab_size: int, causal: bool, intermediate_size: int
) -> tuple[str, dict[str, Any]]:
    """Return the model type and the fields of the configuration of a model."""
    model_type, fields = MODELS[name]
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": sizes.hidden_size,
        "num_hidden_layers": sizes.num_layers,
        "intermediate_size": intermediate_size,
        "max_position_embeddings": sizes.block_size,
    }
    if name == "llama":
        return model_type, common | fields
    common |= {
        "embedding_scale": sizes.embedding_scale,
        "hidden_dropout": 0.0,
        "linear_init": "uniform",
        "is_causal": causal,
    }
    if name == "tnn":
        common["decay"] = sizes.decay
    return model_type, common | fields


def _config(name: str, task: Task, sizes: Sizes, intermediate_size: int) -> PreTrainedConfig:
    model_type, fields = config_fields(
        name, sizes, vocab_size=task.vocab_size, causal=task.kind.causal, intermediate_size=intermediate_size
    )
    if model_type not in CONFIG_MAPPING:
        raise ValueError(f"{name} needs the model type {model_type!r}, which this installation does not have.")
    try:
        return AutoConfig.for_model(model_type, **fields)
    except StrictDataclassError as error:
        raise ValueError(f"the configuration of {name} is refused: {error}") from error


def _num_parameters(config: PreTrainedConfig, task: Task) -> int:
    return build_model(config, task.kind.causal, seed=0).num_parameters()
