"""Looks into Toeplitz kernels: of a checkpoint, or of theory. Each analysis writes results, a table and plots.

    python scripts/studies/analyze_kernels.py kernels --model runs/tnn --output-dir runs/kernels
    python scripts/studies/analyze_kernels.py split --model runs/tnn --output-dir runs/kernels
    python scripts/studies/analyze_kernels.py extrapolation --model runs/fd-tnn --output-dir runs/kernels
    python scripts/studies/analyze_kernels.py responses --output-dir runs/kernels                      # random, fitted
    python scripts/studies/analyze_kernels.py responses --model runs/fd-tnn --output-dir runs/kernels  # learned ones
    python scripts/studies/analyze_kernels.py inequalities --output-dir runs/kernels
    python scripts/studies/analyze_kernels.py ski-error --output-dir runs/kernels
    python scripts/studies/analyze_kernels.py piecewise-linear --output-dir runs/kernels

kernels           learned kernels over lag and frequency, magnitude and phase, of one or two dimensions
responses         frequency responses, impulse responses and decay for ReLU, SiLU and GELU, beside the predicted tails
inequalities      both sides of what theorems 3 and 4 and proposition 4 claim of kernels given by their response
ski-error         W A W^T against the dense matrix, the best of its rank and Nystrom, and the bound on it
piecewise-linear  whether a ReLU encoder is piecewise linear, with and without normalization
split             learned kernels as a few taps plus a smooth rest, and the rank of that
extrapolation     kernels beyond the trained length
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernel_analyses.learned import run_extrapolation, run_kernels, run_split
from kernel_analyses.theory import run_inequalities, run_piecewise_linear, run_responses, run_ski_error

from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import CommandParser, explained, positive

logger = logging.getLogger("analyze_kernels")


def build_parser() -> argparse.ArgumentParser:
    """Return a parser with one sub-command an analysis; `run` of the parsed arguments is the function that does it."""
    parser = CommandParser(prog="analyze_kernels.py", description=__doc__, allow_abbrev=False)
    analyses = parser.add_subparsers(dest="analysis", required=True, metavar="analysis")

    def add(
        name: str, run: Callable[[argparse.Namespace], list[dict[str, Any]]], model: str
    ) -> argparse.ArgumentParser:
        added = analyses.add_parser(name, allow_abbrev=False, description=run.__doc__)
        if model != "none":
            added.add_argument("--model", required=model == "required", metavar="NAME_OR_PATH", help="a checkpoint")
            added.add_argument(
                "--trust-remote-code", action="store_true", help="run code that comes with the checkpoint"
            )
            added.add_argument(
                "--layers",
                type=int,
                nargs="+",
                help="layers of the model that are shown, from 0; first and last by default",
            )
        added.add_argument("--output-dir", type=Path, required=True, help="where results, table and plots go")
        added.set_defaults(run=run)
        return added

    kernels = add("kernels", run_kernels, "required")
    kernels.add_argument("--length", type=positive, help="lags of the kernels; max_position_embeddings by default")
    kernels.add_argument("--channels", type=positive, default=2, help="channels that are drawn of each layer")

    responses = add("responses", run_responses, "optional")
    responses.add_argument("--seeds", type=positive, default=20, help="random encoders of each kind, without --model")
    responses.add_argument(
        "--fft-length", type=int, default=2**16, help="points of the Fourier transforms, at least 16384"
    )
    responses.add_argument(
        "--fit-steps", type=positive, default=500, help="updates of encoders fitted to a target, without --model"
    )
    responses.add_argument(
        "--hidden-size", type=positive, default=64, help="width of random and fitted encoders, without --model"
    )
    responses.add_argument(
        "--channels", type=positive, default=64, help="channels of each layer that are looked at, with --model"
    )

    inequalities = add("inequalities", run_inequalities, "none")
    inequalities.add_argument("--seeds", type=positive, default=5, help="random encoders of each kind")
    inequalities.add_argument("--hidden-size", type=positive, default=64, help="width of the encoders")

    ski = add("ski-error", run_ski_error, "optional")
    ski.add_argument("--length", type=positive, default=256, help="tokens")
    ski.add_argument(
        "--points",
        type=int,
        nargs="+",
        default=[4, 8, 16, 32, 64, 128],
        help="inducing points, at least 2 and fewer than --length",
    )
    ski.add_argument("--rtol", type=float, default=1e-10, help="relative tolerance of the pseudo-inverse")

    linear = add("piecewise-linear", run_piecewise_linear, "none")
    linear.add_argument("--seeds", type=positive, default=3, help="random encoders; the first is drawn")
    linear.add_argument(
        "--range",
        type=float,
        nargs=2,
        default=[-4.0, 4.0],
        metavar=("LOW", "HIGH"),
        help="ends of the range of positions that the encoder reads",
    )
    linear.add_argument("--cells", type=int, default=2**14, help="steps of the second differences over the range")

    split = add("split", run_split, "required")
    split.add_argument("--length", type=positive, default=256, help="tokens; costs decompositions of that size")
    split.add_argument("--half-widths", type=int, nargs="+", default=[2, 8, 16], help="taps on each side of lag 0")
    split.add_argument(
        "--channels", type=positive, default=32, help="channels of each layer that are measured, evenly spread"
    )

    extrapolation = add("extrapolation", run_extrapolation, "required")
    extrapolation.add_argument(
        "--length", type=positive, help="trained length, in tokens; max_position_embeddings by default"
    )
    extrapolation.add_argument(
        "--factor", type=float, default=2.0, help="how many times as long the kernels are computed"
    )
    return parser


@explained("analyze_kernels.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command line and return the rows of its table; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    begin = time.perf_counter()
    prepare_run_folder(arguments.output_dir, resume=True)
    rows = arguments.run(arguments)
    logger.info(f"{arguments.output_dir}: done in {time.perf_counter() - begin:.1f} s")
    return rows


if __name__ == "__main__":
    main()
