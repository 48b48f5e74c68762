"""What each layer of a model does with a text: weights, spectra, ranks and memory, as numbers, plots and a page."""

from .layers import LayerView, look_inside
from .memory import Memory, memory_of

__all__ = ["LayerView", "Memory", "look_inside", "memory_of"]
