"""Measures what a trained model loses where the tails of its kernels are decaying modes (`distill_decoder`).

    python scripts/studies/distilled_decoding.py --threads 1 --output-dir runs/distilled
    python scripts/studies/distilled_decoding.py --models runs/tnn --tolerances 1e-3 --rounds 50 --output-dir runs/tail

For each checkpoint, number of exact taps and tolerance: the order that each layer needs, bounds and errors of taps,
logits with each layer distilled alone and with all, and the perplexity of held-out text beside that of the exact
kernels. Then the memory of a cache and the products of a step at several lengths, and with `--rounds` times of a step.
Writes tables, results, and a plot of singular values, orders and perplexities.
"""

import argparse
import itertools
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from hf_seqmix.analysis import evaluate_language_model
from hf_seqmix.analysis.plots.figures import draw_grid, legend_below, line
from hf_seqmix.data.text import load_corpus
from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import explained, not_negative, positive
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.timing import Clock, interleave, medians_ms

logger = logging.getLogger("distilled_decoding")

LAYER_COLUMNS = {
    "model": "model",
    "exact_taps": "exact taps",
    "tolerance": "tolerance:.0e",
    "layer": "layer",
    "order": "order",
    "error": "l1 error:.1e",
    "tap_error": "error of a tap:.1e",
    "tap_bound": "bound on that:.1e",
    "logit_error": "error of a logit:.1e",
}
MODEL_COLUMNS = {
    "model": "model",
    "exact_taps": "exact taps",
    "tolerance": "tolerance:.0e",
    "orders": "orders",
    "seconds": "seconds to fit:.1f",
    "logit_error": "error of a logit:.1e",
    "largest_logit": "largest logit:.1f",
    "step_error": "steps and one call:.1e",
    "exact_perplexity": "perplexity, exact:.4f",
    "perplexity": "distilled:.4f",
    "change": "change:+.4%",
}
COST_COLUMNS = {
    "model": "model",
    "decoder": "decoder",
    "length": "tokens held",
    "cache_bytes": "bytes of the cache:,.0f",
    "products": "products a token and channel:.0f",
    "step_ms": "ms a step:.3f",
}


def load(path: str) -> Any:
    """Return a checkpoint in float32, for evaluation.

    Raises:
        ValueError: it has no kernels.
    """
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    if not hasattr(model, "distill_decoder"):
        raise ValueError(
            f"{path} is a {type(model).__name__}, which has no kernels to distill: give models of TNN, of FD-TNN or "
            "hybrids of them."
        )
    return model


def held_out(arguments: argparse.Namespace) -> list[str]:
    """Return the texts that are scored.

    Raises:
        ValueError: the data has no split `test`.
    """
    corpus = load_corpus(arguments.dataset)
    if "test" not in corpus:
        raise ValueError(f"{arguments.dataset} has the splits {', '.join(corpus)}, and no test to score.")
    return list(corpus["test"]["text"][: arguments.documents])


def perplexity(model: Any, tokenizer: Any, texts: Sequence[str], length: int, with_cache: bool) -> float:
    """Return the perplexity of texts, by calls with an empty cache or without one."""
    forward = model.forward

    def cached(input_ids: Tensor, logits_to_keep: int = 0) -> Any:
        cache = DynamicCache(config=model.config)
        return forward(input_ids, past_key_values=cache, logits_to_keep=logits_to_keep)

    model.forward = cached if with_cache else forward
    try:
        return evaluate_language_model(model, tokenizer, texts, context_lengths=[length], progress=False)[0].perplexity
    finally:
        model.forward = forward


@torch.inference_mode()
def step_error(model: Any, ids: Tensor) -> float:
    """Return the largest difference of logits between steps of one token and one call."""
    cache, whole = DynamicCache(config=model.config), model(ids, past_key_values=DynamicCache(config=model.config))
    steps = [model(column, past_key_values=cache).logits for column in ids.split(1, dim=1)]
    return float((torch.cat(steps, dim=1) - whole.logits).abs().max())


def fits_of(
    path: str, texts: Sequence[str], arguments: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[int, dict[int, list[float]]]]:
    """Return the rows of layers and of models, and the singular values by number of exact taps and layer."""
    model, tokenizer, name = load(path), AutoTokenizer.from_pretrained(path), Path(path).name
    ids = torch.tensor([tokenizer("\n".join(texts))["input_ids"][: arguments.context_length]])
    exact = perplexity(model, tokenizer, texts, arguments.context_length, with_cache=False)
    layers: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    values: dict[int, dict[int, list[float]]] = {}
    known: dict[tuple[int, ...], float] = {}
    for exact_taps in arguments.exact_taps:
        for tolerance in arguments.tolerances:
            setting = {"model": name, "exact_taps": exact_taps, "tolerance": tolerance}
            begin = time.perf_counter()
            report = model.distill_decoder(tolerance=tolerance, exact_taps=exact_taps)
            seconds = time.perf_counter() - begin
            errors = report.measure(ids)
            orders = [fit.order for fit in report.fits.values()]
            key = (exact_taps, *orders)
            if key not in known:
                known[key] = perplexity(model, tokenizer, texts, arguments.context_length, with_cache=True)
            layers += [setting | row | {"logit_error": errors[f"layer {row['layer']}"]} for row in report.rows()]
            models.append(
                {
                    **setting,
                    "orders": ", ".join(map(str, orders)),
                    "seconds": seconds,
                    "logit_error": errors["all"],
                    "largest_logit": float(model(ids, use_cache=False).logits.detach().abs().max()),
                    "step_error": step_error(model, ids),
                    "exact_perplexity": exact,
                    "perplexity": known[key],
                    "change": known[key] / exact - 1,
                }
            )
            logger.info(f"{name}, {exact_taps} taps, {tolerance:.0e}: orders {orders}, {models[-1]['change']:+.4%}")
            values[exact_taps] = {layer: fit.singular_values.tolist() for layer, fit in report.fits.items()}
    return layers, models, values


