r"""Times what stands in the place of attention against attention of the same width, interleaved in one run.

    python scripts/speed/benchmark_attention.py --parts polynomial ipa decoding --threads 1 \
        --output-dir runs/benchmark-attention

Parts:
  polynomial  products of degree 3 and 4 in chunks, against torch's scaled_dot_product_attention; each is given its
              factors, 3 or 4 tensors (batch, length, heads, width / heads), as projections leave them. Growth is the
              slope of the logarithm of the time over that of the length, between the first and the last length.
  ipa         IPA's column operation with its relative bias, kernels normalized over centers, against eager attention
              (scores, causal mask, softmax, product with the values), forward, forward and backward, and peak memory
  decoding    one token through a polynomial mixer and through an attention mixer that hold a cache of --lengths
              tokens; the mean over 128 tokens is given too, in which the cache twice sums up its oldest rows

Every product and its gradients are checked against the dense definition in float64 first; nothing is timed if a result
is wrong. Times are medians over rounds in which every candidate runs once, in an order that rotates. Writes
benchmark_attention.jsonl, tables and a plot.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import torch
from operations.candidates import BOUNDS, candidate
from operations.forms import OPS, Form, Sizes
from timing.protocol import check_all, time_in_turn
from transformers import DynamicCache

from hf_seqmix import PolyTransformerConfig, SeqMixHybridConfig
from hf_seqmix.analysis.plots.figures import draw_row, line, token_ticks
from hf_seqmix.models.mixers import build_mixer
from hf_seqmix.training.command import CommandParser, add_device_argument, explained, positive
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.timing import Clock, Timed, interleave

PARTS = ("polynomial", "ipa", "decoding")
DECODED = 128
CHECKED = 193
"""Length at which products are checked."""


def sizes_of(arguments: argparse.Namespace, length: int) -> Sizes:
    """Return the sizes of the products at one length."""
    width = arguments.width // arguments.heads
    sizes = Sizes(arguments.batch, arguments.width, length, width)
    return sizes._replace(dtype=arguments.dtype, device=arguments.device)


def time_products(
    arguments: argparse.Namespace, part: str, forms: dict[str, Form], lengths: Sequence[int]
) -> list[dict[str, Any]]:
    """Check forms of operations at a short length, and time them at each length, with the peak memory of a step."""
    short = sizes_of(arguments, CHECKED)
    check_all({name: candidate(name, form, short) for name, form in forms.items()}, f"{part}, length {CHECKED}")
    clock = Clock(torch.device(arguments.device))
    rows = []
    for length in lengths:
        sizes = sizes_of(arguments, length)
        candidates = {name: candidate(name, form, sizes) for name, form in forms.items()}
        row = {"part": part, "length": length, "clock": clock.kind}
        rows.append(row | time_in_turn(candidates, arguments.rounds, clock))
        print(
            f"{part}, length {length}: " + ", ".join(f"{n} {rows[-1][f'{n}_ms']:.2f} ms" for n in forms),
            file=sys.stderr,
        )
    return rows


def benchmark_polynomial(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time the products of degree 3 and 4 and fused attention at each length."""
    forms = {f"degree_{degree}": OPS[f"degree_{degree}"].forms["ours"] for degree in (3, 4)}
    forms["attention"] = OPS["degree_3"].forms["attention"]
    rows = time_products(arguments, "polynomial", forms, arguments.lengths)
    for row in rows:
        for name in ("degree_3", "degree_4"):
            row[f"{name}_times_faster"] = row["attention_ms"] / row[f"{name}_ms"]
    return rows


def growth(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Return the exponent of a time in the length, from the first to the last row."""
    times, lengths = (math.log(rows[-1][key] / rows[0][key]) for key in (f"{name}_ms", "length"))
    return times / lengths


def benchmark_ipa(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time the column operation and eager attention at each length that eager attention has memory for."""
    forms = {"ipa": OPS["column"].forms["ours"], "eager": OPS["column"].forms["eager"]}
    rows = time_products(arguments, "ipa", forms, [n for n in arguments.lengths if n <= arguments.eager_limit])
    for row in rows:
        for quantity in ("forward_ms", "ms", "peak_mib"):
            row[f"ratio_{quantity}"] = row[f"ipa_{quantity}"] / row[f"eager_{quantity}"]
    return rows


class Decoder:
    """A mixer with a full cache, called with one token at a time."""

    def __init__(self, config: Any, length: int, arguments: argparse.Namespace) -> None:
        dtype, device = getattr(torch, arguments.dtype), arguments.device
        self.mixer = build_mixer(config, 0).to(device=device, dtype=dtype).eval()
        self.cache = DynamicCache(config=config)
        self.token = torch.randn(arguments.batch, 1, arguments.width, device=device, dtype=dtype)
        self.mixer(self.token.expand(-1, length, -1).contiguous(), past_key_values=self.cache)

    def __call__(self, clock: Clock) -> tuple[float, ...]:
        """Return the seconds of one token."""
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
        # Every length of a mixer in one rotation, and attention in one of its own: its keys and values sweep the
        # processor's cache, at the cost of whatever comes next.
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
    parser = CommandParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is timed; see above")
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=[512, 2048, 8192],
        help="tokens of a sequence; for decoding, tokens in the cache",
    )
    parser.add_argument(
        "--eager-limit", type=int, default=2048, help="greatest length, in tokens, at which eager attention is tried"
    )
    parser.add_argument("--batch", type=int, default=1, help="sequences of a batch")
    parser.add_argument("--width", type=int, default=512, help="channels of all heads together")
    parser.add_argument("--heads", type=int, default=8, help="heads, and centers of ipa")
    parser.add_argument("--dtype", choices=list(BOUNDS), default="float32", help="data type of inputs and weights")
    add_device_argument(parser)
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds, whose median counts")
    parser.add_argument("--output-dir", default="runs/benchmark-attention", help="where results, tables and plot go")
    arguments = parser.parse_args(argv)
    if min(*arguments.lengths, arguments.rounds, arguments.batch, arguments.heads) < 1:
        parser.error("lengths, rounds, batch and heads must be at least 1.")
    if arguments.width < 1 or arguments.width % (2 * arguments.heads):
        parser.error(f"--heads {arguments.heads} must divide --width {arguments.width} into parts of even width.")
    return arguments


@explained("benchmark_attention.py")
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
    names = sorted({"ratio", *(name for part in arguments.parts for name in LINES[part])})
    kept = row_results(rows, "part", "ratio", models=names, setting=("length",))
    folder = write_report(arguments, "benchmark_attention", sections, kept)
    with draw_row(folder / "benchmark_attention.png", 4.4 * len(results), 3.9, len(results), where) as (_, axes):
        for panel, (part, part_rows) in zip(axes, results.items(), strict=True):
            lengths = [row["length"] for row in part_rows]
            for index, name in enumerate(LINES[part]):
                times = [row[f"{name}_ms"] for row in part_rows]
                panel.plot(lengths, times, label=name.replace("_", " "), **line(index))
            label = COLUMNS[part]["length"] + " (tokens)" * (part != "decoding")
            token_ticks(panel, lengths, title=part, xlabel=label, ylabel="ms")
            panel.legend()
    return rows


if __name__ == "__main__":
    main()
