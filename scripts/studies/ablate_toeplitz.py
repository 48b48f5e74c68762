"""The ablations of Moreno, Mei, Walters 2023 (arXiv 2305.09028) as commands; each writes results, a table and a plot.

    python scripts/studies/ablate_toeplitz.py sparse-low-rank --output-dir runs/sparse-low-rank
    python scripts/studies/ablate_toeplitz.py ski-settings --output-dir runs/ski-settings
    python scripts/studies/ablate_toeplitz.py causal-ski --output-dir runs/causal-ski
    python scripts/studies/ablate_toeplitz.py causal-ski-text --output-dir runs/causal-ski-text
    python scripts/studies/ablate_toeplitz.py interpolation --output-dir runs/interpolation
    python scripts/studies/ablate_toeplitz.py mlp-depth --output-dir runs/mlp-depth
    python scripts/studies/ablate_toeplitz.py curves --output-dir runs/curves

Times are medians over interleaved rounds (see benchmark_ops.py, also for the clocks). Models are trained by
compare_mixers.py: equal parameters, equal batches, the learning rate chosen on the first seed; by default on the
sources of Python's standard library. A killed command goes on with the next run when it is given again.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ablations.causal_ski_text import run_causal_ski_text
from ablations.models import run_curves, run_mlp_depth, run_sparse_low_rank
from ablations.products import run_causal_ski, run_interpolation
from ablations.ski_settings import run_ski_settings
from comparison.options import SPLITS

from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import CommandParser, add_device_argument, explained, positive

logger = logging.getLogger("ablate_toeplitz")


def build_parser() -> argparse.ArgumentParser:
    """Return a parser with one sub-command an ablation; `run` of the parsed arguments is the function that does it."""
    parser = CommandParser("ablate_toeplitz.py", description=__doc__)
    commands = parser.add_subparsers(dest="ablation", required=True, metavar="ablation")

    def add(name: str, run: Callable[..., Any], *parents: CommandParser) -> argparse.ArgumentParser:
        command = commands.add_parser(name, parents=list(parents), help=run.__doc__, description=run.__doc__)
        command.add_argument("--output-dir", default=f"runs/{name}", help="where results, table and plot go")
        command.add_argument("--threads", type=positive, default=1, help="CPU threads")
        command.set_defaults(run=run)
        return command

    training = CommandParser(add_help=False)
    for split in SPLITS:
        training.add_argument(f"--{split}-file", help="a text file; by default sources of Python's standard library")
    training.add_argument(
        "--train-characters",
        type=int,
        default=2_000_000,
        help="characters of the standard library to train on, at most",
    )
    training.add_argument(
        "--tokenizer", default="bpe:2048", help="byte, bpe:SIZE, or a pretrained one; see pretrain.py"
    )
    training.add_argument(
        "--learning-rates",
        nargs="+",
        type=float,
        default=[4e-3, 8e-3],
        help="learning rates, of which the first seed chooses one",
    )
    training.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        default=[0, 1],
        help="seeds, a run each; the first one chooses the learning rate",
    )
    sizes = {
        "steps": (400, "updates of a run"),
        "batch-size": (4, "sequences of an update"),
        "block-size": (256, "tokens of a sequence"),
        "eval-blocks": (100, "sequences of the validation text and of the test text that are scored"),
        "hidden-size": (128, "width of the models"),
        "num-layers": (2, "layers of each model"),
    }
    for name, (value, meaning) in sizes.items():
        training.add_argument(f"--{name}", type=int, default=value, help=meaning)
    layers = CommandParser(add_help=False)
    layers.add_argument(
        "--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096], help="tokens of a row of the timed layers"
    )
    layers.add_argument("--layer-size", type=int, default=256, help="channels of the timed layers")
    layers.add_argument("--batch", type=int, default=2, help="rows of a batch of the timed layers")
    layers.add_argument("--rounds", type=int, default=7, help="timed rounds, whose median counts")
    add_device_argument(layers)

    command = add("sparse-low-rank", run_sparse_low_rank, training, layers)
    command.add_argument("--points", type=int, default=32, help="inducing points of the timed layers")
    command.add_argument("--taps", type=int, default=17, help="taps of the convolution of the timed layers")
    command = add("ski-settings", run_ski_settings, training)
    command.add_argument(
        "--points", type=int, nargs="*", default=[8, 64, 128], help="numbers of inducing points to try in place of 32"
    )
    command.add_argument(
        "--taps", type=int, nargs="*", default=[5, 33], help="taps of the convolution to try in place of 17"
    )
    command.add_argument(
        "--warps",
        type=float,
        nargs="*",
        default=[1, 25, 100],
        help="w to try in place of 5: the kernel falls to exp(-w) over the block",
    )
    command.add_argument(
        "--falloffs",
        type=float,
        nargs="*",
        default=[0, 2],
        help="a to try in place of 1: first taps fall as (1 + distance)^-a",
    )
    command = add("mlp-depth", run_mlp_depth, training, layers)
    command.add_argument(
        "--task", default="lm-causal", choices=["lm-causal", "lm-masked"], help="causal or masked language modeling"
    )
    add("curves", run_curves, training)
    command = add("causal-ski", run_causal_ski)
    command.add_argument(
        "--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 8192], help="tokens of a row"
    )
    command.add_argument("--points", type=int, default=64, help="inducing points, at most")
    command.add_argument("--batch", type=int, default=4, help="rows of a batch")
    command.add_argument("--channels", type=int, default=256, help="channels of the inputs")
    command.add_argument("--rounds", type=int, default=9, help="timed rounds, whose median counts")
    add_device_argument(command)
    command.add_argument(
        "--most-mib", type=float, default=300, help="MiB; running sums whose states are larger are left out"
    )
    command = add("causal-ski-text", run_causal_ski_text, training)
    command.add_argument(
        "--points", type=int, nargs="+", default=[32, 8], help="numbers of inducing points, a model each"
    )
    command.add_argument("--taps", type=int, default=17, help="taps of the convolution, with SKI and alone")
    command = add("interpolation", run_interpolation)
    command.add_argument(
        "--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 8192], help="tokens of a row"
    )
    command.add_argument(
        "--points", type=int, nargs="+", default=[16, 32, 64, 128, 256], help="numbers of inducing points"
    )
    command.add_argument("--batch", type=int, default=4, help="rows of a batch")
    command.add_argument("--channels", type=int, default=256, help="channels of the inputs")
    command.add_argument("--rounds", type=int, default=9, help="timed rounds, whose median counts")
    return parser


@explained("ablate_toeplitz.py")
def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command line and return what the ablation found; exits with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(sys.argv[1:] if argv is None else argv)
    smallest = min([*getattr(arguments, "lengths", [2]), getattr(arguments, "rounds", 2) + 1])
    if smallest < 2:
        raise ValueError("--lengths must be at least 2 and --rounds at least 1.")
    prepare_run_folder(arguments.output_dir, resume=True)
    return arguments.run(arguments)


if __name__ == "__main__":
    main()
