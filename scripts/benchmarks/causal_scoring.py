"""Scores of a causal model on held-out text, at several context lengths."""

import argparse
import logging
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, set_seed

from hf_seqmix.analysis import LanguageModelScore, iter_language_model_scores
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result, group_results

from .inputs import common_key, default_device, open_model, prepare_kernels

logger = logging.getLogger("run_benchmarks")


def result_key(arguments: argparse.Namespace, model: str, texts: list[str], context_length: int) -> dict[str, Any]:
    """Return everything that a score depends on."""
    return {
        **common_key(arguments, model, texts),
        "context_length": context_length,
        "stride": arguments.stride or context_length,
        "set_context_length": arguments.context_length,
    }


def score_model(
    arguments: argparse.Namespace,
    model_name: str,
    texts: list[str],
    keys: Mapping[int, dict[str, Any]],
    log: ResultFile,
    shared: dict[str, Any],
) -> None:
    """Score one model at the context lengths of `keys` and add the scores, with the fields of `shared`, to the log."""
    set_seed(arguments.seed)
    device = torch.device(arguments.device or default_device())
    model, tokenizer = open_model(arguments, model_name, AutoModelForCausalLM.from_pretrained)
    name = shared["model"]
    if arguments.context_length is not None:
        prepare_kernels(model, name, arguments.context_length)
    logger.info(f"{name}: {model.num_parameters():,} parameters, {model.dtype}, {device}")
    scores = iter_language_model_scores(
        model,
        tokenizer,
        texts,
        context_lengths=list(keys),
        stride=arguments.stride,
        batch_size=arguments.batch_size,
        device=device,
    )
    fixed = {
        "num_parameters": model.num_parameters(),
        "max_position_embeddings": getattr(model.config, "max_position_embeddings", None),
    }
    environment = {**shared["environment"], "dtype": str(model.dtype).removeprefix("torch."), "device": str(device)}
    for score in scores:
        log.append(keys[score.context_length], score_results(score, fixed, {**shared, "environment": environment}))


def score_results(score: LanguageModelScore, fixed: dict[str, Any], shared: dict[str, Any]) -> list[Result]:
    """Return a score, and what is known of its model, as results; curves are over the position in the context."""
    setting = {**shared["setting"], "context_length": score.context_length}
    if score.stride != score.context_length:
        setting["stride"] = score.stride
    shared = {**shared, "setting": setting}
    values = {
        name: value
        for name, value in score.to_dict().items()
        if isinstance(value, (int, float)) and name not in ("context_length", "stride")
    }
    speed = {"tokens_per_second": score.num_tokens / score.seconds}
    curves = {
        f"position_{name}": list(zip(score.position_start, getattr(score, f"position_{name}"), strict=True))
        for name in ("tokens", "nll", "perplexity")
    }
    return group_results({**values, **speed, **fixed}, **shared) + group_results(curves, over="position", **shared)
