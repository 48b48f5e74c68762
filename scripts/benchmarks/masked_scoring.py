"""Scores of a masked model on gaps in held-out text, and of baselines on the same gaps."""

import argparse
import logging
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, set_seed

from hf_seqmix.analysis.text.masked_modeling import (
    evaluate_masked_model,
    majority_accuracy,
    mask_documents,
    ngram_bits_per_byte,
)
from hf_seqmix.data import ByteNGram
from hf_seqmix.training.results import Result, group_results

from .inputs import common_key, default_device, open_model, prepare_kernels, text_hash

logger = logging.getLogger("run_benchmarks")


def result_key(arguments: argparse.Namespace, model: str, texts: list[str], train: list[str]) -> dict[str, Any]:
    """Return everything that a score depends on."""
    return {
        **common_key(arguments, model, texts),
        "context_length": arguments.context_length,
        "share": arguments.share,
        "seed": arguments.seed,
        "ngram": arguments.ngram,
        "training_text": text_hash(train) if train else None,
    }


def score_model(
    arguments: argparse.Namespace,
    model_name: str,
    texts: list[str],
    ngrams: dict[str, ByteNGram],
    train: list[str],
    shared: dict[str, Any],
    kernel_length: int | None = None,
) -> list[Result]:
    """Score one model, its kernels prepared for `kernel_length` tokens, and the baselines on the same questions."""
    set_seed(arguments.seed)
    device = torch.device(arguments.device or default_device())
    model, tokenizer = open_model(arguments, model_name, AutoModelForMaskedLM.from_pretrained)
    name = shared["model"]
    if kernel_length is not None:
        prepare_kernels(model, name, kernel_length)
    logger.info(f"{name}: {model.num_parameters():,} parameters, {model.dtype}, {device}")
    options = {"context_length": arguments.context_length, "share": arguments.share, "seed": arguments.seed}
    blocks = mask_documents(tokenizer, texts, **options)
    score = evaluate_masked_model(
        model,
        tokenizer,
        blocks,
        context_length=arguments.context_length,
        batch_size=arguments.batch_size,
        device=device,
    )
    environment = {**shared["environment"], "dtype": str(model.dtype).removeprefix("torch."), "device": str(device)}
    setting = {**shared["setting"], "context_length": arguments.context_length, "gaps": score.num_masked}
    shared = {**shared, "environment": environment, "setting": setting}
    values = {name: value for name, value in score.to_dict().items() if name != "context_length"}
    results = group_results({**values, "num_parameters": model.num_parameters()}, **shared)
    shared |= {"kind": "baseline", "run": None}
    for ngram_name, ngram in ngrams.items():
        shared["model"] = f"{ngram_name}, bytes before"
        results += group_results({"bits_per_byte": ngram_bits_per_byte(ngram, texts, blocks)}, **shared)
    if train:
        token, accuracy = majority_accuracy(tokenizer, train, blocks)
        shared["model"] = f"always {token!r}"
        results += group_results({"accuracy": accuracy}, **shared)
    return results
