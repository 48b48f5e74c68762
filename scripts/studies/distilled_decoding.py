"""Measures what a trained model loses where the tails of its kernels are decaying modes (`distill_decoder`).

    python scripts/studies/distilled_decoding.py --threads 1 --output-dir runs/distilled
    python scripts/studies/distilled_decoding.py --models runs/tnn --tolerances 1e-3 --rounds 50 --output-dir runs/tail

For each checkpoint, number of exact taps and tolerance: the order that each layer needs, bounds and errors of taps,
logits with each layer distilled alone and with all, and the perplexity of held-out text beside that of the exact
kernels. Then the memory of a cache and the products of a step at several lengths, and with `--rounds` times of a step.
Writes tables, results, and a plot of singular values, orders and perplexities.
"""

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from distillation.costs import costs_of
from distillation.losses import fits_of, load
from distillation.report import COST_COLUMNS, LAYER_COLUMNS, MODEL_COLUMNS, plot

from hf_seqmix.data.text import load_corpus
from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import CommandParser, explained, not_negative, positive, refuse_twice
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results

logger = logging.getLogger("distilled_decoding")


def held_out(arguments: argparse.Namespace) -> list[str]:
    """Return the texts that are scored.

    Raises:
        ValueError: the data has no split `test`.
    """
    corpus = load_corpus(arguments.dataset)
    if "test" not in corpus:
        raise ValueError(f"{arguments.dataset} has the splits {', '.join(corpus)}, and no test to score.")
    return list(corpus["test"]["text"][: arguments.documents])


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog="distilled_decoding.py", description=__doc__)
    cards = ["model_cards/tnn-python-2m", "model_cards/fd-tnn-python-2m"]
    parser.add_argument(
        "--models", nargs="+", default=cards, metavar="PATH", help="checkpoints, folders or names on the Hub"
    )
    parser.add_argument(
        "--tolerances",
        type=float,
        nargs="+",
        default=[1e-1, 1e-2, 1e-3, 1e-4],
        help="relative errors that kernels may have; costs are of the last",
    )
    parser.add_argument(
        "--exact-taps",
        type=not_negative,
        nargs="+",
        default=[16, 64],
        help="first taps that are kept exactly; costs are of the last number",
    )
    parser.add_argument(
        "--dataset", default="embedded:python-stdlib", help="data set whose split `test` is scored; see pretrain.py"
    )
    parser.add_argument("--documents", type=positive, help="texts of the split to score; all by default")
    parser.add_argument("--context-length", type=positive, default=1024, help="tokens of a block of the text")
    parser.add_argument(
        "--lengths",
        type=positive,
        nargs="+",
        default=[256, 1024, 4096, 16384],
        help="tokens in a cache, for memory and costs",
    )
    parser.add_argument("--rounds", type=not_negative, default=0, help="timed rounds of a step; 0 for none")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument("--output-dir", type=Path, required=True, help="where results, tables and the plot go")
    return parser


@explained("distilled_decoding.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command line and return the rows of the models; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    begin = time.perf_counter()
    layers: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    costs: list[dict[str, Any]] = []
    values: dict[str, dict[int, dict[int, list[float]]]] = {}
    refuse_twice(tolerances=arguments.tolerances, exact_taps=arguments.exact_taps, lengths=arguments.lengths)
    if len({Path(path).name for path in arguments.models}) < len(arguments.models):
        raise ValueError(
            f"two of --models have one folder name, by which tables and plot tell them apart; given "
            f"{', '.join(arguments.models)}: rename a folder."
        )
    prepare_run_folder(arguments.output_dir, resume=True)
    for path in arguments.models:  # before the first is measured
        load(path)
    texts = held_out(arguments)
    for path in arguments.models:
        of_layers, of_models, values[Path(path).name] = fits_of(path, texts, arguments)
        layers, models, costs = layers + of_layers, models + of_models, costs + costs_of(path, arguments)
    results = [
        result
        for rows, task in ((layers, "distilled layers"), (models, "distilled models"), (costs, "distilled cost"))
        for result in row_results(rows, task, "model", setting=("exact_taps", "tolerance", "layer", "length"))
    ]
    titles: list[tuple[str, Sequence[dict[str, Any]], dict[str, str]]] = [
        (
            f"Held-out text: {len(texts)} documents, in blocks of {arguments.context_length}.",
            models,
            MODEL_COLUMNS,
        ),
        ("Layers; errors and bounds of taps are relative to the l1 norm of the kernel.", layers, LAYER_COLUMNS),
        ("What a cache holds and a step multiplies.", costs, COST_COLUMNS),
    ]
    write_report(arguments, "distilled", titles, results)
    plot(arguments.output_dir / "distilled.png", layers, models, values)
    logger.info(f"{arguments.output_dir}: done in {time.perf_counter() - begin:.1f} s")
    return models


if __name__ == "__main__":
    main()
