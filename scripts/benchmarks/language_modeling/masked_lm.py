"""The benchmark `masked-language-modeling`: how well masked models fill gaps in held-out text."""

import argparse
import logging
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, set_seed

from hf_seqmix.analysis.text.masked_modeling import (
    check_masking,
    evaluate_masked_model,
    majority_accuracy,
    mask_documents,
    ngram_bits_per_byte,
)
from hf_seqmix.data import ByteNGram
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result, group_results
from hf_seqmix.training.tables import results_table

from ..inputs import (
    add_text_arguments,
    common_arguments,
    common_key,
    default_device,
    describe_text,
    fit_ngram,
    load_texts,
    load_training_texts,
    named,
    open_model,
    prepare_kernels,
    short_names,
    text_hash,
)
from ..results import LOG, Report, origin, write_report

TASK = "masked language modeling"
TABLE = {
    "accuracy": "accuracy:.4f",
    "token_loss": "nats/token:.4f",
    "bits_per_byte": "bits/byte:.4f",
}

logger = logging.getLogger("run_benchmarks")


def add_masked_language_modeling(benchmarks: Any) -> None:
    """Add the sub-command `masked-language-modeling`."""
    parser = benchmarks.add_parser(
        "masked-language-modeling",
        parents=[common_arguments()],
        allow_abbrev=False,
        help="accuracy and bits per byte of masked tokens",
        description="How well masked language models guess tokens of held-out text, each gap hidden by the mask token "
        "and drawn once for all models of a tokenizer. With --ngram, the most frequent training token and an n-gram "
        "that is shown every byte before a gap answer the same questions.",
    )
    add_text_arguments(parser)
    parser.add_argument("--context-length", type=int, default=128, help="tokens of a block, gaps included")
    parser.add_argument("--share", type=float, default=0.15, help="of the tokens, to mask")
    parser.set_defaults(run=run_masked_language_modeling)


def run_masked_language_modeling(arguments: argparse.Namespace) -> Report:
    """Score every model that the output folder does not hold yet, and report all of them.

    Raises:
        ValueError: an argument makes no sense, or the text cannot be read.
    """
    check_masking(arguments.context_length, arguments.share)
    texts = load_texts(arguments)
    ngrams = fit_ngram(arguments)
    train = load_training_texts(arguments) if ngrams else []
    log = ResultFile(arguments.output_dir / LOG)
    title = describe_text(arguments, texts)
    report = Report()
    for model, name in zip(arguments.models, short_names(arguments.models), strict=True):
        key = result_key(arguments, model, texts, train)
        if arguments.overwrite:
            log.forget(key)
        if log.get(key) is None:
            shared = {"task": TASK, "model": name, "seed": arguments.seed, "setting": {"data": title}}
            try:
                shared |= origin(arguments.benchmark)
                log.append(key, score_model(arguments, model, texts, ngrams, train, shared))
            except ValueError as error:
                report.failures[name] = str(error)
                logger.error(f"{name}: {error}")
        else:
            logger.info(f"{name}: the result was there already")
        report.results += named(log.get(key), name)
    rows = {"model": "model", "gaps": "gaps"}
    parts = [f"{title}\n\n{results_table(report.results, rows, TABLE)}"] if report.results else []
    write_report(arguments.output_dir, report, parts)
    return report


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
    shared |= {"kind": "baseline"}
    for ngram_name, ngram in ngrams.items():
        shared["model"] = f"{ngram_name}, bytes before"
        results += group_results({"bits_per_byte": ngram_bits_per_byte(ngram, texts, blocks)}, **shared)
    if train:
        token, accuracy = majority_accuracy(tokenizer, train, blocks)
        shared["model"] = f"always {token!r}"
        results += group_results({"accuracy": accuracy}, **shared)
    return results
