"""Times what stands in the place of attention against attention of the same width, interleaved in one run.

    python scripts/speed/benchmark_attention.py --parts polynomial ipa decoding --threads 1 --output-dir runs/benchmark-attention

Parts:
  polynomial  products of degree 3 and 4 in chunks, against torch's scaled_dot_product_attention; each is given its factors,
              3 or 4 tensors (batch, length, heads, width / heads), as projections leave them. Growth is the slope of the
              logarithm of the time over that of the length, between the first and the last length.
  ipa         IPA's column operation with its relative bias, kernels normalised over centres, against eager attention
              (scores, causal mask, softmax, product with the values), forward, forward and backward, and peak memory
  decoding    one token through a polynomial mixer and through an attention mixer that hold a cache of --lengths tokens;
              the mean over 128 tokens is given too, in which the cache twice sums up its oldest rows

Every product is checked against its dense definition first, in float64; nothing is timed if a result is wrong. Times are
medians over rounds in which every candidate runs once, in an order that rotates. Writes benchmark_attention.json, tables and
a plot.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from hf_seqmix import PolyTransformerConfig, SeqMixHybridConfig
from hf_seqmix.analysis.figures import draw_row, line
from hf_seqmix.models.mixers import build_mixer
from hf_seqmix.ops import piecewise_column, piecewise_column_dense, polynomial_product
from hf_seqmix.training.timing import (
    Clock,
    Timed,
    forward_backward,
    interleave,
    medians_ms,
    peak_bytes,
    relative_error,
    write_report,
)

PARTS = ("polynomial", "ipa", "decoding")
DECODED = 128
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Product = Callable[..., Tensor]


def product(*factors: Tensor) -> Tensor:
    """The product of as many factors (batch, length, heads, c), in chunks, in their dtype."""
    return polynomial_product(factors).y.to(factors[0].dtype)


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Torch's causal attention of (batch, length, heads, c)."""
    query, key, value = (x.transpose(1, 2) for x in (q, k, v))
    return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)


def eager_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of (batch, heads, length, c) by its formula."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1, dtype=torch.float32).to(q.dtype) @ v


def column(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """IPA's column operation of (batch, centres, length, c)."""
    return piecewise_column(q, k, v, bias, scale=1 / math.sqrt(q.shape[-1]))


def _check(name: str, actual: Product, expected: Product, inputs: Sequence[Tensor]) -> float:
    """Return the relative error against the definition; exit where it is more than rounding."""
    error = relative_error(actual(*inputs), expected(*(x.double() for x in inputs)))
    bound = 1e-4 if inputs[0].dtype == torch.float32 else 2e-2
    if not error < bound:
        sys.exit(f"benchmark_attention.py: {name} is off by {error:.1e} from its definition; nothing was timed.")
    return error


def _factors(arguments: argparse.Namespace, length: int, count: int, heads_first: bool = False) -> list[Tensor]:
    width = arguments.width // arguments.heads
    shape = (arguments.batch, length, arguments.heads, width)
    if heads_first:
        shape = (arguments.batch, arguments.heads, length, width)
    dtype, device = DTYPES[arguments.dtype], arguments.device
    return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(count)]


def time_products(
    candidates: dict[str, tuple[Product, list[Tensor]]], arguments: argparse.Namespace, rounds: int
) -> dict[str, Any]:
    """Time products of given factors, and take the peak memory of forward and backward."""
    device = torch.device(arguments.device)
    clock = Clock(device)
    timed: dict[str, Timed] = {}
    row: dict[str, Any] = {}
    for name, (function, inputs) in candidates.items():
        upstream = torch.randn_like(inputs[0])
        once = forward_backward(function, inputs, upstream)
        row[f"{name}_peak_mib"] = peak_bytes(partial(once, clock), device) / 2**20
        timed[name] = once
    for name, seconds in interleave(timed, rounds, clock).items():
        row[f"{name}_forward_ms"], row[f"{name}_ms"] = medians_ms(seconds)
    return row | {"clock": clock.kind}


