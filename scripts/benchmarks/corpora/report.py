"""Tables and plot of `run_benchmarks.py corpora`."""

import argparse
import json
from collections.abc import Mapping, Sequence

from hf_seqmix.analysis.plots.results import plot_results
from hf_seqmix.training.results import Result, group_results
from hf_seqmix.training.tables import results_table

from ..results import select
from .scoring import TrainedModel

PUBLISHED = {
    # Moreno, Mei, Walters 2023 (arXiv 2305.09028), table 1: validation, test, millions of parameters
    "Transformer": (24.40, 24.78, 44.65),
    "TNN": (23.98, 24.67, 48.68),
    "TNN, 3-layer encoder": (23.96, 24.61, 48.59),
    "FD-TNN": (23.97, 24.56, 48.58),
}
"""Causal models of WikiText-103 whole, 512 tokens of context, perplexity per GPT-2 token."""

SOURCE = "Moreno, Mei, Walters 2023, table 1"

SUMMARY = {
    "num_parameters": "parameters:,.0f",
    "updates": "updates:,.0f",
    "num_train_tokens": "training tokens:,.0f",
    "validation_perplexity": "validation perplexity:.4g",
    "perplexity": "test perplexity:.4g",
    "bits_per_byte": "test bits/byte:.4f",
    "steps_per_second": "updates/s:.3g",
}
FAMILY = {"model": "family"}
LABELS = {"context_length": "context length (tokens)", "bits_per_byte": "bits per byte", "perplexity": "perplexity"}


def describe(
    arguments: argparse.Namespace,
    results: Sequence[Result],
    impossible: Mapping[str, str],
    title: str,
    models: Sequence[TrainedModel],
) -> list[str]:
    """Return the tables, and plot perplexity and bits per byte against inference length.

    Args:
        arguments: of the command line.
        results: of training and scoring, baselines and published figures.
        impossible: what could not be scored -> why.
        title: names the data.
        models: that were trained.
    """
    masked = arguments.objective == "masked"
    scores = [r for r in results if r.get("context_length") is not None and r.kind == "measured"]
    lengths = sorted({result.get("context_length") for result in scores})
    parts = [
        f"{title}, {arguments.size} size",
        results_table(summary(results, arguments.context_length), FAMILY, SUMMARY),
    ]
    of = {"perplexity": f"Perplexity per {'masked ' if masked else ''}token"}
    of["bits_per_byte"] = f"Bits per byte{' of the masked tokens' if masked else ''}"
    for metric, spec in (("perplexity", ".4g"), ("bits_per_byte", ".4f")):
        columns = {length: f"{length}:{spec}" for length in lengths}
        table = results_table(select(scores, metric=metric), FAMILY, columns, over="context_length")
        parts += [f"{of[metric]} against inference length (tokens of context):", table]
    parts += [f"Not possible: {name}: {' '.join(reason.split())}" for name, reason in impossible.items()]
    parts.append(f"{notes(arguments)} {trained_in(models)}")
    plot_results(
        [r for r in results if r.kind != "published"],
        arguments.output_dir / "perplexity-against-length.png",
        x="context_length",
        y=("bits_per_byte", "perplexity"),
        marks={"training length": arguments.context_length},
        log_x=True,
        labels=LABELS,
        title=title,
    )
    return parts


def summary(results: Sequence[Result], trained: int) -> list[Result]:
    """Return what the first table shows: runs, their scores at the training length, baselines and published figures.

    A seed whose model could not be scored there is left out, unless none could be.
    """
    scores = select(results, context_length=trained)
    scored = {(result.model, result.seed) for result in scores}
    families = {model for model, _ in scored}
    return [
        result
        for result in results
        if result.get("context_length") in (None, trained)
        and (result.kind != "measured" or result.model not in families or (result.model, result.seed) in scored)
        and result.get("step") is None
        and result.get("position") is None
    ]


def published(corpus: str, objective: str) -> list[Result]:
    """Return the papers' figures, which are of WikiText-103 whole alone."""
    if corpus != "wikitext-103" or objective != "causal":
        return []
    results = []
    for name, (validation, test, millions) in PUBLISHED.items():
        values: dict[str, float] = {
            "num_parameters": round(millions * 1e6),
            "updates": 50_000,
            "num_train_tokens": 50_000 * 65_536,
        }
        values |= {"validation_perplexity": validation, "perplexity": test}
        fields = {"task": "language modeling", "size": "full", "kind": "published", "source": SOURCE}
        results += group_results(values, model=name, **fields)
    return results


def notes(arguments: argparse.Namespace) -> str:
    """Return what a reader has to know before comparing."""
    said = ["Perplexity compares models with the same tokenizer; bits per byte compare all."]
    if arguments.objective == "masked":
        said.append("Masked tokens (15 %) are the same at every length; the n-gram is shown every byte before each.")
    if arguments.size != "full":
        said.append("Models and budgets are small: no figure of a paper is to be expected.")
    if arguments.corpus == "wikitext-103":
        said.append(f"Published: {SOURCE}, whose line ends are end-of-sentence tokens; here they are text.")
    if arguments.corpus.endswith("-head"):
        said.append("Not comparable with figures of the whole corpus.")
    return " ".join(said)


def trained_in(models: Sequence[TrainedModel]) -> str:
    """Return the precision that models were trained in, as their runs say; which ones, where that differs."""
    found: dict[str, list[str]] = {}
    for model in models:
        text = (model.folder / "results.json").read_text(encoding="utf-8")
        told = json.loads(text)["arguments"]["training"]
        dtype = "bfloat16" if told["bf16"] else "float16" if told["fp16"] else "float32"
        found.setdefault(dtype, []).append(f"{model.family} (seed {model.seed})")
    if len(found) == 1:
        return f"Trained in {next(iter(found))}."
    parts = [f"{dtype}: {', '.join(who)}" for dtype, who in found.items()]
    return f"Trained in several precisions: {'; '.join(parts)}."
