"""Table and plot of `run_benchmarks.py corpora`."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_seqmix.analysis import LanguageModelScore
from hf_seqmix.analysis.plots import plot_context_lengths
from hf_seqmix.training.results import markdown_table

from .corpora_scoring import mean_over_seeds

PUBLISHED = {
    # Moreno, Mei, Walters 2023 (arXiv 2305.09028), table 1: validation, test, millions of parameters
    "Transformer": (24.40, 24.78, 44.65),
    "TNN": (23.98, 24.67, 48.68),
    "TNN, 3-layer encoder": (23.96, 24.61, 48.59),
    "FD-TNN": (23.97, 24.56, 48.58),
}
"""Causal models of WikiText-103 whole, 512 tokens of context, perplexity per GPT-2 token."""

SUMMARY = {
    "family": "family",
    "num_parameters": "parameters:,",
    "updates": "updates:,",
    "num_train_tokens": "training tokens:,",
    "validation": "validation perplexity:.4g",
    "test": "test perplexity:.4g",
    "bits_per_byte": "test bits/byte:.4f",
    "spread": "± over seeds:.4f",
    "num_seeds": "seeds",
    "steps_per_second": "updates/s:.3g",
}


def write_report(folder: Path, report: Mapping[str, Any]) -> None:
    """The tables, on standard output and as results.md, and perplexity-against-length.png."""
    masked = report["objective"] == "masked"
    bits = mean_over_seeds(report["results"], "bits_per_byte")
    perplexity = mean_over_seeds(report["results"], "perplexity")
    title = title_of(report)
    others = [{"family": f"({name})", "bits_per_byte": value} for name, value in report["references"].items()]
    of = "masked token" if masked else "token"
    parts = [
        title,
        markdown_table([*summarise(report), *others, *published_rows(report)], SUMMARY),
        f"Perplexity per {of} against inference length (tokens of context):",
        length_table(perplexity, ".4g"),
        f"Bits per byte{' of the masked tokens' if masked else ''} against inference length:",
        length_table(bits, ".4f"),
    ]
    for entry in report["impossible"]:
        where = f"{entry['family']}, seed {entry['seed']}, {entry['context_length']:,} tokens"
        parts.append(f"Not possible: {where}: {' '.join(entry['reason'].split())}")
    parts.append(notes(report))
    text = "\n\n".join(parts)
    print(text)
    (folder / "results.md").write_text(f"{text}\n", encoding="utf-8")
    plot(folder / "perplexity-against-length.png", report, title)


def title_of(report: Mapping[str, Any]) -> str:
    """What was trained, and what was scored."""
    text, seeds = report["text"], len(report["seeds"])
    scored = f"{text['bytes']:,} of {text['all_test_bytes']:,} test bytes"
    return (
        f"{report['corpus']}, {report['objective']}, {report['size']} size: {text['source']}.\n"
        f"Trained at {report['context_length']} tokens, {seeds} seed{'s' if seeds > 1 else ''}; {scored} scored, "
        f"{text['documents']} document{'s' if text['documents'] > 1 else ''}"
    )


def summarise(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row a family at the training length: means over its seeds, and the standard deviation where there are several.

    A seed whose model could not be scored there is left out, unless none could be.
    """
    summary = []
    for family in dict.fromkeys(row["family"] for row in report["training"]):
        own = [row for row in report["training"] if row["family"] == family]
        scores = [
            row
            for row in report["results"]
            if (row["family"], row["context_length"]) == (family, report["context_length"])
        ]
        scored = {row["seed"] for row in scores}
        own = [row for row in own if row["seed"] in scored] or own
        bits = [row["bits_per_byte"] for row in scores]
        speeds = [row["steps_per_second"] for row in own if row["steps_per_second"]]
        summary.append(
            {
                **{key: own[0][key] for key in ("family", "num_parameters", "updates", "num_train_tokens")},
                "validation": statistics.mean(row["validation_perplexity"] for row in own),
                "test": statistics.mean(row["perplexity"] for row in scores) if scores else None,
                "bits_per_byte": statistics.mean(bits) if bits else None,
                "spread": statistics.stdev(bits) if len(bits) > 1 else None,
                "num_seeds": len(own),
                "steps_per_second": statistics.mean(speeds) if speeds else None,
            }
        )
    return summary


def published_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The papers' figures, of WikiText-103 whole alone."""
    if report["corpus"] != "wikitext-103" or report["objective"] != "causal":
        return []
    return [
        {
            "family": f"{name} (published)",
            "num_parameters": round(millions * 1e6),
            "updates": 50_000,
            "num_train_tokens": 50_000 * 65_536,
            "validation": validation,
            "test": test,
        }
        for name, (validation, test, millions) in PUBLISHED.items()
    ]


def length_table(values: Mapping[str, Mapping[int, float]], spec: str) -> str:
    """Families down, inference lengths across."""
    lengths = sorted({length for own in values.values() for length in own})
    columns = {"family": "family", **{str(length): f"{length}:{spec}" for length in lengths}}
    rows = [
        {"family": family, **{str(length): value for length, value in own.items()}} for family, own in values.items()
    ]
    return markdown_table(rows, columns)


def notes(report: Mapping[str, Any]) -> str:
    """What a reader has to know before comparing."""
    said = ["Perplexity compares models with the same tokenizer; bits per byte compare all."]
    if report["objective"] == "masked":
        said.append("Masked tokens (15 %) are the same at every length; the n-gram is shown every byte before each.")
    if report["size"] != "full":
        said.append("Models and budgets are small: no figure of a paper is to be expected.")
    if report["corpus"] == "wikitext-103":
        said.append(
            "Published: Moreno, Mei, Walters 2023, table 1, whose line ends are end-of-sentence tokens; here they are text."
        )
    if report["corpus"].endswith("-head"):
        said.append("Not comparable with figures of the whole corpus.")
    return " ".join(said)


def plot(path: Path, report: Mapping[str, Any], title: str) -> None:
    """Perplexity and bits per byte against inference length, a line a run, the training length dotted."""
    scores: dict[str, list[LanguageModelScore]] = {}
    for row in report["results"]:
        name = row["family"] if len(report["seeds"]) == 1 else f"{row['family']}, seed {row['seed']}"
        scores.setdefault(name, []).append(as_score(row))
    plot_context_lengths(
        scores,
        path,
        configured_lengths=dict.fromkeys(scores, report["context_length"]),
        references=report["references"],
        title=title,
    )


def as_score(row: Mapping[str, Any]) -> LanguageModelScore:
    """A row of a causal or masked model as what the plot takes; the masked tokens are the text then."""
    if "num_tokens" in row:
        return LanguageModelScore.from_dict(row)
    nothing: Sequence[Any] = ()
    return LanguageModelScore(
        context_length=row["context_length"],
        stride=row["context_length"],
        nll=row["nll"],
        num_tokens=row["num_masked"],
        num_bytes=row["num_bytes"],
        num_words=0,
        num_documents=0,
        num_unknown=0,
        position_start=tuple(nothing),
        position_tokens=tuple(nothing),
        position_nll=tuple(nothing),
        seconds=row["seconds"],
    )
