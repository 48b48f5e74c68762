"""Times generation: every family beside a Llama as large, token by token, and counts what a step costs.

    python scripts/speed/decoding.py --threads 1 --output-dir runs/decoding
    python scripts/speed/decoding.py --threads 1 --parts costs --batch 1 --output-dir runs/decoding   # goes on there
    python scripts/speed/decoding.py --device cuda --dtype bfloat16 --hidden-size 1024 --batch 1 8 64 --whole-batch

Models have random weights, equal width and depth. The library's Llama has the feed-forward width that makes its
parameters as many as those of TNN. All write greedily, through `generate()`, from a prompt of --prompt tokens. A model
is FAMILY or FAMILY:WAY: `plain` multiplies the whole history at every token, `distilled` is after `distill_decoder`,
`static` has a preallocated cache, with which `generate()` compiles on a GPU, and `recompute` has no cache. Other
caches are not told how many tokens will come.

  whole      texts of --tokens tokens, each token timed, for the batches of --whole-batch. Models take turns of --turn
             tokens, each with its own cache.
  windows    --window tokens before each of --marks that no whole text reaches. A prompt of that length fills the
             cache, and models take turns.
  recompute  the last --recomputed tokens before each mark, for the models that have no cache.
  costs      operations, bytes moved and memory of the last --counted tokens before each mark, counted by
             `generation.costs.CostCounter`, not timed. A step of a batch is shared out over the rows.

Before a model is timed, --checked tokens with its cache must be those without in float64, and float32 logits may
differ by at most 1e-4 after each of --check-at tokens. Whole texts in float32 are compared again at these lengths.

Tables say what was measured in full and what was sampled; between samples the time of a token is taken to grow evenly.
stretches.jsonl takes what is done, and the same command goes on from there. decoding.md and decoding.jsonl have the
figures at each mark, and the plots show these.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
from generation.models import contender
from generation.report import COST_COLUMNS, METRICS, TIME_COLUMNS, plot_costs, plot_times, rows_of, wins
from generation.session import Session

from hf_seqmix.training.command import CommandParser, add_device_argument, explained, positive
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.results import Result

PARTS = ("whole", "windows", "recompute", "costs")
MODELS = ["tnn", "tnn:plain", "tnn:distilled", "fd_tnn", "ipa", "poly2", "poly3", "hybrid", "attention", "llama"]
MODELS += ["tnn:recompute", "ipa:recompute", "poly3:recompute"]
ON_GPU = ["tnn:static", "llama:static"]
MARKS = [256, 512, 1024, 2048, 4096, 8192, 16384]


def run_parts(session: Session) -> None:
    """Run the parts of the command."""
    arguments = session.arguments
    whole = arguments.whole_batch if "whole" in arguments.parts else []
    for batch in whole:
        turns = [(batch, start, start + arguments.turn) for start in range(0, arguments.tokens, arguments.turn)]
        session.each("whole", turns, session.whole, recompute=False)
        session.forget_texts()

    def before_marks(tokens: int, left_out: Sequence[int] = ()) -> list[tuple[int, int, int]]:
        places = [(batch, mark) for batch in arguments.batch for mark in arguments.marks]
        return [
            (batch, max(0, mark - tokens), mark)
            for batch, mark in places
            if batch not in left_out or mark > arguments.tokens
        ]

    if "windows" in arguments.parts:
        session.each("windows", before_marks(arguments.window, whole), session.window, recompute=False)
    if "recompute" in arguments.parts:
        session.each("recompute", before_marks(arguments.recomputed), session.recompute, recompute=True)
    if "costs" in arguments.parts:
        for recompute in (False, True):
            session.each("costs", before_marks(arguments.counted), session.costs, recompute)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured; see above")
    parser.add_argument(
        "--models",
        nargs="+",
        help=f"FAMILY or FAMILY:WAY; by default {' '.join(MODELS)}, on a GPU {' '.join(ON_GPU)}, too",
    )
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1, 8], help="batch sizes of windows, recompute and costs"
    )
    parser.add_argument("--whole-batch", type=int, nargs="*", default=[1], help="batch sizes of whole texts")
    parser.add_argument("--tokens", type=int, default=8192, help="new tokens of a whole text")
    parser.add_argument(
        "--turn",
        type=int,
        default=256,
        help="tokens that a model writes before it is the next one's turn; divides --tokens",
    )
    parser.add_argument(
        "--marks", type=int, nargs="+", default=MARKS, help="lengths of texts, in new tokens, that tables show"
    )
    parser.add_argument(
        "--window", type=int, default=64, help="tokens that are timed before each mark that no whole text reaches"
    )
    parser.add_argument(
        "--recomputed", type=int, default=2, help="tokens that are timed before each mark without a cache"
    )
    parser.add_argument(
        "--longest-token",
        type=float,
        default=8.0,
        help="seconds that a token may take without a cache; slower marks are left out",
    )
    parser.add_argument(
        "--counted",
        type=int,
        default=64,
        help="tokens before each mark whose operations, bytes and memory are counted",
    )
    parser.add_argument(
        "--checked", type=int, default=256, help="tokens that must be those without a cache, in float64"
    )
    parser.add_argument(
        "--check-at",
        type=int,
        nargs="*",
        default=[512, 2048],
        help="lengths of texts at which logits are compared with those without a cache",
    )
    parser.add_argument("--prompt", type=int, default=16, help="tokens of the prompt")
    parser.add_argument("--hidden-size", type=int, default=256, help="width of the models, a multiple of 64")
    parser.add_argument("--layers", type=int, default=4, help="layers of each model")
    parser.add_argument("--order", type=int, help="modes of distilled kernels; by default as many as --tolerance asks")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="relative error that distilled kernels may have")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="data type of the timed models"
    )
    add_device_argument(parser)
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument("--minutes", type=float, help="minutes after which nothing further begins; by default none")
    parser.add_argument(
        "--output-dir",
        default="runs/decoding",
        help="where results, tables and plots go; the same command goes on there",
    )
    arguments = parser.parse_args(argv)
    on_gpu = torch.device(arguments.device).type == "cuda"
    names = arguments.models or [*MODELS, *(ON_GPU if on_gpu else ())]
    try:
        arguments.models = list(map(contender, names))
    except ValueError as error:
        parser.error(str(error))
    sizes = (arguments.tokens, arguments.turn, arguments.window, arguments.recomputed, arguments.counted)
    several = (*arguments.batch, *arguments.whole_batch, *arguments.marks, *arguments.check_at)
    if min(*sizes, arguments.prompt, arguments.checked, arguments.layers, arguments.hidden_size, *several) < 1:
        parser.error(
            "tokens, turn, window, recomputed, counted, checked, prompt, layers, hidden size, batches, marks and "
            "lengths of checks must be at least 1."
        )
    if arguments.hidden_size % 64:
        parser.error(f"--hidden-size {arguments.hidden_size} must be a multiple of 64.")
    if arguments.tokens % arguments.turn:
        parser.error(f"--turn {arguments.turn} must divide --tokens {arguments.tokens}.")
    return arguments


@explained("decoding.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the benchmark and return its rows."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.threads)
    session = Session(arguments)
    run_parts(session)
    order = list(map(str, arguments.models))
    rows = rows_of(session.results, order, arguments.marks)
    if not rows:
        sys.exit(
            "decoding.py: nothing was measured: give more --minutes, --marks of at most --tokens, or models that are "
            "not left out (above)."
        )
    on_gpu = torch.device(arguments.device).type == "cuda"
    device = torch.cuda.get_device_name() if on_gpu else f"CPU (threads: {arguments.threads})"
    clock = "wall time" if on_gpu or arguments.threads > 1 else "thread CPU time"
    where = f"width {arguments.hidden_size}, {arguments.layers} layers, {arguments.dtype}, {device}, {clock}, "
    where += f"torch {torch.__version__}"
    sections = []
    for batch in sorted({row["batch"] for row in rows if row["llama"] is not None}):
        title = f"Batch {batch}: how many times as fast as Llama over the first n new tokens (~: sampled); {where}"
        sections.append((title, *wins(rows, batch)))
    timed = [row for row in rows if "seconds" in row]
    counted = [row for row in rows if "mflop" in row]
    if timed:
        sections.append((f"Greedy generation: {where}", timed, TIME_COLUMNS))
    if counted:
        sections.append((f"What a token costs, counted: {where}", counted, COST_COLUMNS))
    setting = {name: getattr(arguments, name) for name in ("hidden_size", "layers", "dtype", "device", "threads")}
    results = [
        Result("decoding", row["model"], name, row[name], setting=setting | place)
        for row in rows
        for place in [{name: row[name] for name in ("batch", "tokens", "measured", "parameters") if name in row}]
        for name in METRICS
        if row.get(name) is not None
    ]
    arguments.models = order
    folder = write_report(arguments, "decoding", sections, results)
    if timed:
        plot_times(rows, order, folder / "decoding.png", f"Greedy generation: {where}")
    if counted:
        plot_costs(rows, order, folder / "decoding_costs.png", f"What a token costs, counted: {where}")
    return rows


if __name__ == "__main__":
    main()
