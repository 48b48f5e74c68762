"""Trained models of `run_benchmarks.py corpora` at several inference lengths, beside what needs no training."""

import argparse
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from hf_seqmix import __version__
from hf_seqmix.analysis.text.masked_modeling import mask_documents, ngram_bits_per_byte
from hf_seqmix.data import ByteNGram, bits_per_byte_xz
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result, with_run
from hf_seqmix.training.run import Run

from .. import causal_scoring, masked_scoring
from ..inputs import first_bytes, text_hash
from ..results import Report, select

MASKED_SHARE = 0.15
ON_GRID = "fd_tnn"  # the family whose kernels live on a grid of frequencies
GAP_SEED = 0  # the gaps are the same for all models of a tokenizer
NGRAM_BYTES = 20_000_000  # counts of more would not fit into every machine's memory

logger = logging.getLogger("run_benchmarks")


@dataclass(frozen=True)
class TrainedModel:
    """A model to score.

    Attributes:
        family: its name.
        seed: of its training.
        folder: where it was saved.
        run: that trained it.
    """

    family: str
    seed: int
    folder: Path
    run: Run


def score_lengths(
    arguments: argparse.Namespace,
    models: Sequence[TrainedModel],
    texts: list[str],
    log: ResultFile,
    shared: dict[str, Any],
) -> Report:
    """Score every model at every inference length that the log does not hold yet.

    The kernels of an FD-TNN live on a grid; beyond the trained length the grid is made as fine as the inference
    length, as its paper does, unless `arguments.keep_grid`.

    Args:
        arguments: `objective`, `context_length` (trained, in tokens), `inference_lengths`, `keep_grid`, `batch_size`,
            `device`, `dtype`, `overwrite`.
        models: trained ones.
        texts: held-out documents.
        log: where scores are kept.
        shared: fields of all results.

    Returns:
        Scores; and what was not possible, with the reason.
    """
    report = Report()
    for model in models:
        longest = longest_document(model, texts)
        for length in arguments.inference_lengths:
            name = f"{model.family}, seed {model.seed}, {length:,} tokens"
            if length > max(longest, arguments.context_length):
                reason = f"no document of the text has more than {longest:,} tokens, so no token has so much context"
                report.failures[name] = reason
                logger.warning(f"{name}: {reason}")
                continue
            try:
                report.results += _score(arguments, model, length, texts, log, shared)
            except (ValueError, MemoryError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and not _is_memory(error):
                    raise
                report.failures[name] = str(error)
                logger.error(f"{name}: {error}")
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
    return report


def longest_document(model: TrainedModel, texts: Sequence[str]) -> int:
    """Return the tokens of the document that has most of them, as the model reads it."""
    tokenizer = AutoTokenizer.from_pretrained(model.folder)
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    return max(len(tokenizer(text, **options)["input_ids"]) for text in texts)


def _score(
    arguments: argparse.Namespace,
    model: TrainedModel,
    length: int,
    texts: list[str],
    log: ResultFile,
    shared: dict[str, Any],
) -> list[Result]:
    """Return the results of one score, from the log if they are there."""
    on_grid = model.family == ON_GRID and not arguments.keep_grid and length > arguments.context_length
    kernel_length = length if on_grid else None
    folder = str(model.folder)
    shared = {**shared, "model": model.family, "seed": model.seed}
    options: dict[str, Any] = {
        **{key: getattr(arguments, key) for key in ("benchmark", "batch_size", "device", "dtype")},
        "tokenizer": None,
        "trust_remote_code": False,
        "seed": GAP_SEED,
    }
    if arguments.objective == "causal":
        settings = argparse.Namespace(**options, stride=None, context_length=kernel_length)
        key = causal_scoring.result_key(settings, folder, texts, length)
        if arguments.overwrite:
            log.forget(key)
        if log.get(key) is None:
            causal_scoring.score_model(settings, folder, texts, {length: key}, log, shared)
    else:
        settings = argparse.Namespace(
            **options, context_length=length, share=MASKED_SHARE, ngram=None, dataset=None, text_file=None
        )
        key = {**masked_scoring.result_key(settings, folder, texts, []), "kernel_length": kernel_length}
        if arguments.overwrite:
            log.forget(key)
        if log.get(key) is None:
            results = masked_scoring.score_model(settings, folder, texts, {}, [], shared, kernel_length)
            [loss] = select(results, metric="token_loss")
            perplexity = math.exp(min(loss.value or 0.0, 700.0))
            log.append(key, [*results, replace(loss, metric="perplexity", value=perplexity)])
    return with_run(log.get(key) or [], model.run)


def _is_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "memory" in str(error).lower()


def references(
    arguments: argparse.Namespace,
    models: Sequence[TrainedModel],
    train: list[str],
    texts: list[str],
    log: ResultFile,
    shared: dict[str, Any],
) -> list[Result]:
    """Return bits per byte of the same text under what is no neural network: `xz -9e` and a smoothed n-gram of bytes.

    For masked models the n-gram alone is comparable: it is asked for the bytes of the gaps, and shown every byte
    before each, where a model sees the gaps' neighbors on both sides and no gap.
    """
    causal, order = arguments.objective == "causal", arguments.ngram
    if not causal and not models:
        return []
    counted = first_bytes(train, NGRAM_BYTES)
    part = "" if len(counted) == len(train) and counted[-1] == train[-1] else ", first 20 MB"
    blocks = []
    if not causal:
        tokenizer = AutoTokenizer.from_pretrained(models[0].folder)
        blocks = mask_documents(
            tokenizer, texts, context_length=arguments.context_length, share=MASKED_SHARE, seed=GAP_SEED
        )
    key: dict[str, Any] = {
        "benchmark": arguments.benchmark,
        "version": __version__,
        "references": order,
        "text": text_hash(texts),
        "train": text_hash(counted),
        "gaps": text_hash([str(block.byte_starts.tolist()) for block in blocks]),  # other tokenizers have others
    }
    results = None if arguments.overwrite else log.get(key)
    if results is None:
        ngram = ByteNGram(order).fit(counted)
        name = f"byte {order}-gram{part}"
        if causal:
            found = {"xz -9e": bits_per_byte_xz(texts), name: ngram.bits_per_byte(texts)}
        else:
            found = {f"{name}, bytes before": ngram_bits_per_byte(ngram, texts, blocks)}
        fields = {**shared, "metric": "bits_per_byte", "kind": "baseline"}
        results = [Result(**{**fields, "model": name, "value": value}) for name, value in found.items()]
        log.append(key, results)
    return results
