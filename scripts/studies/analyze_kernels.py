"""Looks into Toeplitz kernels: of a checkpoint, or of theory. Each analysis writes results, a table and plots.

    python scripts/studies/analyze_kernels.py kernels --model runs/tnn --output-dir runs/kernels
    python scripts/studies/analyze_kernels.py split --model runs/tnn --output-dir runs/kernels
    python scripts/studies/analyze_kernels.py extrapolation --model runs/fd-tnn --output-dir runs/kernels
    python scripts/studies/analyze_kernels.py responses --output-dir runs/kernels                      # random, fitted
    python scripts/studies/analyze_kernels.py responses --model runs/fd-tnn --output-dir runs/kernels  # learned ones
    python scripts/studies/analyze_kernels.py ski-error --output-dir runs/kernels
    python scripts/studies/analyze_kernels.py piecewise-linear --output-dir runs/kernels

kernels           learned kernels over lag and frequency, magnitude and phase, of one or two dimensions
responses         frequency responses, impulse responses and decay for ReLU, SiLU and GELU, beside the predicted tails
ski-error         W A W^T against the dense matrix, the best of its rank and Nystrom, and the bound on it
piecewise-linear  whether a ReLU encoder is piecewise linear, with and without normalization
split             learned kernels as a few taps plus a smooth rest, and the rank of that
extrapolation     kernels beyond the trained length
"""

import argparse
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from study_models import load_backbone

from hf_seqmix.analysis.extrapolation import EXTRAPOLATION_COLUMNS, extrapolate_model, plot_extrapolation
from hf_seqmix.analysis.kernel_decay import (
    ACTIVATIONS,
    DECAY_COLUMNS,
    decay_row,
    decay_table,
    fit_response,
    random_encoders,
    resonance,
    resonance_taps,
    some_channels,
)
from hf_seqmix.analysis.kernels import (
    LearnedKernels,
    learned_kernels,
    plot_kernels,
    toeplitz_operators,
    typical_channels,
)
from hf_seqmix.analysis.piecewise_linear import (
    LINEARITY_COLUMNS,
    NORMALIZATIONS,
    linearity,
    normalized_encoder,
    plot_linearity,
)
from hf_seqmix.analysis.ski_error import (
    SKI_COLUMNS,
    derivative_bound,
    gaussian_kernel,
    learned_ski_errors,
    plot_ski_error,
    ski_error,
    two_exponentials,
)
from hf_seqmix.analysis.sparse_smooth import SPLIT_COLUMNS, plot_split, split_row, two_sided
from hf_seqmix.analysis.theory_plots import ResponseExample, plot_responses, response_example
from hf_seqmix.models.fd_tnn.kernel import FREQUENCY_INPUTS, FrequencyKernel
from hf_seqmix.training import explain_write_error
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.results import Result
from hf_seqmix.training.rows import row_results

DEGREES = {"linear": 1, "cubic": 3}

logger = logging.getLogger("analyze_kernels")


def build_parser() -> argparse.ArgumentParser:
    """Return a parser with one sub-command an analysis; `run` of the parsed arguments is the function that does it."""
    parser = argparse.ArgumentParser(
        prog="analyze_kernels.py",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
            added.add_argument("--layers", type=int, nargs="+", help="of the plots: first and last by default")
        added.add_argument("--output-dir", type=Path, required=True, help="where results, table and plots go")
        added.set_defaults(run=run)
        return added

    kernels = add("kernels", run_kernels, "required")
    kernels.add_argument("--length", type=int, help="lags; max_position_embeddings by default")
    kernels.add_argument("--channels", type=int, default=2, help="drawn of each layer")

    responses = add("responses", run_responses, "optional")
    responses.add_argument("--seeds", type=int, default=20, help="random encoders of each kind")
    responses.add_argument("--fft-length", type=int, default=2**16, help="F, at least 16384")
    responses.add_argument("--fit-steps", type=int, default=500, help="of the encoders fitted to a target")
    responses.add_argument("--hidden-size", type=int, default=64, help="of random and fitted encoders")
    responses.add_argument("--channels", type=int, default=64, help="of each layer of a model that are looked at")

    ski = add("ski-error", run_ski_error, "optional")
    ski.add_argument("--length", type=int, default=256, help="tokens")
    ski.add_argument("--points", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128])
    ski.add_argument("--rtol", type=float, default=1e-10, help="of the pseudo-inverse")

    linear = add("piecewise-linear", run_piecewise_linear, "none")
    linear.add_argument("--seeds", type=int, default=3, help="random encoders; the first is drawn")
    linear.add_argument("--range", type=float, nargs=2, default=[-4.0, 4.0], metavar=("LOW", "HIGH"))

    linear.add_argument("--cells", type=int, default=2**14, help="steps of the second differences over the range")

    split = add("split", run_split, "required")
    split.add_argument("--length", type=int, default=256, help="tokens; costs decompositions of that size")
    split.add_argument("--half-widths", type=int, nargs="+", default=[2, 8, 16], help="taps on each side of lag 0")
    split.add_argument("--channels", type=int, default=32, help="of each layer, evenly spread")

    extrapolation = add("extrapolation", run_extrapolation, "required")
    extrapolation.add_argument("--length", type=int, help="trained length; max_position_embeddings by default")
    extrapolation.add_argument("--factor", type=float, default=2.0, help="longer by")
    return parser


