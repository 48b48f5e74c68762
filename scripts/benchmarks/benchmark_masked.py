"""The benchmark `masked-language-modeling` of run_benchmarks.py: how well masked models fill gaps in held-out text."""

import argparse
import logging
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, set_seed

from hf_seqmix._files import write_json
from hf_seqmix.analysis.masked_modeling import (
    check_masking,
    evaluate_masked_model,
    majority_accuracy,
    mask_documents,
    ngram_bits_per_byte,
)
from hf_seqmix.analysis.report import ResultLog
from hf_seqmix.data import ByteNGram
from hf_seqmix.training.results import run_environment

from .benchmark_inputs import (
    add_text_arguments,
    common_arguments,
    common_key,
    default_device,
    describe_text,
    fit_ngram,
    load_texts,
    load_training_texts,
    open_model,
    prepare_kernels,
    short_names,
    write_table,
)

TABLE = {
    "model": "model",
    "baseline": "or baseline",
    "accuracy": "accuracy:.4f",
    "token_loss": "nats/token:.4f",
    "bits_per_byte": "bits/byte:.4f",
    "num_masked": "gaps:,",
}

logger = logging.getLogger("run_benchmarks")


def add_masked_language_modeling(benchmarks: Any) -> None:
    """Adds the sub-command `masked-language-modeling`."""
    parser = benchmarks.add_parser(
        "masked-language-modeling",
        parents=[common_arguments()],
        allow_abbrev=False,
        help="accuracy and bits per byte of masked tokens",
        description="How well masked language models guess tokens of held-out text, each gap hidden by the mask token and "
        "drawn once for all models of a tokenizer. With --ngram, the most frequent training token and an n-gram that is "
        "shown every byte before a gap answer the same questions.",
    )
    add_text_arguments(parser)
    parser.add_argument("--context-length", type=int, default=128, help="tokens of a block, gaps included")
    parser.add_argument("--share", type=float, default=0.15, help="of the tokens, to mask")
    parser.set_defaults(run=run_masked_language_modeling)


def run_masked_language_modeling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores every model that the output folder does not hold yet, and reports all of them.

    Raises:
        ValueError: an argument makes no sense, or the text cannot be read.
    """
    check_masking(arguments.context_length, arguments.share)
    texts = load_texts(arguments)
    ngrams = fit_ngram(arguments)
    train = load_training_texts(arguments) if ngrams else []
    log = ResultLog(arguments.output_dir / "results.jsonl")

    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for model, name in zip(arguments.models, short_names(arguments.models), strict=True):
        key = result_key(arguments, model, texts)
        if arguments.overwrite:
            log.forget(key)
        if log.get(key) is None:
            try:
                log.append(key, score_model(arguments, model, name, texts, ngrams, train))
            except ValueError as error:
                failures[name] = str(error)
                logger.error(f"{name}: {error}")
        else:
            logger.info(f"{name}: the result was there already")
        result = log.get(key)
        if result is not None:
            rows.append({"model": name, "path": model, **result})

    report = {
        "benchmark": arguments.benchmark,
        "text": describe_text(arguments, texts),
        "results": rows,
        "failures": failures,
        "seed": arguments.seed,
        "environment": run_environment(),
    }
    write_json(arguments.output_dir / "results.json", report)
    if rows:
        table = []
        for row in rows:
            table += [{**row, "baseline": None}, *({"model": row["model"], **other} for other in row["baselines"])]
        write_table(arguments.output_dir, report["text"], table, TABLE)
    return report


def result_key(arguments: argparse.Namespace, model: str, texts: list[str]) -> dict[str, Any]:
    """Everything that a score depends on."""
    return {
        **common_key(arguments, model, texts),
        "context_length": arguments.context_length,
        "share": arguments.share,
        "seed": arguments.seed,
        "ngram": arguments.ngram,
        "dataset": arguments.dataset if arguments.ngram else None,
    }


def score_model(
    arguments: argparse.Namespace,
    model_name: str,
    name: str,
    texts: list[str],
    ngrams: dict[str, ByteNGram],
    train: list[str],
    kernel_length: int | None = None,
) -> dict[str, Any]:
    """Scores one model, its kernels prepared for `kernel_length` tokens, and the baselines on the same questions."""
    set_seed(arguments.seed)
    device = torch.device(arguments.device or default_device())
    model, tokenizer = open_model(arguments, model_name, AutoModelForMaskedLM.from_pretrained)
    if kernel_length is not None:
        prepare_kernels(model, name, kernel_length)
    logger.info(f"{name}: {model.num_parameters():,} parameters, {model.dtype}, {device}")
    options = {"context_length": arguments.context_length, "share": arguments.share, "seed": arguments.seed}
    blocks = mask_documents(tokenizer, texts, **options)
    baselines = [
        {"baseline": f"{ngram_name}, bytes before", "bits_per_byte": ngram_bits_per_byte(ngram, texts, blocks)}
        for ngram_name, ngram in ngrams.items()
    ]
    if train:
        token, accuracy = majority_accuracy(tokenizer, train, blocks)
        baselines.append({"baseline": f"always {token!r}", "accuracy": accuracy})
    score = evaluate_masked_model(
        model,
        tokenizer,
        blocks,
        context_length=arguments.context_length,
        batch_size=arguments.batch_size,
        device=device,
    )
    return {
        **score.to_dict(),
        "baselines": baselines,
        "num_parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(device),
        "environment": run_environment(),
    }
