"""What a model loses by distilled kernels: errors of taps and logits, and the perplexity of text."""

import argparse
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from hf_seqmix.analysis import evaluate_language_model

__all__ = ["fits_of", "load"]

logger = logging.getLogger("distilled_decoding")


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
