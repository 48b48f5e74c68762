"""What a cache holds and a step takes, with exact kernels and with distilled ones."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from hf_seqmix.training.timing import Clock, interleave, medians_ms

from .losses import load

__all__ = ["costs_of"]


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
        window = [caches["distilled"].layers[layer].keys.shape[2] for layer in report.fits]  # of hybrids not all
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
        return sum(x.nbytes for x in (layer.keys, layer.values, state) if x is not None)
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
