"""Ablations of products: causal SKI by running sums, and sparse against dense interpolation."""

import argparse
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from ski import causal_product
from ski.interpolation import FORMS
from torch import Tensor

from hf_seqmix import toeplitz_matmul
from hf_seqmix.analysis.plots.figures import draw_grid, draw_row, line
from hf_seqmix.ops.ski.interpolation import InducingGrid, interpolation_matrix
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.timing import (
    Clock,
    Timed,
    forward_backward,
    interleave,
    medians_ms,
    relative_error,
)

__all__ = ["run_causal_ski", "run_interpolation"]

logger = logging.getLogger("ablate_toeplitz")


def run_causal_ski(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare causal SKI by running sums against the causal Toeplitz product by FFT."""
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    clock = Clock(device)
    rows = []
    for length in arguments.lengths:
        grid = causal_product.whole_grid(length, arguments.points)
        kernel_size = 2 * grid.points(length) - 1
        shape = (arguments.batch, length, arguments.channels)
        states = arguments.batch * length * grid.points(length) * arguments.channels * 4
        forms: dict[str, Callable[..., Tensor]] = {
            "within_cells": causal_product.within_cells,
            "chunked": causal_product.chunked,
        }
        if states <= arguments.most_mib * 2**20:
            forms["running_sums"] = causal_product.running_sums
        row: dict[str, Any] = {"length": length, "points": grid.points(length), "clock": clock.kind}
        row["spacing"] = causal_product.spacing_of(grid)
        row["errors"] = check_causal_ski(forms, grid, length)
        generator = torch.Generator().manual_seed(0)
        timed = {}
        for name, form in forms.items():
            x, upstream = (torch.randn(shape, generator=generator).to(device) for _ in range(2))
            kernel = torch.randn(arguments.channels, kernel_size, generator=generator).to(device)
            inputs = [x.requires_grad_(), kernel.requires_grad_()]
            timed[name] = forward_backward(lambda x, k, form=form, grid=grid: form(x, k, grid), inputs, upstream)
        x, upstream = (torch.randn(shape, generator=generator).mT.contiguous().to(device) for _ in range(2))
        taps = torch.randn(arguments.channels, length, generator=generator).to(device)
        timed["fft"] = forward_backward(toeplitz_matmul, [x.requires_grad_(), taps.requires_grad_()], upstream)
        for name, rounds in interleave(timed, arguments.rounds, clock).items():
            row[f"{name}_forward_ms"], row[f"{name}_ms"] = medians_ms(rounds)
        for name in forms:
            row[f"{name}_over_fft"] = row[f"{name}_ms"] / row["fft_ms"]
            row[f"{name}_forward_over_fft"] = row[f"{name}_forward_ms"] / row["fft_forward_ms"]
        rows.append(row)
        logger.info(f"length {length}: " + ", ".join(f"{name} {row[f'{name}_ms']:.1f} ms" for name in timed))
    names = ["fft", "within_cells", "chunked", "running_sums"]
    columns = {"length": "length", "points": "points"} | {f"{name}_ms": f"{name} ms:.1f" for name in names}
    columns |= {f"{name}_over_fft": f"{name} / fft:.2f" for name in names[1:]}
    columns |= {f"{name}_forward_over_fft": f"forward, {name} / fft:.2f" for name in names[1:]}
    where = (
        f"batch {arguments.batch}, {arguments.channels} channels, at most {arguments.points} points, "
        f"{arguments.device}, {clock.kind}"
    )
    title = f"Causal SKI by running sums against the causal Toeplitz product, forward and backward: {where}"
    crossings = {
        name: crossing({row["length"]: row[f"{name}_over_fft"] for row in rows if f"{name}_over_fft" in row})
        for name in names[1:]
    }
    kept = row_results(rows, "causal_ski", "fft", models=names, setting=("length", "points", "spacing"))
    kept += row_results([{"faster_from": crossings}], "causal_ski", "fft", models=names)
    folder = write_report(arguments, "causal_ski", [(title, rows, columns)], kept)
    print("\nFaster than the FFT product from: " + _crossings_text(crossings))
    with draw_row(folder / "causal_ski.png", 11, 4.4, 2, title) as (_, panels):
        for panel, suffix, label in zip(
            panels, ("_forward_ms", "_ms"), ("forward", "forward and backward"), strict=True
        ):
            for index, name in enumerate(names):
                mine = [row for row in rows if f"{name}{suffix}" in row]
                times = [row[f"{name}{suffix}"] for row in mine]
                panel.loglog(
                    [row["length"] for row in mine], times, base=2, label=name.replace("_", " "), **line(index)
                )
            panel.set(xlabel="length (tokens)", ylabel=f"{label} (ms)")
            panel.set_xticks(arguments.lengths, [str(length) for length in arguments.lengths])
            panel.set_yscale("log", base=10)
            panel.minorticks_off()
        panels[0].legend()
    return {"rows": rows, "faster_from": crossings}


def check_causal_ski(forms: Mapping[str, Callable[..., Tensor]], grid: InducingGrid, length: int) -> dict[str, float]:
    """Return each form's largest relative error, of output and gradients, against the masked dense W A W^T in float64.

    Raises:
        RuntimeError: if one is wrong.
    """
    generator = torch.Generator().manual_seed(1)
    batch = 2 if length <= 2048 else 1
    kernel_size = 2 * grid.points(length) - 1
    x, upstream = (torch.randn(batch, length, batch, generator=generator).double() for _ in range(2))
    kernel = torch.randn(batch, kernel_size, generator=generator).double()
    values = {}
    for name, form in {"dense": causal_product.causal_ski_dense, **forms}.items():
        dtype = torch.float64 if name == "dense" else torch.float32
        inputs = [t.detach().to(dtype).requires_grad_() for t in (x, kernel)]
        y = form(inputs[0], inputs[1], grid)
        values[name] = [y.detach(), *torch.autograd.grad(y, inputs, upstream.to(dtype))]
    errors = {name: max(map(relative_error, values[name], values["dense"])) for name in forms}
    for name, error in errors.items():
        if not error < 1e-4:
            raise RuntimeError(f"{name} is wrong at length {length}: relative error {error:.2g}.")
    return errors


def crossing(ratios: Mapping[int, float]) -> int | None:
    """Return the least length from which on a ratio stays below 1, or None."""
    found = None
    for length in sorted(ratios, reverse=True):
        if ratios[length] >= 1:
            break
        found = length
    return found


def _crossings_text(crossings: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name}: {'no length measured' if n is None else n}" for name, n in crossings.items())


def run_interpolation(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare products with W and its transpose, dense and sparse, over lengths and points."""
    torch.set_num_threads(arguments.threads)
    clock = Clock(torch.device("cpu"))
    rows = []
    for points in arguments.points:
        for length in arguments.lengths:
            grid = InducingGrid(length, min(points, length))
            met = grid.points(length)
            generator = torch.Generator().manual_seed(0)
            z = torch.randn(arguments.batch, arguments.channels, met, generator=generator)
            x = torch.randn(arguments.batch, arguments.channels, length, generator=generator)
            matrix = interpolation_matrix(length, grid)
            row: dict[str, Any] = {"points": points, "length": length, "clock": clock.kind}
            timed: dict[str, Timed] = {}
            for name, form in FORMS.items():
                products = form(length, grid)
                z_own, x_own = products.enter(z), products.enter(x)
                for product, given, expected in (
                    (products.forward, z_own, z.double() @ matrix.mT),
                    (products.adjoint, x_own, x.double() @ matrix),
                ):
                    error = relative_error(products.leave(product(given), arguments.batch), expected)
                    if not error < 1e-5:
                        raise RuntimeError(f"{name} is wrong at length {length}, {points} points: {error:.2g}.")
                timed[name] = _timed_products(products.forward, products.adjoint, z_own, x_own)
            with torch.no_grad():
                measured = interleave(timed, arguments.rounds, clock)
            for name, rounds in measured.items():
                row[f"{name}_forward_ms"], row[f"{name}_adjoint_ms"], row[f"{name}_ms"] = medians_ms(rounds)
            for name in FORMS:
                row[f"{name}_over_dense"] = row[f"{name}_ms"] / row["dense_ms"]
            rows.append(row)
            logger.info(
                f"{points} points, length {length}: " + ", ".join(f"{n} {row[f'{n}_ms']:.2f} ms" for n in FORMS)
            )
    sparse = [name for name in FORMS if name != "dense"]
    crossings: dict[str, int | None] = {}
    kept = row_results(rows, "interpolation", "dense", models=list(FORMS), setting=("length", "points"))
    for points in arguments.points:
        mine = [row for row in rows if row["points"] == points]
        found = {name: crossing({row["length"]: row[f"{name}_over_dense"] for row in mine}) for name in sparse}
        crossings |= {f"{name}, {points} points": length for name, length in found.items()}
        row = {"points": points, "faster_from": found}
        kept += row_results([row], "interpolation", "dense", models=list(FORMS), setting=("points",))
    columns = {"points": "points", "length": "length"} | {f"{name}_ms": f"{name} ms:.3f" for name in FORMS}
    columns |= {f"{name}_over_dense": f"{name} / dense:.2f" for name in sparse}
    where = f"batch {arguments.batch}, {arguments.channels} channels, {clock.kind}"
    title = f"W z and W^T x, one after the other: {where}"
    folder = write_report(arguments, "interpolation", [(title, rows, columns)], kept)
    print("\nFaster than dense from: " + _crossings_text(crossings))
    count = len(arguments.points)
    with draw_grid(folder / "interpolation.png", 1.5 + 2.7 * count, 4, 1, count, title, sharey=True) as (_, axes):
        panels = axes[0]
        for panel, points in zip(panels, arguments.points, strict=True):
            mine = [row for row in rows if row["points"] == points]
            lengths = [row["length"] for row in mine]
            for index, name in enumerate(FORMS):
                panel.plot(lengths, [row[f"{name}_ms"] for row in mine], label=name, **line(index))
            panel.set(xscale="log", yscale="log", xlabel="length (tokens)", title=f"{points} inducing points")
            panel.set_xticks(lengths, [str(length) for length in lengths], rotation=45)
            panel.minorticks_off()
        panels[0].set_ylabel("W z and W^T x (ms)")
        panels[0].legend()
    return {"rows": rows, "faster_from": crossings}


def _timed_products(
    forward: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor], z: Tensor, x: Tensor
) -> Timed:
    def once(clock: Clock) -> tuple[float, float, float]:
        marks = [clock.mark()]
        for product, given in ((forward, z), (adjoint, x)):
            product(given)
            marks.append(clock.mark())
        first, second = (clock.between(a, b) for a, b in itertools.pairwise(marks))
        return first, second, first + second

    return once
