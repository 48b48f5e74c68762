"""The benchmark `language-modeling` of run_benchmarks.py: bits per byte of causal models at several context lengths."""

import argparse
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, set_seed

from hf_seqmix._files import write_json
from hf_seqmix.analysis import LanguageModelScore, iter_language_model_scores
from hf_seqmix.analysis.plots import plot_context_lengths, plot_positions
from hf_seqmix.analysis.report import ResultLog
from hf_seqmix.data import bits_per_byte_gzip, bits_per_byte_xz
from hf_seqmix.training.results import run_environment

from .benchmark_inputs import (
    add_text_arguments,
    common_arguments,
    common_key,
    default_device,
    describe_text,
    fit_ngram,
    load_texts,
    open_model,
    prepare_kernels,
    short_names,
    write_table,
)

COMPRESSORS = {"gzip -9": bits_per_byte_gzip, "xz -9": bits_per_byte_xz}

TABLE = {
    "model": "model",
    "context_length": "context",
    "bits_per_byte": "bits/byte:.4f",
    "perplexity": "perplexity/token:.6g",
    "word_perplexity": "perplexity/word:.6g",
    "num_tokens": "tokens:,",
    "tokens_per_second": "tokens/s:,.0f",
}

logger = logging.getLogger("run_benchmarks")


def add_language_modeling(benchmarks: Any) -> None:
    """Adds the sub-command `language-modeling`."""
    parser = benchmarks.add_parser(
        "language-modeling",
        parents=[common_arguments()],
        allow_abbrev=False,
        help="bits per byte and perplexity of causal models at several context lengths",
        description="Bits per byte and perplexity of causal language models at several context lengths. Every byte of "
        "the text is scored once for each; documents are scored apart, each after the tokenizer's beginning- or "
        "end-of-sequence token.",
    )
    add_text_arguments(parser)
    parser.add_argument(
        "--context-lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048], help="tokens of context at most"
    )
    parser.add_argument(
        "--stride", type=int, help="tokens scored per block, for overlapping blocks; the context length by default"
    )
    parser.add_argument(
        "--context-length",
        type=int,
        help="prepare models whose kernels live on a grid for so many tokens first (set_context_length)",
    )
    parser.add_argument(
        "--compressors", action="store_true", help="show gzip and xz of the same text beside the models"
    )
    parser.set_defaults(run=run_language_modeling)


def run_language_modeling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores every model at every context length that the output folder does not hold yet, and reports all of them.

    Raises:
        ValueError: an argument makes no sense, the text cannot be read, or a model cannot be loaded.
    """
    lengths = sorted(set(arguments.context_lengths))
    if lengths[0] < 1:
        raise ValueError(f"--context-lengths must be positive; given {lengths[0]}.")
    texts = load_texts(arguments)
    ngrams = fit_ngram(arguments)
    log = ResultLog(arguments.output_dir / "results.jsonl")
    names = short_names(arguments.models)

    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for model, name in zip(arguments.models, names, strict=True):
        keys = {length: result_key(arguments, model, texts, length) for length in lengths}
        if arguments.overwrite:
            for key in keys.values():
                log.forget(key)
        missing = [length for length in lengths if log.get(keys[length]) is None]
        if missing:
            try:
                score_model(arguments, model, name, texts, {length: keys[length] for length in missing}, log)
            except ValueError as error:
                failures[name] = str(error)
                logger.error(f"{name}: {error}")
        if len(missing) < len(lengths):
            logger.info(f"{name}: {len(lengths) - len(missing)} of {len(lengths)} results were there already")
        for length in lengths:
            result = log.get(keys[length])
            if result is not None:
                rows.append({"model": name, "path": model, **result})

    references = {name: measure(texts) for name, measure in COMPRESSORS.items()} if arguments.compressors else {}
    references |= {name: ngram.bits_per_byte(texts) for name, ngram in ngrams.items()}
    report = {
        "benchmark": arguments.benchmark,
        "text": describe_text(arguments, texts),
        "references": {name: {"bits_per_byte": value} for name, value in references.items()},
        "results": rows,
        "failures": failures,
        "seed": arguments.seed,
        "environment": run_environment(),
    }
    write_json(arguments.output_dir / "results.json", report)
    if rows:
        write_language_modeling_report(arguments.output_dir, report)
    return report


def result_key(arguments: argparse.Namespace, model: str, texts: list[str], context_length: int) -> dict[str, Any]:
    """Everything that a score depends on."""
    return {
        **common_key(arguments, model, texts),
        "context_length": context_length,
        "stride": arguments.stride or context_length,
        "set_context_length": arguments.context_length,
    }


def score_model(
    arguments: argparse.Namespace,
    model_name: str,
    name: str,
    texts: list[str],
    keys: dict[int, dict[str, Any]],
    log: ResultLog,
) -> None:
    """Scores one model at the context lengths of `keys` and adds the scores to the log."""
    set_seed(arguments.seed)
    device = torch.device(arguments.device or default_device())
    model, tokenizer = open_model(arguments, model_name, AutoModelForCausalLM.from_pretrained)
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
    for score in scores:
        result = {
            **score.to_dict(),
            "tokens_per_second": score.num_tokens / score.seconds,
            "num_parameters": model.num_parameters(),
            "max_position_embeddings": getattr(model.config, "max_position_embeddings", None),
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(device),
            "environment": run_environment(),
        }
        log.append(keys[score.context_length], result)


def write_language_modeling_report(folder: Path, report: dict[str, Any]) -> None:
    """The table, on standard output and as a file, and the plots."""
    rows = [*report["results"], *({"model": name, **values} for name, values in report["references"].items())]
    title = write_table(folder, report["text"], rows, TABLE)

    scores: dict[str, list[LanguageModelScore]] = {}
    configured: dict[str, int] = {}
    for row in report["results"]:
        scores.setdefault(row["model"], []).append(LanguageModelScore.from_dict(row))
        if row["max_position_embeddings"]:
            configured[row["model"]] = row["max_position_embeddings"]
    plot_context_lengths(
        scores,
        folder / "context-lengths.png",
        configured_lengths=configured,
        references={name: values["bits_per_byte"] for name, values in report["references"].items()},
        title=title,
    )
    plot_positions(scores, folder / "positions.png", configured_lengths=configured, title=title)
