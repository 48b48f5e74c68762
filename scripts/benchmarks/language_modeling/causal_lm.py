"""The benchmark `language-modeling`: bits per byte of causal models at several context lengths."""

import argparse
from pathlib import Path
from typing import Any

from hf_seqmix.analysis.plots.results import plot_results
from hf_seqmix.data import bits_per_byte_gzip, bits_per_byte_xz
from hf_seqmix.training.command import positive
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result
from hf_seqmix.training.tables import results_table

from ..causal_scoring import result_key, score_model
from ..inputs import (
    add_text_arguments,
    common_arguments,
    describe_text,
    fit_ngram,
    load_texts,
)
from ..results import Report, origin, select, write_report
from ..saved_models import Keys, score_models

COMPRESSORS = {"gzip -9": bits_per_byte_gzip, "xz -9e": bits_per_byte_xz}

TABLE = {
    "bits_per_byte": "bits/byte:.4f",
    "perplexity": "perplexity/token:.6g",
    "word_perplexity": "perplexity/word:.6g",
    "num_tokens": "tokens:,.0f",
    "tokens_per_second": "tokens/s:,.0f",
}

TASK = "language modeling"
LABELS = {
    "context_length": "context length (tokens)",
    "bits_per_byte": "bits per byte",
    "perplexity": "perplexity per token",
    "position": "tokens of context",
    "position_perplexity": "perplexity per token",
}


def add_language_modeling(benchmarks: Any) -> None:
    """Add the sub-command `language-modeling`."""
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
        "--context-lengths",
        type=int,
        nargs="+",
        default=[128, 256, 512, 1024, 2048],
        help="tokens of context at most, a score for each",
    )
    parser.add_argument(
        "--stride",
        type=positive,
        help="tokens scored per block, for overlapping blocks; the context length by default",
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


def run_language_modeling(arguments: argparse.Namespace) -> Report:
    """Score every model at every context length that the output folder does not hold yet, and report all of them.

    Raises:
        ValueError: an argument makes no sense, the text cannot be read, or a model cannot be loaded.
    """
    lengths = sorted(set(arguments.context_lengths))
    if lengths[0] < 1:
        raise ValueError(f"--context-lengths must be positive; given {lengths[0]}.")
    texts = load_texts(arguments)
    ngrams = fit_ngram(arguments)
    title = describe_text(arguments, texts)

    def score(model: str, missing: Keys, log: ResultFile, shared: dict[str, Any]) -> None:
        score_model(arguments, model, texts, missing, log, shared)

    def keys_of(model: str) -> Keys:
        return {length: result_key(arguments, model, texts, length) for length in lengths}

    report = score_models(arguments, TASK, title, keys_of, score)
    references = {name: measure(texts) for name, measure in COMPRESSORS.items()} if arguments.compressors else {}
    references |= {name: ngram.bits_per_byte(texts) for name, ngram in ngrams.items()}
    parts = []
    if report.results:
        shared = {"task": TASK, "kind": "baseline", "setting": {"data": title}} | origin(arguments.benchmark)
        report.results += [
            Result(model=name, metric="bits_per_byte", value=v, **shared) for name, v in references.items()
        ]
        parts.append(describe(arguments.output_dir, report, title))
    write_report(arguments.output_dir, report, parts)
    return report


def describe(folder: Path, report: Report, title: str) -> str:
    """Return the table, and plot figures over the context length and over the position in the longest context."""
    shown = [result for result in report.results if result.get("position") is None]
    lengths = {r.get("context_length") for r in shown} - {None}
    marks = {f"configured length {value:g}": value for value in sorted(_configured(report.results))}
    plot_results(
        shown,
        folder / "context-lengths.png",
        x="context_length",
        y=("bits_per_byte", "perplexity"),
        marks={name: place for name, place in marks.items() if min(lengths) <= place <= max(lengths)},
        log_x=True,
        labels=LABELS,
        title=title,
    )
    by_position = select(report.results, metric="position_perplexity", context_length=max(lengths))
    if any(result.value is not None for result in by_position):  # None where a perplexity is beyond all numbers
        plot_results(
            by_position,
            folder / "positions.png",
            x="position",
            y="position_perplexity",
            labels=LABELS,
            title=f"{title}, {max(lengths)} tokens of context",
        )
    return f"{title}\n\n{results_table(shown, {'model': 'model', 'context_length': 'context'}, TABLE)}"


def _configured(results: list[Result]) -> set[float]:
    return {result.value for result in select(results, metric="max_position_embeddings") if result.value}