@torch.inference_mode()
def costs_of(path: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what a cache holds and a step multiplies after so many tokens, with exact kernels and distilled."""
    exact, distilled = load(path), load(path)
    report = distilled.distill_decoder(tolerance=arguments.tolerances[-1], exact_taps=arguments.exact_taps[-1])
    rows = []
    for length in arguments.lengths:
        ids = torch.randint(exact.config.vocab_size, (1, length))
        caches: dict[str, Any] = {}
        sizes = {}
        for decoder, model in (("exact", exact), ("distilled", distilled)):
            cache = caches[decoder] = DynamicCache(config=model.config)
            model(ids, past_key_values=cache, logits_to_keep=1)
            model(ids[:, :1], past_key_values=cache)  # the first step makes the state
            sizes[decoder] = sum(bytes_of(layer) for layer in cache.layers)
        # The window between two foldings, and a complex product a mode to read the state, and one to fill it.
        window = [layer.keys.shape[2] for layer in caches["distilled"].layers]
        modes = [4 * len(fit.poles) for fit in report.fits.values()]
        products = {"distilled": float(np.mean(window) + np.mean(modes))}
        times = {}
        if arguments.rounds:
            steps = {name: timed(model, caches[name]) for name, model in (("exact", exact), ("distilled", distilled))}
            measured = interleave(steps, arguments.rounds, Clock(ids.device))
            times = {name: medians_ms(seconds)[0] for name, seconds in measured.items()}
        for decoder in caches:
            row = {"model": Path(path).name, "decoder": decoder, "length": length, "cache_bytes": sizes[decoder]}
            rows.append(row | {"products": products.get(decoder), "step_ms": times.get(decoder)})
    return rows


def bytes_of(layer: Any) -> int:
    """Return the bytes that a layer of a cache holds."""
    state = getattr(layer, "state", None)
    if state is None or isinstance(state, Tensor):
        return sum(x.nbytes for x in (layer.keys, state) if x is not None)
    return state.memory  # of an exact convolution, whose history is part of that


def timed(model: Any, cache: Any) -> Callable[[Clock], tuple[float, ...]]:
    """Return a function that times a step and takes the step back."""

    def run(clock: Clock) -> tuple[float, ...]:
        begin = clock.mark()
        model(torch.zeros(1, 1, dtype=torch.long), past_key_values=cache)
        end = clock.mark()
        cache.crop(-1)
        return (clock.between(begin, end),)

    return run


def plot(
    path: Path,
    layers: Sequence[dict[str, Any]],
    models: Sequence[dict[str, Any]],
    values: dict[str, dict[int, dict[int, list[float]]]],
) -> None:
    """Draw a row a checkpoint: singular values, orders over tolerances, changes of perplexity over tolerances."""
    with draw_grid(path, 15, 3.4 * len(values), len(values), 3) as (figure, panels):
        for (name, by_taps), (left, middle, right) in zip(values.items(), panels, strict=True):
            dashes = dict(zip(by_taps, itertools.cycle(("-", "--", ":", "-.")), strict=False))
            for taps, by_layer in by_taps.items():
                for layer, sigma in by_layer.items():
                    label, style = f"layer {layer}, {taps} exact taps", line(layer) | {"linestyle": dashes[taps]}
                    shown = [value for value in sigma[:24] if value > 1e-12]
                    left.semilogy(range(1, len(shown) + 1), shown, label=label, **style)
                    chosen = [row for row in layers if (row["model"], row["layer"]) == (name, layer)]
                    chosen = [row for row in chosen if row["exact_taps"] == taps]
                    middle.loglog(
                        [row["tolerance"] for row in chosen], [row["order"] for row in chosen], label=label, **style
                    )
            for place, taps in enumerate(by_taps):
                chosen = [row for row in models if (row["model"], row["exact_taps"]) == (name, taps)]
                changes = [max(abs(row["change"]), 1e-8) for row in chosen]
                right.loglog([row["tolerance"] for row in chosen], changes, label=f"{taps} exact taps", **line(place))
            right.axhline(1e-3, color="#888888", linestyle=":")
            right.legend(fontsize=8)
            left.set(title=f"{name}: singular values of the tails", xlabel="number", ylabel="of the l1 norms")
            middle.set(title="order needed", xlabel="tolerance", ylabel="order")
            right.set(title="change of perplexity", xlabel="tolerance", ylabel="|change|")
        legend_below(figure, [panels[0, 0]], columns=4)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="distilled_decoding.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cards = ["model_cards/tnn-python-2m", "model_cards/fd-tnn-python-2m"]
    parser.add_argument("--models", nargs="+", default=cards, metavar="PATH", help="checkpoints")
    parser.add_argument("--tolerances", type=float, nargs="+", default=[1e-1, 1e-2, 1e-3, 1e-4])
    parser.add_argument("--exact-taps", type=not_negative, nargs="+", default=[16, 64])
    parser.add_argument("--dataset", default="embedded:python-stdlib", help="whose split `test` is scored")
    parser.add_argument("--documents", type=positive, help="how many of its texts; all by default")
    parser.add_argument("--context-length", type=positive, default=1024, help="tokens of a block of the text")
    parser.add_argument("--lengths", type=positive, nargs="+", default=[256, 1024, 4096, 16384], help="of caches")
    parser.add_argument("--rounds", type=not_negative, default=0, help="of timing; 0 for none")
    parser.add_argument("--threads", type=positive, default=1, help="of the CPU")
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
