"""Plots of the least error that a model of limited separation rank leaves."""

from collections.abc import Mapping

from ..plots.figures import PathLike, draw_row, line
from .separation_rank import SeparationSpectrum

__all__ = ["plot_error_bounds"]


def plot_error_bounds(
    spectra: Mapping[str, SeparationSpectrum], path: PathLike, *, max_rank: int = 64, title: str | None = None
) -> None:
    """Draw the least error of any model of separation rank R over R, a line for each function.

    Args:
        spectra: name of a function -> its spectrum.
        path: image file; the extension gives the format.
        max_rank: the largest R drawn.
        title: above the plot.

    Raises:
        ValueError: there is nothing to draw, or `max_rank` is below 1.
    """
    if not spectra or max_rank < 1:
        raise ValueError(f"there are {len(spectra)} spectra up to rank {max_rank}; give at least one of each.")
    with draw_row(path, 7.5, 4.2) as (_, (axes,)):
        for number, (name, spectrum) in enumerate(spectra.items()):
            ranks = range(max_rank + 1)
            bounds = [spectrum.mse_bound(rank) for rank in ranks]
            # From the first rank that leaves nothing on, the line says no more.
            shown = next((rank for rank in ranks if bounds[rank] < 1e-9), max_rank) + 1
            style = line(number) | {"markersize": 4, "markevery": max(1, shown // 12)}
            axes.plot(ranks[:shown], bounds[:shown], label=name, **style)
        axes.set(xlabel="separation rank R of the model", ylabel="least mean square error / mean square")
        axes.set_xscale("symlog", base=2, linthresh=1)
        ticks = [0, *(2**k for k in range(max_rank.bit_length()))]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(-0.02, 1.02)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
        if title:
            axes.set_title(title, loc="left")
