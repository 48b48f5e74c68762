"""The analyses of analyze_kernels.py that test theorems, on kernels made for that or on those of a checkpoint."""

import argparse
import logging
import math
from pathlib import Path
from typing import Any

import torch
from study_models import load_backbone

from hf_seqmix.analysis.kernels import toeplitz_operators
from hf_seqmix.analysis.kernels.decay import (
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
from hf_seqmix.analysis.kernels.inequalities import INEQUALITY_COLUMNS, inequality_rows
from hf_seqmix.analysis.kernels.piecewise_linear import (
    LINEARITY_COLUMNS,
    NORMALIZATIONS,
    linearity,
    normalized_encoder,
    plot_linearity,
)
from hf_seqmix.analysis.kernels.response_plots import ResponseExample, plot_responses, response_example
from hf_seqmix.analysis.kernels.ski_error import (
    SKI_COLUMNS,
    derivative_bound,
    gaussian_kernel,
    learned_ski_errors,
    plot_ski_error,
    ski_error,
    two_exponentials,
)
from hf_seqmix.models.fd_tnn.kernel import FREQUENCY_INPUTS, FrequencyKernel

from .report import chosen, report

__all__ = ["run_inequalities", "run_piecewise_linear", "run_responses", "run_ski_error"]

DEGREES = {"linear": 1, "cubic": 3}

logger = logging.getLogger("analyze_kernels")


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
            drawn, arguments.output_dir / "responses-learned.png", title=f"Responses of {Path(arguments.model).name}"
        )
        title = "Decay of learned kernels"
        report(arguments, "responses-learned", rows, {"layer": "layer", **DECAY_COLUMNS}, title=title)
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


def run_inequalities(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Compute both sides of the inequalities on the decay of kernels, and of the one on their squares."""
    rows = []
    for mode in FREQUENCY_INPUTS:
        for name in ACTIVATIONS:
            logger.info(f"{mode}, {name}")
            encoders = random_encoders(name, range(arguments.seeds), hidden_size=arguments.hidden_size)
            rows += [{"activation": name, **row} for row in inequality_rows(encoders, mode)]
    title = f"2π |t|^N |e(t)| over |R^(N)|_1, largest of lags 1 to 1,024: random encoders, {arguments.seeds} seeds x 8"
    title += " channels, float64; claimed to be at most 1 for every N where the activation is smooth"
    report(arguments, "inequalities", rows, INEQUALITY_COLUMNS, title=title)
    return rows


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
                    **learned_ski_errors(operators[name], arguments.length, count, rtol=arguments.rtol),
                }
                for count in points
            ]
        what, stem = f"Kernels of {Path(arguments.model).name}", "ski-error-learned"
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
        what, stem = "Smooth asymmetric kernels", "ski-error"
    rows = [row for panel in panels.values() for row in panel]
    title = f"{what}: error of SKI in the spectral norm, relative to |T|, {arguments.length} tokens"
    plot_ski_error(panels, arguments.output_dir / f"{stem}.png", title=title)
    used = {key: header for key, header in SKI_COLUMNS.items() if any(key in row for row in rows)}
    report(arguments, stem, rows, used, title=title)
    return rows


def run_piecewise_linear(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Test whether ReLU encoders are piecewise linear, by second differences away from their kinks."""
    low, high = arguments.range
    if not low < high or arguments.seeds < 1 or arguments.cells < 2:
        raise ValueError(
            f"--range is {low} to {high} and --seeds {arguments.seeds}, --cells {arguments.cells}; the range must "
            "rise, with one seed and two cells at least."
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
