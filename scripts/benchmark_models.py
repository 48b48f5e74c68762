"""Times one layer in training (forward and backward) against a layer computed as the original implementation does.

    python scripts/benchmark_models.py --tables layers paper --threads 1 --output-dir runs/benchmark-models

Tables:
  layers  hidden size 256, an encoder 32 wide with one hidden layer, SKI with 64 points and 33 taps: tokens a second of every
          layer of the package, against the original's design in the same direction, for SKI in both, and of bidirectional
          FD-TNN against bidirectional TNN
  paper   the comparison of Moreno, Mei, Walters 2023 (arXiv 2305.09028), section 5: FD-TNN and SKI-TNN against a TNN whose
          encoder is 64 wide and 6 layers deep, 4096 tokens a step, time and peak memory beside the published figures, which
          are of whole models, of the authors' code, on an NVIDIA A100; the one of bidirectional FD-TNN is their best case

"original" is the layer of scripts/original_tnn.py. The package's TNN must give its output and input gradient for the same
weights, and every layer its own result in float64; nothing is timed otherwise. Each pair has a process of its own, in which
the two run in turn; times are medians over rounds (see benchmark_ops.py, also for the clocks). Peak memory is that of all
tensors allocated during a step, gradients included, weights and input not (see `peak_bytes`). Writes benchmark_models.json,
tables and a plot a table; each pair also goes to pairs.jsonl at once, and is read from there when the command is given again.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _timing import (
    Clock,
    forward_backward,
    in_fresh_process,
    interleave,
    medians_ms,
    peak_bytes,
    relative_error,
    write_report,
)
from original_tnn import OriginalTNNLayer
from torch import Tensor, nn
from transformers import AutoConfig

import hf_seqmix  # noqa: F401 - registers its families with the Auto classes
from hf_seqmix.analysis import ResultLog
from hf_seqmix.analysis.figures import COLORS, draw_grid
from hf_seqmix.models.backbone import SeqMixBlock


class Layer(NamedTuple):
    """A layer: its family ("original" or a model type), direction, and the sizes of its kernel."""

    family: str
    causal: bool
    mlp_width: int = 0
    mlp_depth: int = 0
    points: int = 0
    taps: int = 0

    @property
    def name(self) -> str:
        """What tables call it; they say the direction elsewhere."""
        detail = f"r={self.points} m={self.taps}" if self.family == "ski_tnn" else f"K={self.mlp_depth}"
        return f"{self.family} {detail}"

    @property
    def direction(self) -> str:
        """Which tokens a token sees."""
        return "causal" if self.causal else "bidirectional"


class Pair(NamedTuple):
    """A layer, what it is measured against, and the ratios that were published for it, by length (None: for any)."""

    layer: Layer
    rival: Layer
    published_faster: Mapping[int | None, float] = {}
    """Speed over the rival's, less one."""
    published_memory: Mapping[int | None, float] = {}
    """Memory saved, as a part of the rival's."""


def layer_pairs() -> list[Pair]:
    """The pairs of the table `layers`."""

    def of(family: str, causal: bool) -> Layer:
        return Layer(family, causal, points=64, taps=33) if family == "ski_tnn" else Layer(family, causal, 32, 1)

    ski = of("ski_tnn", False)
    return [
        *(Pair(of(family, True), of("original", True)) for family in ("tnn", "fd_tnn")),
        Pair(ski, of("original", True)),
        *(Pair(of(family, False), of("original", False)) for family in ("tnn", "fd_tnn")),
        Pair(ski, of("original", False)),
        Pair(of("fd_tnn", False), of("tnn", False)),
        Pair(ski, of("tnn", False)),
    ]


