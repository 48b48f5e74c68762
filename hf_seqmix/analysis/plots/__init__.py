"""Pictures of runs, of results and of data, in one style, written as image files; no display is needed."""

from .runs import plot_context_lengths, plot_loss, plot_pathfinder_examples

__all__ = ["plot_context_lengths", "plot_loss", "plot_pathfinder_examples"]
