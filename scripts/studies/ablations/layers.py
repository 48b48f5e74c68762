"""Time and memory of training one layer, of several configurations in turn, and their plot."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from hf_seqmix.analysis.plots.figures import draw_row, line
from hf_seqmix.models.block import SeqMixBlock
from hf_seqmix.training.timing import Clock, Timed, forward_backward, interleave, medians_ms, peak_bytes

__all__ = ["TIME_COLUMNS", "against_first", "plot_layers_and_losses", "time_layers"]

logger = logging.getLogger("ablate_toeplitz")


def time_layers(arguments: argparse.Namespace, models: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Time training of one layer of each configuration at each length, in turn, and take its peak memory."""
    device = torch.device(arguments.device)
    clock = Clock(device)
    rows = []
    for length in arguments.lengths:
        x, upstream = (torch.randn(arguments.batch, length, arguments.layer_size, device=device) for _ in range(2))
        x.requires_grad_()
        timed: dict[str, Timed] = {}
        for name, fields in models.items():
            config: Any = AutoConfig.for_model(
                **{"num_hidden_layers": 1} | dict(fields),
                hidden_size=arguments.layer_size,
                intermediate_size=arguments.layer_size,
                max_position_embeddings=length,
                hidden_dropout=0.0,
            )
            layer: nn.Module = SeqMixBlock(config, 0).to(device)
            timed[name] = forward_backward(layer, [x], upstream, list(layer.parameters()))
        peaks = {}
        for name, once in timed.items():
            once(clock)
            peaks[name] = peak_bytes(partial(once, clock), device)
        x.grad = None
        for name, rounds in interleave(timed, arguments.rounds, clock).items():
            forward, both = medians_ms(rounds)
            rows.append(
                {
                    "length": length,
                    "batch": arguments.batch,
                    "model": name,
                    "forward_ms": forward,
                    "ms": both,
                    "peak_mib": peaks[name] / 2**20,
                    "clock": clock.kind,
                }
            )
        logger.info(f"length {length}: " + ", ".join(f"{r['model']} {r['ms']:.1f} ms" for r in rows[-len(timed) :]))
    return rows


def against_first(rows: Sequence[dict[str, Any]]) -> None:
    """Add to each row its time and memory over those of the first model at the same length."""
    for row in rows:
        first = next(other for other in rows if other["length"] == row["length"])
        row["time_ratio"] = row["ms"] / first["ms"]
        row["memory_ratio"] = row["peak_mib"] / first["peak_mib"]


TIME_COLUMNS = {
    "length": "length",
    "model": "layer",
    "ms": "ms:.1f",
    "time_ratio": "time / first:.2f",
    "peak_mib": "peak MiB:.1f",
    "memory_ratio": "memory / first:.2f",
}


def plot_layers_and_losses(
    timings: Sequence[Mapping[str, Any]], trained: Sequence[Mapping[str, Any]], path: Path, title: str
) -> None:
    """Time and memory against the length, and the test loss of each seed."""
    with draw_row(path, 13, 4.2, 3, title) as (_, (left, middle, right)):
        names = list(dict.fromkeys(row["model"] for row in timings))
        for index, name in enumerate(names):
            mine = [row for row in timings if row["model"] == name]
            lengths = [row["length"] for row in mine]
            tokens = [row["batch"] * row["length"] for row in mine]
            times = [1e3 * row["ms"] / count for row, count in zip(mine, tokens, strict=True)]
            memory = [1024 * row["peak_mib"] / count for row, count in zip(mine, tokens, strict=True)]
            left.plot(lengths, times, label=name, **line(index))
            middle.plot(lengths, memory, **line(index))
            for panel in (left, middle):
                panel.set_xscale("log", base=2)
                panel.set_xticks(lengths, [str(length) for length in lengths])
                panel.minorticks_off()
        left.set(xlabel="length (tokens)", ylabel="training a layer (µs/token)", ylim=(0, None))
        left.legend(fontsize=8.5)
        middle.set(xlabel="length (tokens)", ylabel="peak memory of a step (KiB/token)", ylim=(0, None))
        for place, row in enumerate(trained):
            values = [value for value in row["test_loss_by_seed"].values() if value is not None]
            style = line(names.index(row["model"]) if row["model"] in names else len(names))
            right.plot([place] * len(values), values, linestyle="none", alpha=0.6, **style)
            if row["test_loss"] is not None:
                right.plot([place - 0.2, place + 0.2], [row["test_loss"]] * 2, color=style["color"])
        right.set_xticks(range(len(trained)), [row["model"].replace("-", "-\n") for row in trained], fontsize=8.5)
        right.set_xlim(-0.6, len(trained) - 0.4)
        right.set_ylabel("test loss: each seed, and their mean (nats/token)")
        right.grid(axis="x", visible=False)