def benchmark_polynomial(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time the products of degree 3 and 4 and fused attention at each length."""
    with torch.no_grad():
        short = _factors(arguments, 193, 4)
        for degree in (3, 4):
            _check(f"degree {degree}", product, lambda *x: polynomial_product(x, form="parallel").y, short[:degree])
    rows = []
    for length in arguments.lengths:
        candidates: dict[str, tuple[Product, list[Tensor]]] = {
            "degree_3": (product, _factors(arguments, length, 3)),
            "degree_4": (product, _factors(arguments, length, 4)),
            "attention": (fused_attention, _factors(arguments, length, 3)),
        }
        row: dict[str, Any] = {"part": "polynomial", "length": length}
        row |= time_products(candidates, arguments, arguments.rounds)
        for name in ("degree_3", "degree_4"):
            row[f"{name}_times_faster"] = row["attention_ms"] / row[f"{name}_ms"]
        rows.append(row)
        print(f"polynomial, length {length}: {row['degree_3_times_faster']:.2f} times faster", file=sys.stderr)
    return rows


def growth(rows: Sequence[dict[str, Any]], name: str) -> float:
    """The exponent of a time in the length, from the first to the last row."""
    times, lengths = (math.log(rows[-1][key] / rows[0][key]) for key in (f"{name}_ms", "length"))
    return times / lengths


def benchmark_ipa(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time the column operation and eager attention at each length that eager attention has memory for."""

    def with_bias(length: int) -> list[Tensor]:
        bias = torch.randn(arguments.heads, length, device=arguments.device)
        return [*_factors(arguments, length, 3, heads_first=True), bias.requires_grad_()]

    with torch.no_grad():
        scale = 1 / math.sqrt(arguments.width // arguments.heads)
        _check("column", column, lambda *x: piecewise_column_dense(*x, scale=scale), with_bias(193))
    rows = []
    for length in [n for n in arguments.lengths if n <= arguments.eager_limit]:
        candidates: dict[str, tuple[Product, list[Tensor]]] = {
            "ipa": (column, with_bias(length)),
            "eager": (eager_attention, _factors(arguments, length, 3, heads_first=True)),
        }
        row: dict[str, Any] = {"part": "ipa", "length": length}
        row |= time_products(candidates, arguments, arguments.rounds)
        for quantity in ("forward_ms", "ms", "peak_mib"):
            row[f"ratio_{quantity}"] = row[f"ipa_{quantity}"] / row[f"eager_{quantity}"]
        rows.append(row)
        print(f"ipa, length {length}: {row['ratio_ms']:.2f} of eager attention's time", file=sys.stderr)
    return rows


class Decoder:
    """A mixer with a full cache, called with one token at a time."""

    def __init__(self, config: Any, length: int, arguments: argparse.Namespace) -> None:
        dtype, device = DTYPES[arguments.dtype], arguments.device
        self.mixer = build_mixer(config, 0).to(device=device, dtype=dtype).eval()
        self.cache = DynamicCache(config=config)
        self.token = torch.randn(arguments.batch, 1, arguments.width, device=device, dtype=dtype)
        self.mixer(self.token.expand(-1, length, -1).contiguous(), past_key_values=self.cache)

    def __call__(self, clock: Clock) -> tuple[float, ...]:
        begin = clock.mark()
        self.mixer(self.token, past_key_values=self.cache)
        return (clock.between(begin, clock.mark()),)


def benchmark_decoding(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time a step of decoding with caches of each length."""
    common = {"hidden_size": arguments.width, "num_hidden_layers": 1}
    configs: dict[str, Any] = {
        f"degree_{degree}": PolyTransformerConfig(degree=degree, num_attention_heads=arguments.heads, **common)
        for degree in (3, 4)
    }
    configs["attention"] = SeqMixHybridConfig(mixer_configs={"attention": {"num_heads": arguments.heads}}, **common)
    clock = Clock(torch.device(arguments.device))
    with torch.no_grad():
        measured: dict[str, list[tuple[float, ...]]] = {}
        # Every length of a mixer in one rotation, and attention in one of its own: its keys and values sweep the processor's
        # cache, at the cost of whatever comes next.
        for names in (["degree_3", "degree_4"], ["attention"]):
            decoders: dict[str, Timed] = {
                f"{name} {length}": Decoder(configs[name], length, arguments)
                for length in arguments.lengths
                for name in names
            }
            measured |= interleave(decoders, DECODED, clock)
    rows = []
    for length in arguments.lengths:
        row: dict[str, Any] = {"part": "decoding", "length": length, "clock": clock.kind}
        for name in configs:
            values = [1e3 * value for (value,) in measured[f"{name} {length}"]]
            row[f"{name}_ms"], row[f"{name}_mean_ms"] = statistics.median(values), statistics.mean(values)
        rows.append(row)
        print(f"decoding, {length} cached: degree 3 in {row['degree_3_ms']:.2f} ms", file=sys.stderr)
    return rows


BENCHMARKS = {"polynomial": benchmark_polynomial, "ipa": benchmark_ipa, "decoding": benchmark_decoding}
TITLES = {
    "polynomial": "Products of degree 3 and 4 against scaled_dot_product_attention, forward and backward",
    "ipa": "IPA's column operation against eager attention",
    "decoding": "One decoded token, mixer alone",
}
COLUMNS = {
    "polynomial": {
        "length": "length",
        "degree_3_ms": "degree 3 ms:.1f",
        "degree_4_ms": "degree 4 ms:.1f",
        "attention_ms": "attention ms:.1f",
        "degree_3_times_faster": "degree 3, times faster:.2f",
        "degree_4_times_faster": "degree 4, times faster:.2f",
    },
    "ipa": {
        "length": "length",
        "ipa_forward_ms": "IPA forward ms:.1f",
        "eager_forward_ms": "eager forward ms:.1f",
        "ratio_forward_ms": "ratio:.2f",
        "ipa_ms": "IPA both ms:.1f",
        "eager_ms": "eager both ms:.1f",
        "ratio_ms": "ratio both:.2f",
        "ipa_peak_mib": "IPA peak MiB:.0f",
        "eager_peak_mib": "eager peak MiB:.0f",
        "ratio_peak_mib": "ratio of peaks:.2f",
    },
    "decoding": {
        "length": "cached tokens",
        "degree_3_ms": "degree 3 ms:.3f",
        "degree_3_mean_ms": "its mean ms:.3f",
        "degree_4_ms": "degree 4 ms:.3f",
        "degree_4_mean_ms": "its mean ms:.3f",
        "attention_ms": "attention ms:.3f",
    },
}
LINES = {
    "polynomial": ("degree_3", "degree_4", "attention"),
    "ipa": ("ipa", "eager"),
    "decoding": ("degree_3", "degree_4", "attention"),
}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument(
        "--eager-limit", type=int, default=2048, help="greatest length at which eager attention is tried"
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8, help="heads, and centres of ipa")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output-dir", default="runs/benchmark-attention")
    arguments = parser.parse_args(argv)
    if min(*arguments.lengths, arguments.rounds, arguments.batch, arguments.heads) < 1:
        parser.error("lengths, rounds, batch and heads must be at least 1.")
    if arguments.width % (2 * arguments.heads):
        parser.error(f"--heads {arguments.heads} must divide --width {arguments.width} into parts of even width.")
    return arguments


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark and return its rows."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    arguments.lengths = sorted(arguments.lengths)
    results = {part: BENCHMARKS[part](arguments) for part in arguments.parts}
    rows = [row for part in results.values() for row in part]
    if not rows:
        sys.exit("benchmark_attention.py: no length is within --eager-limit, so there is nothing to time.")
    where = f"batch {arguments.batch}, width {arguments.width}, {arguments.heads} heads, {arguments.dtype}, "
    where += f"{arguments.device}, {rows[0]['clock']}, torch {torch.__version__}"
    sections = []
    for part, part_rows in results.items():
        title = f"{TITLES[part]}: {where}"
        if part == "polynomial" and len(part_rows) > 1:
            slopes = {name.replace("_", " "): growth(part_rows, name) for name in LINES[part]}
            title += "; growth with the length, " + ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items())
        sections.append((title, part_rows, COLUMNS[part]))
    folder = write_report(arguments, "benchmark_attention", sections)
    with draw_row(folder / "benchmark_attention.png", 4.4 * len(results), 3.9, len(results)) as (figure, axes):
        for panel, (part, part_rows) in zip(axes, results.items(), strict=True):
            lengths = [row["length"] for row in part_rows]
            for index, name in enumerate(LINES[part]):
                times = [row[f"{name}_ms"] for row in part_rows]
                panel.plot(lengths, times, label=name.replace("_", " "), **line(index))
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xticks(lengths, [str(n) for n in lengths])
            panel.minorticks_off()
            panel.set(title=part, xlabel=COLUMNS[part]["length"] + " (tokens)" * (part != "decoding"), ylabel="ms")
            panel.legend()
        figure.suptitle(where, x=0.01, ha="left", fontsize=9)
    return rows


if __name__ == "__main__":
    main()
