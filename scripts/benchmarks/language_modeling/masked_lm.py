"""The benchmark `masked-language-modeling`: how well masked models fill gaps in held-out text."""

import argparse
from typing import Any

from hf_seqmix.analysis.text.masked_modeling import check_masking
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.tables import results_table

from ..inputs import (
    add_text_arguments,
    common_arguments,
    describe_text,
    fit_ngram,
    load_texts,
    load_training_texts,
)
from ..masked_scoring import result_key, score_model
from ..results import Report, write_report
from ..saved_models import Keys, score_models

TASK = "masked language modeling"
TABLE = {
    "accuracy": "accuracy:.4f",
    "token_loss": "nats/token:.4f",
    "bits_per_byte": "bits/byte:.4f",
}


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
    parser.add_argument("--share", type=float, default=0.15, help="share of the tokens to mask")
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
    title = describe_text(arguments, texts)

    def score(model: str, missing: Keys, log: ResultFile, shared: dict[str, Any]) -> None:
        for key in missing.values():
            log.append(key, score_model(arguments, model, texts, ngrams, train, shared))

    def keys_of(model: str) -> Keys:
        return {arguments.context_length: result_key(arguments, model, texts, train)}

    report = score_models(arguments, TASK, title, keys_of, score)
    rows = {"model": "model", "gaps": "gaps"}
    parts = [f"{title}\n\n{results_table(report.results, rows, TABLE)}"] if report.results else []
    write_report(arguments.output_dir, report, parts)
    return report
