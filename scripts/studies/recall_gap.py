r"""Compares language models at what they can recall from the context: which part of a gap is recall?

    python scripts/studies/recall_gap.py --models model_cards/hybrid-python-2m model_cards/tnn-python-2m \
        --context-lengths 256 1024 --output-dir runs/recall-gap

A token is repeated where its pair with the token before stood in the context. Repeated pairs that stood in the
training text fewer than 100 times are what a model has to recall: losses at these and at all other tokens, and how far
each model is behind the first one at either. recall-gap.md and recall-gap.png tell losses apart by how far back the
pair stood, and how often in training. All models need the same tokenizer. See hf_seqmix.analysis.text.repeated_pairs.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from study_models import load_model, load_tokenizer
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM

from hf_seqmix.analysis.plots.figures import draw_grid, legend_below, line
from hf_seqmix.analysis.text.documents import find_prefix_token, tokenize_documents
from hf_seqmix.analysis.text.repeated_pairs import (
    DISTANCE_EDGES,
    FREQUENT,
    PairCounts,
    PairScore,
    recall_gap,
    score_pairs,
)
from hf_seqmix.data import load_corpus
from hf_seqmix.training.command import CommandParser, device_name, explained, positive, refuse_twice
from hf_seqmix.training.folders.run_folder import prepare_run_folder
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results

COLUMNS = {
    "context_length": "context",
    "model": "model",
    "loss": "nats a token:.4f",
    "recalled_tokens": "recalled tokens:.1%",
    "recalled_loss": "nats at these:.4f",
    "other_loss": "at others:.4f",
    "gap": "behind the first:+.4f",
    "recall_gap": "at recalled tokens:+.4f",
    "other_gap": "at others:+.4f",
    "share_of_gap": "recall's share:.0%",
}
CLASSES = {
    "context_length": "context",
    "train_count": "pair in training",
    "distance": "tokens since it stood in the context",
    "num_tokens": "tokens:,",
}

logger = logging.getLogger("recall_gap")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog="recall_gap.py", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--models", nargs="+", required=True, metavar="NAME_OR_PATH", help="others are compared with the first"
    )
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a checkpoint")
    parser.add_argument(
        "--dataset",
        default="embedded:python-stdlib",
        help="data set whose pairs in training are counted; see pretrain.py",
    )
    parser.add_argument("--split", default="test", help="split of the data set that is scored")
    parser.add_argument(
        "--context-lengths", nargs="+", type=positive, default=[256, 1024], help="tokens of context at most"
    )
    parser.add_argument(
        "--max-tokens", type=positive, default=200_000, help="tokens of the split that are scored, at most"
    )
    parser.add_argument("--batch-size", type=positive, help="blocks a forward pass; about 8192 tokens by default")
    parser.add_argument("--device", type=device_name, help="by default an accelerator if there is one")
    parser.add_argument("--output-dir", type=Path, required=True, help="where tables, results and the picture go")
    return parser


def first_tokens(documents: Sequence[np.ndarray], limit: int) -> list[np.ndarray]:
    """Return documents until so many of their tokens are predicted, the last one cut."""
    kept: list[np.ndarray] = []
    for ids in documents:
        if limit <= 0:
            break
        kept.append(ids[: limit + 1])
        limit -= len(kept[-1]) - 1
    return kept


def rows_of(length: int, scores: dict[str, list[PairScore]]) -> list[dict[str, Any]]:
    """Return a row of the first table for each model."""
    reference = next(iter(scores.values()))
    rows = []
    for name, own in scores.items():
        gap = recall_gap(own, reference)
        recalled = [score for score in own if score.is_recall]
        others = [score for score in own if not score.is_recall]
        rows.append(
            {
                "context_length": length,
                "model": name,
                "loss": _mean(own),
                "recalled_tokens": gap.share_of_tokens,
                "recalled_loss": _mean(recalled),
                "other_loss": _mean(others),
                "gap": gap.total,
                "recall_gap": gap.recall,
                "other_gap": gap.others,
                "share_of_gap": gap.share_of_total if gap.total else None,
            }
        )
    return rows


def classes_of(length: int, scores: dict[str, list[PairScore]]) -> list[dict[str, Any]]:
    """Return a row for each class of tokens, with the mean `loss` of every model."""
    rows = []
    for same in zip(*scores.values(), strict=True):
        row = {
            "context_length": length,
            "train_count": _words(same[0].train_count, "never"),
            "distance": _words(same[0].distance, "new"),
            "num_tokens": same[0].num_tokens,
        }
        losses = {name: score.nll / score.num_tokens for name, score in zip(scores, same, strict=True)}
        rows.append(row | {"loss": losses})
    return rows


def plot(found: dict[int, dict[str, list[PairScore]]], path: Path) -> None:
    """Draw losses over distance for each context: rare pairs on the left, frequent ones on the right."""
    places = {low: place for place, low in enumerate(DISTANCE_EDGES[:-1])}
    used = 1 + max(places[score.distance[0]] for scores in found.values() for own in scores.values() for score in own)
    ticks = [
        "new",
        *(f"{low}+" if high is None else f"{low}-{high - 1}" for low, high in pairwise(DISTANCE_EDGES[1:])),
    ]
    with draw_grid(path, 10.5, 3.6 * len(found), len(found), 2, sharey="row") as (figure, grid):
        for panels, (length, scores) in zip(grid, found.items(), strict=True):
            for axes, frequent in zip(panels, (False, True), strict=True):
                for index, (name, own) in enumerate(scores.items()):
                    kept = [score for score in own if (score.train_count[0] >= FREQUENT) == frequent]
                    losses = {place: [s for s in kept if s.distance[0] == low] for low, place in places.items()}
                    means = {place: _mean(some) for place, some in losses.items() if some}
                    axes.plot(list(means), list(means.values()), label=name, **line(index))
                axes.set_xticks(range(used), ticks[:used])
                often = f"at least {FREQUENT}" if frequent else f"fewer than {FREQUENT}"
                axes.set(title=f"{often} times in training, context {length:,}", xlabel="tokens since the pair stood")
            panels[0].set_ylabel("nats a token")
        legend_below(figure, grid.flat)


@explained("recall_gap.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command line and return the rows of its first table; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    refuse_twice(models=arguments.models, context_lengths=arguments.context_lengths)
    prepare_run_folder(arguments.output_dir, resume=True)
    names = {name: Path(name).name for name in arguments.models}
    if len(set(names.values())) < len(names):
        names = {name: name for name in names}
    tokenizer = load_tokenizer(arguments.models, arguments.trust_remote_code)
    load = partial(load_model, auto_class=AutoModelForCausalLM, trust_remote_code=arguments.trust_remote_code)
    models: dict[str, Any] = {name: load(name)[0] for name in names}  # reading text takes minutes
    corpus = load_corpus(arguments.dataset)
    for split in ("train", arguments.split):
        if split not in corpus:
            raise ValueError(f"{arguments.dataset} has no split {split!r}; it has {', '.join(corpus)}.")
    prefix = find_prefix_token(tokenizer)

    def tokens_of(split: str) -> list[np.ndarray]:
        texts = tqdm(corpus[split]["text"], desc=f"reading the split {split}", unit="doc")
        return tokenize_documents(tokenizer, texts, prefix)[0]

    documents, counts = (
        first_tokens(tokens_of(arguments.split), arguments.max_tokens),
        PairCounts.of(tokens_of("train")),
    )
    device = arguments.device or (torch.accelerator.current_accelerator() or torch.device("cpu"))
    found: dict[int, dict[str, list[PairScore]]] = {length: {} for length in arguments.context_lengths}
    for checkpoint, name in names.items():
        model = models.pop(checkpoint).to(device)
        for length, scores in found.items():
            logger.info(f"{name}, context of {length:,} tokens")
            scores[name] = score_pairs(
                model, documents, counts, context_length=length, batch_size=arguments.batch_size
            )
    rows = [row for length, scores in found.items() for row in rows_of(length, scores)]
    classes = [row for length, scores in found.items() for row in classes_of(length, scores)]
    total = sum(len(ids) - 1 for ids in documents)
    title = (
        f"{total:,} tokens of the split {arguments.split} of {arguments.dataset}; recalled tokens: of pairs repeated "
    )
    title += f"in the context, fewer than {FREQUENT} times in training"
    shown = CLASSES | {name: f"{name}:.3f" for name in names.values()}
    results = row_results(rows, "recall", "model", setting=("context_length",))
    setting = ("context_length", "num_tokens")
    results += row_results(classes, "recall", "all", models=tuple(names.values()), setting=setting)
    by_model = [row | row["loss"] for row in classes]
    tables = [(title, rows, COLUMNS), ("Nats a token by class", by_model, shown)]
    folder = write_report(arguments, "recall-gap", tables, results)
    plot(found, folder / "recall-gap.png")
    return rows


def _mean(scores: Sequence[PairScore]) -> float:
    return sum(score.nll for score in scores) / max(1, sum(score.num_tokens for score in scores))


def _words(bounds: tuple[int, int | None], nothing: str) -> str:
    low, high = bounds
    if high is None:
        return f"{low:,} and more"
    return nothing if high == 1 else f"{low:,} to {high - 1:,}"


if __name__ == "__main__":
    main()