def paper_pairs() -> list[Pair]:
    """The pairs of the table `paper`, with what section 5 and appendix C report."""

    def of(family: str, causal: bool, depth: int = 0) -> Layer:
        return Layer(family, causal, points=32, taps=17) if family == "ski_tnn" else Layer(family, causal, 64, depth)

    faster: dict[tuple[str, bool, int, int], Mapping[int | None, float]] = {
        # family, causal, its depth, the rival's depth
        ("fd_tnn", True, 3, 6): {512: 0.15},
        ("fd_tnn", True, 3, 3): {512: 0.10},
        ("fd_tnn", False, 6, 6): {None: 0.80},
        ("ski_tnn", False, 0, 6): {512: 0.25, 2048: 0.30},
    }
    memory: Mapping[int | None, float] = {512: 0.17, 2048: 0.42}
    pairs = []
    for rival_family in ("original", "tnn"):
        for causal in (True, False):
            layers = [of("fd_tnn", causal, 3)]
            layers += [] if causal else [of("fd_tnn", causal, 6), of("ski_tnn", causal)]
            if rival_family == "original":
                layers = [of("tnn", causal, 6), *layers]
            for layer in layers:
                known = faster.get((layer.family, causal, layer.mlp_depth, 6), {})
                saved = memory if layer.family == "ski_tnn" else {}
                pairs.append(Pair(layer, of(rival_family, causal, 6), known, saved))
        both_shallow = faster["fd_tnn", True, 3, 3]
        pairs.append(Pair(of("fd_tnn", True, 3), of(rival_family, True, 3), both_shallow))
    return pairs


def build(layer: Layer, length: int, hidden_size: int) -> nn.Module:
    """Build a layer with random weights, those of seed 0."""
    torch.manual_seed(0)
    if layer.family == "original":
        return OriginalTNNLayer(hidden_size, 3 * hidden_size, layer.mlp_width, layer.mlp_depth, causal=layer.causal)
    fields: dict[str, Any] = {"num_inducing_points": min(layer.points, length), "conv_kernel_size": layer.taps}
    if layer.family != "ski_tnn":
        fields = {"rpe_hidden_size": layer.mlp_width, "rpe_num_layers": layer.mlp_depth}
    if layer.family == "tnn":
        fields["decay"] = 0.99
    config: Any = AutoConfig.for_model(
        layer.family,
        hidden_size=hidden_size,
        intermediate_size=hidden_size,
        num_hidden_layers=1,
        max_position_embeddings=length,
        is_causal=layer.causal,
        hidden_dropout=0.0,
        **fields,
    )
    return SeqMixBlock(config, 0)


def copy_weights(original: nn.Module, block: nn.Module) -> None:
    """Give a TNN block of the package the weights of the original's layer."""
    places = {"u_proj": "mixer.", "v_proj": "mixer.", "o_proj": "mixer.", "product": "mixer.operator."}
    state = {}
    for name, weight in original.state_dict().items():
        name = name.replace("product.encoder", "product.kernel.encoder")
        first = name.partition(".")[0]
        state[places.get(first, "mlp.") + name.removeprefix("product.")] = weight
    block.load_state_dict(state)