def trained_length(arguments: argparse.Namespace, model: Any) -> int:
    """Return the length asked for, or else the one that the model is configured for."""
    return arguments.length or model.config.max_position_embeddings


def chosen(arguments: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return the names of the layers to draw.

    Raises:
        ValueError: a layer is asked for that is not there.
    """
    numbers = arguments.layers or sorted({0, len(names) - 1})
    if not all(0 <= number < len(names) for number in numbers):
        raise ValueError(f"--layers is {numbers}; the model has {len(names)} Toeplitz operators, numbered from 0.")
    return [names[number] for number in numbers]


def run_kernels(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Draw and tabulate the kernels of every Toeplitz layer."""
    model = load_backbone(arguments.model, arguments.trust_remote_code)
    kernels = learned_kernels(model, trained_length(arguments, model))
    rows = [describe(layer) for layer in kernels]
    columns = {
        "layer": "layer",
        "direction": "direction",
        "channels": "channels",
        "lags": "lags",
        "strength": "norm, median:.3g",
        "reach": "reach (tokens), median:.1f",
        "reach_longest": "reach, longest:.1f",
        "low_pass": "channels that pass low frequencies:.0%",
    }
    drawn = chosen(arguments, [layer.name for layer in kernels])
    plot_kernels(
        [layer for layer in kernels if layer.name in drawn],
        arguments.output_dir / "kernels.png",
        channels=arguments.channels,
    )
    report(arguments, "kernels", rows, columns, title=f"Kernels of {Path(arguments.model).name}")
    return rows


def describe(layer: LearnedKernels) -> dict[str, Any]:
    """Return figures of a layer's kernels, and the taps of two typical channels."""
    frequencies, response = layer.response(256)
    low = response[:, frequencies < math.pi / 2].square().mean(dim=1)
    high = response[:, frequencies >= math.pi / 2].square().mean(dim=1)
    reach = layer.reach()
    return {
        "layer": layer.name,
        "direction": "causal" if layer.is_causal else "bidirectional",
        "channels": layer.taps.shape[0],
        "lags": layer.taps.shape[1],
        "strength": layer.taps.norm(dim=1).median().item(),
        "reach": reach.median().item(),
        "reach_longest": reach.max().item(),
        "low_pass": (low > high).float().mean().item(),
        "taps": {str(channel): layer.taps[channel].tolist() for channel in typical_channels(layer, 2)},
    }


def run_responses(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare the decay of kernels given by their response with what is predicted, and draw both."""
    drawn: dict[str, dict[str, ResponseExample]]
    if arguments.model:
        model = load_backbone(arguments.model, arguments.trust_remote_code)
        operators = {name: operator for name, operator, _ in toeplitz_operators(model)}
        found = {name: operator.kernel for name, operator in operators.items()}
        frequency_kernels = {name: kernel for name, kernel in found.items() if isinstance(kernel, FrequencyKernel)}
        if not frequency_kernels:
            raise ValueError(f"{arguments.model} has no kernel that is given by a response: it is no FD-TNN.")
        shown = chosen(arguments, list(frequency_kernels))
        rows, drawn = [], {}
        for name, kernel in frequency_kernels.items():
            logger.info(name)
            mode, causal = kernel.frequency_input, kernel.is_causal
            thin = some_channels(kernel.encoder, arguments.channels, causal)
            activation = type(thin.activation).__name__.lower().removesuffix("activation")
            rows.append(
                {"layer": name, "activation": activation, **decay_row([thin], mode, causal, arguments.fft_length)}
            )
            if name in shown:
                drawn.setdefault(mode, {})[name] = response_example([thin], mode, causal)
        plot_responses(
            drawn, arguments.output_dir / "responses.png", title=f"Responses of {Path(arguments.model).name}"
        )
        report(arguments, "responses", rows, {"layer": "layer", **DECAY_COLUMNS}, title="Decay of learned kernels")
        return rows

    seeds, width = range(arguments.seeds), arguments.hidden_size
    rows = decay_table(seeds, fft_length=arguments.fft_length, hidden_size=width, progress=logger.info)
    drawn = {
        mode: {name: response_example(random_encoders(name, seeds, hidden_size=width), mode) for name in ACTIVATIONS}
        for mode in FREQUENCY_INPUTS
    }
    title = f"Random encoders, causal; one response, decay as the median over {arguments.seeds} seeds and 8 channels"
    plot_responses(drawn, arguments.output_dir / "responses-random.png", title=title)
    drawn, fits = {}, []
    for mode in FREQUENCY_INPUTS:
        for name in ACTIVATIONS:
            logger.info(f"fitting: {mode}, {name}")
            encoder = random_encoders(name, [0], channels=1, hidden_size=width)[0]
            error = fit_response(encoder, mode, steps=arguments.fit_steps)
            row = decay_row([encoder], mode, fft_length=arguments.fft_length)
            fits.append({"activation": name, "fit_error": error, **row})
            drawn.setdefault(mode, {})[name] = response_example([encoder], mode)
    frequencies = torch.linspace(0, math.pi, 1025, dtype=torch.float64)
    plot_responses(
        drawn,
        arguments.output_dir / "responses-fitted.png",
        title=f"Encoders fitted to a resonance, k(t) = 0.8^t cos(π t / 4), {arguments.fit_steps} steps of Adam",
        target=(resonance(frequencies), resonance_taps(torch.arange(8192))),
    )
    title = (
        f"Decay of random kernels: {arguments.seeds} seeds x 8 channels, F = {arguments.fft_length}, float64, medians"
    )
    report(arguments, "responses", rows, DECAY_COLUMNS, title=title)
    fitted_columns = {"fit_error": "fit error:.2%", **DECAY_COLUMNS}
    report(arguments, "responses-fitted", fits, fitted_columns, title="Decay of kernels fitted to a resonance")
    return rows + fits


def run_ski_error(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure what SKI loses, for two smooth kernels, or for those that a model has learned."""
    panels: dict[str, list[dict[str, Any]]] = {}
    points = sorted(arguments.points)
    if points[0] < 2 or points[-1] >= arguments.length:
        raise ValueError(f"--points is {points}; each must be at least 2 and below --length {arguments.length}.")
    if arguments.model:
        operators = {
            name: operator
            for name, operator, _ in toeplitz_operators(load_backbone(arguments.model, arguments.trust_remote_code))
        }
        for name in chosen(arguments, list(operators)):
            logger.info(name)
            panels[name] = [
                {
                    "kernel": name,
                    "interpolation": "linear",
                    **learned_ski_errors(operators[name], arguments.length, count),
                }
                for count in points
            ]
        what = f"Kernels of {Path(arguments.model).name}"
    else:
        for title, make in (("two exponentials", two_exponentials), ("Gaussian", gaussian_kernel)):
            kernel = make(arguments.length)
            for interpolation, degree in DEGREES.items():
                logger.info(f"{title}, {interpolation}")
                # The exponentials have no fourth derivative where their sides meet.
                smooth = degree == 1 or title == "Gaussian"
                # Cubic weights reach one point beyond the last token.
                reach = arguments.length * (1 + 1 / (points[0] - 1)) if smooth else 0.0
                bound = derivative_bound(kernel, degree + 1, reach) if smooth else None
                panels[f"{title}, {interpolation}"] = [
                    {"kernel": title, "interpolation": interpolation}
                    | ski_error(kernel, arguments.length, count, degree, derivative=bound, rtol=arguments.rtol)
                    for count in points
                ]
        what = "Smooth asymmetric kernels"
    rows = [row for panel in panels.values() for row in panel]
    title = f"{what}: error of SKI in the spectral norm, relative to |T|, {arguments.length} tokens"
    plot_ski_error(panels, arguments.output_dir / "ski-error.png", title=title)
    used = {key: header for key, header in SKI_COLUMNS.items() if any(key in row for row in rows)}
    report(arguments, "ski-error", rows, used, title=title)
    return rows


def run_piecewise_linear(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Test whether ReLU encoders are piecewise linear, by second differences away from their kinks."""
    low, high = arguments.range
    if not low < high or arguments.seeds < 1 or arguments.cells < 2:
        raise ValueError(
            f"--range is {low} to {high} and --seeds {arguments.seeds}, --cells "
            f"{arguments.cells}; the range must rise, with one seed and two cells at least."
        )
    results = {
        (name, seed): linearity(normalized_encoder(name, seed=seed), low, high, arguments.cells)
        for name in NORMALIZATIONS
        for seed in range(arguments.seeds)
    }
    rows = [{"normalization": name, "seed": seed, **result.to_dict()} for (name, seed), result in results.items()]
    title = f"Random ReLU encoders of x in [{low:g}, {high:g}], 3 hidden layers of 64, float64"
    drawn = {name: results[name, 0] for name in NORMALIZATIONS}
    plot_linearity(drawn, arguments.output_dir / "piecewise-linear.png", title=title)
    report(arguments, "piecewise-linear", rows, {"seed": "seed", **LINEARITY_COLUMNS}, title=title)
    return rows


def run_split(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Split learned kernels into a few taps around lag 0 and a smooth rest."""
    kernels = learned_kernels(load_backbone(arguments.model, arguments.trust_remote_code), arguments.length)
    rows = []
    for layer in kernels:
        logger.info(layer.name)
        channels = torch.linspace(0, len(layer.taps) - 1, min(arguments.channels, len(layer.taps))).round().long()
        taps = two_sided(layer.taps[channels], layer.is_causal)
        rows += [{"layer": layer.name, **split_row(taps, width)} for width in arguments.half_widths]
    title = f"{Path(arguments.model).name}, {arguments.length} tokens, ranks to 1 % of |T|"
    drawn = chosen(arguments, [layer.name for layer in kernels])
    plot_split(
        [layer for layer in kernels if layer.name in drawn],
        arguments.output_dir / "split.png",
        half_width=arguments.half_widths[len(arguments.half_widths) // 2],
        title=title,
    )
    report(arguments, "split", rows, SPLIT_COLUMNS, title=title)
    return rows


def run_extrapolation(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Make learned kernels longer than they were trained for."""
    model = load_backbone(arguments.model, arguments.trust_remote_code)
    length = trained_length(arguments, model)
    results = extrapolate_model(model, length, round(length * arguments.factor))
    rows = [result.to_dict() for result in results]
    drawn = chosen(arguments, list(dict.fromkeys(result.layer for result in results)))
    title = f"Kernels of {Path(arguments.model).name}, {arguments.factor:g} times as long"
    plot_extrapolation(
        [result for result in results if result.layer in drawn],
        arguments.output_dir / "extrapolation.png",
        title=title,
    )
    report(arguments, "extrapolation", rows, EXTRAPOLATION_COLUMNS, title=title)
    return rows


def results_of(name: str, rows: Sequence[Mapping[str, Any]], **shared: Any) -> list[Result]:
    """Return the rows of an analysis as results: what the analysis looks at stands for the model."""
    looked_at = {"responses": "activation", "responses-fitted": "activation", "ski-error": "kernel"}
    looked_at |= {"piecewise-linear": "normalization"}
    return row_results(
        rows,
        name,
        looked_at.get(name, "layer"),
        setting=("length", "longer", "points", "degree", "half_width", "channels", "encoders", "fft_length"),
        inner={"taps": ("channel", "lag")},
        **shared,
    )


def report(
    arguments: argparse.Namespace,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    *,
    title: str,
) -> None:
    """Print the table, and write the table and the results."""
    write_report(arguments, name, [(title, rows, columns)], results_of(name, rows))


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command line and return the rows of its table; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    begin = time.perf_counter()
    try:
        arguments.output_dir.mkdir(parents=True, exist_ok=True)
        rows = arguments.run(arguments)
    except ValueError as error:
        sys.exit(f"analyze_kernels.py: {error}")
    except OSError as error:
        message = explain_write_error(error, arguments.output_dir)
        if message is None:
            raise
        sys.exit(f"analyze_kernels.py: {message}")
    logger.info(f"{arguments.output_dir}: done in {time.perf_counter() - begin:.1f} s")
    return rows


if __name__ == "__main__":
    main()