def check(pair: Pair, layers: Sequence[nn.Module], x: Tensor, upstream: Tensor) -> float:
    """Return the largest relative error of output and input gradient: against float64, and of a TNN against the original.

    Raises:
        RuntimeError: if it is not small.
    """

    def values(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        y = module(x)
        return y.detach(), torch.autograd.grad(y, x, upstream.to(y.dtype))[0]

    bound = 1e-3  # rounding in float32; the two norms differ by their epsilon
    ours, rival = layers
    single = values(ours, x)
    double = values(ours.double(), x.double())
    ours.float()
    errors = {"float64": max(map(relative_error, single, double))}
    if pair.layer.family == "tnn" and pair.rival == pair.layer._replace(family="original"):
        copy_weights(rival, ours)
        errors["the original"] = max(map(relative_error, values(ours, x), values(rival, x)))
    for name, error in errors.items():
        if not error < bound:
            raise RuntimeError(
                f"{pair.layer.direction} {pair.layer.name} differs from {name} at length {x.shape[1]}: relative error "
                f"{error:.2g} (bound {bound})."
            )
    return max(errors.values())


def measure(arguments: argparse.Namespace, pair: Pair, length: int, batch: int) -> dict[str, Any]:
    """Time a pair of layers at one length, interleaved, and take the peak memory of a step of each."""
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    size = arguments.hidden_size
    layers = [build(layer, length, size).to(device) for layer in (pair.layer, pair.rival)]
    generator = torch.Generator().manual_seed(0)
    x, upstream = (torch.randn(batch, length, size, generator=generator).to(device) for _ in range(2))
    error = check(pair, layers, x, upstream)
    x.requires_grad_()
    dtype = getattr(torch, arguments.dtype)
    clock = Clock(device)
    timed = {}
    peaks = {}
    for name, module in zip(("layer", "rival"), layers, strict=True):

        def step(x: Tensor, module: nn.Module = module) -> Tensor:
            with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
                return module(x)

        timed[name] = forward_backward(step, [x], upstream, list(module.parameters()))
        timed[name](clock)
        peaks[name] = peak_bytes(lambda once=timed[name]: once(clock), device)  # type: ignore[misc]
        x.grad = None
    seconds = interleave(timed, arguments.rounds, clock)
    row: dict[str, Any] = {
        "direction": pair.layer.direction,
        "length": length,
        "batch": batch,
        "layer": pair.layer.name,
        "rival": pair.rival.name + ("" if pair.layer.causal == pair.rival.causal else ", causal"),
        "clock": clock.kind,
        "error": error,
    }
    for name in timed:
        row[f"{name}_forward_ms"], row[f"{name}_ms"] = medians_ms(seconds[name])
        row[f"{name}_tokens_per_s"] = batch * length / row[f"{name}_ms"] * 1e3
        row[f"{name}_peak_mib"] = peaks[name] / 2**20
    row["ratio"] = row["rival_ms"] / row["layer_ms"]
    row["faster_percent"] = 100 * (row["ratio"] - 1)
    row["less_memory_percent"] = 100 * (1 - row["layer_peak_mib"] / row["rival_peak_mib"])
    for name, published in (("faster", pair.published_faster), ("less_memory", pair.published_memory)):
        known = published.get(length, published.get(None))
        row[f"published_{name}_percent"] = None if known is None else 100 * known
    return row


SPEED_COLUMNS = {
    "length": "length",
    "batch": "batch",
    "direction": "direction",
    "layer": "layer",
    "rival": "against",
    "layer_tokens_per_s": "tokens/s:,.0f",
    "rival_tokens_per_s": "its tokens/s:,.0f",
    "ratio": "times as fast:.2f",
}

PAPER_COLUMNS = {
    "length": "length",
    "direction": "direction",
    "layer": "layer",
    "rival": "against",
    "layer_ms": "ms:.0f",
    "rival_ms": "its ms:.0f",
    "faster_percent": "faster %:+.0f",
    "published_faster_percent": "published %:+.0f",
    "layer_peak_mib": "peak MiB:.0f",
    "rival_peak_mib": "its MiB:.0f",
    "less_memory_percent": "less memory %:+.0f",
    "published_less_memory_percent": "published less %:+.0f",
}

TABLES = {
    "layers": (layer_pairs, [512, 2048, 8192], SPEED_COLUMNS),
    "paper": (paper_pairs, [512, 2048], PAPER_COLUMNS),
}
"""Name -> its pairs, its lengths, and its columns."""


SETTINGS = ("hidden_size", "dtype", "device", "threads", "rounds", "together")
"""What a measured row depends on besides its pair and length."""


def batch_of(table: str, length: int) -> int:
    """Sequences a step: 4096 tokens for the paper's comparison; 4, 2 and 1 at 512, 2048 and 8192 for the other."""
    if table == "paper":
        return max(1, 4096 // length)
    return 4 if length <= 512 else 2 if length <= 2048 else 1


def plot_layers(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw the ratio of each pair at each length as bars."""
    pairs = list(dict.fromkeys((row["direction"], row["layer"], row["rival"]) for row in rows))
    lengths = list(dict.fromkeys(row["length"] for row in rows))
    with draw_grid(path, 9, 1.4 + 0.62 * len(pairs)) as (figure, axes):
        panel = axes[0, 0]
        height = 0.8 / len(lengths)
        for index, length in enumerate(lengths):
            for place, key in enumerate(pairs):
                found = [row for row in rows if (row["direction"], row["layer"], row["rival"]) == key]
                row = next(row for row in found if row["length"] == length)
                y = place + (index - (len(lengths) - 1) / 2) * height
                label = f"{length} tokens" if place == 0 else None
                panel.barh(y, row["ratio"], height * 0.9, color=COLORS[index], label=label)
                panel.annotate(
                    f"{row['ratio']:.2f}", (row["ratio"], y), (3, 0), textcoords="offset points", va="center"
                )
        panel.set_yticks(range(len(pairs)), [f"{layer}, {way}\nagainst {rival}" for way, layer, rival in pairs])
        panel.set_ylim(len(pairs) - 0.5, -0.5)
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_xlabel("times as fast in training (forward and backward)")
        panel.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=len(lengths))
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)


def plot_paper(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw how much faster each layer is, and how much memory it saves, with the published figures as diamonds."""
    lengths = list(dict.fromkeys(row["length"] for row in rows))
    pairs = list(dict.fromkeys((row["direction"], row["layer"], row["rival"]) for row in rows))
    panels = {"faster": "faster (%)", "less_memory": "less peak memory (%)"}
    with draw_grid(path, 12, 1.6 + 0.5 * len(pairs), 1, 2, sharey=True) as (figure, axes):
        height = 0.8 / len(lengths)
        for panel, (quantity, label) in zip(axes[0], panels.items(), strict=True):
            for row in rows:
                place = pairs.index((row["direction"], row["layer"], row["rival"]))
                index = lengths.index(row["length"])
                y = place + (index - (len(lengths) - 1) / 2) * height
                value, published = row[f"{quantity}_percent"], row[f"published_{quantity}_percent"]
                panel.barh(y, value, height * 0.9, color=COLORS[index], label=f"{row['length']} tokens")
                # Beside a diamond that is near, not under it.
                place_of_text = published if published is not None and 0 < published - value < 20 else value
                panel.annotate(
                    f"{value:+.0f}",
                    (place_of_text, y),
                    (5 if value >= 0 else -3, 0),
                    textcoords="offset points",
                    va="center",
                    ha="left" if value >= 0 else "right",
                    fontsize=8,
                )
                if published is not None:
                    panel.plot(published, y, "D", color="black", markersize=5, label="published, NVIDIA A100")
            panel.axvline(0, color="black", linewidth=0.8)
            panel.set_xlabel(label)
            panel.margins(x=0.12)
            panel.grid(axis="y", visible=False)
        left = axes[0, 0]
        left.set_yticks(range(len(pairs)), [f"{layer} against {rival}, {way}" for way, layer, rival in pairs])
        left.set_ylim(len(pairs) - 0.5, -0.5)
        handles = dict(zip(*reversed(left.get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)


PLOTS = {"layers": plot_layers, "paper": plot_paper}


def main(argv: Sequence[str] | None = None) -> dict[str, list[dict[str, Any]]]:
    """Run the benchmark and return the rows of each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--lengths", type=int, nargs="+", help="by default 512 2048 8192; 512 2048 for the paper's")
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of autocast")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--together", action="store_true", help="everything in this process")
    parser.add_argument("--fast", action="store_true", help="a few short, narrow layers, to see that it works")
    parser.add_argument("--output-dir", default="runs/benchmark-models")
    arguments = parser.parse_args(argv)
    if arguments.fast:
        arguments.lengths, arguments.hidden_size, arguments.rounds = arguments.lengths or [48], 16, 1
    if min(arguments.lengths or [2]) < 2 or arguments.rounds < 1 or arguments.hidden_size < 1 or arguments.threads < 1:
        parser.error("lengths must be at least 2; rounds, hidden size and threads at least 1.")
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    log = ResultLog(folder / "pairs.jsonl")
    settings = {name: getattr(arguments, name) for name in SETTINGS} | {"torch": torch.__version__}
    tables: dict[str, list[dict[str, Any]]] = {}
    for table in arguments.tables:
        pairs, lengths, *_ = TABLES[table]
        rows = tables[table] = []
        for length in arguments.lengths or lengths:
            for pair in pairs():
                key = {"table": table, "length": length, "settings": settings}
                key |= {"layer": pair.layer._asdict(), "rival": pair.rival._asdict()}
                row = log.get(key)
                if row is None:
                    job = (arguments, pair, length, batch_of(table, length))
                    row = measure(*job) if arguments.together else in_fresh_process(measure, *job)
                    log.append(key, row)
                    print(
                        f"{table}, length {length}: {row['direction']} {row['layer']} {row['ratio']:.2f} times as fast as "
                        f"{row['rival']}",
                        file=sys.stderr,
                    )
                rows.append({"table": table} | row)
    clock = next(iter(tables.values()))[0]["clock"]
    where = f"hidden size {arguments.hidden_size}, {arguments.dtype}, {arguments.device}, {clock}, torch {torch.__version__}"
    titles = {
        "layers": f"Training a layer: {where}",
        "paper": f"The comparison of Moreno, Mei, Walters 2023, one layer, 4096 tokens a step: {where}",
    }
    sections = [(titles[table], rows, TABLES[table][2]) for table, rows in tables.items()]
    write_report(arguments, "benchmark_models", sections)
    for table, rows in tables.items():
        PLOTS[table](rows, folder / f"benchmark_models_{table}.png", titles[table])
    return tables


if __name__ == "__main__":
    main()
