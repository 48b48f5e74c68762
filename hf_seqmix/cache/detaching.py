"""Caches from one segment of a text to the next in training: truncated backpropagation through time."""

from typing import Any

from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

__all__ = ["can_detach", "detach_cache"]

_OF_THE_LIBRARY = (DynamicLayer, DynamicSlidingWindowLayer)


def can_detach(layer: Any) -> bool:
    """Return whether `detach_cache` knows all that a layer of a cache holds: layers of this package, or attention."""
    # By what it does, not by its class, of which exported model code may have brought a copy.
    return hasattr(layer, "detach") or type(layer) in _OF_THE_LIBRARY


def detach_cache(past_key_values: Any) -> None:
    """Cut what a growing cache holds from the graph, in place, so that the next segment of a text may continue it.

    A segment then reads h_0 = stop_gradient(h_T) of the segment before it: values pass the border, gradients do not.
    What layers keep of the weights, such as taps of kernels, is let go, since an optimizer changes weights between
    segments. Source: state passing and truncated backpropagation through time in Buitrago, Gu 2025 (arXiv 2507.02782).

    Args:
        past_key_values: growing cache of the library, whose layers are of this package, or of attention.

    Raises:
        ValueError: for a layer of another kind, naming its number; nothing is changed then.
    """
    layers = past_key_values.layers
    for index, layer in enumerate(layers):
        if not can_detach(layer):
            raise ValueError(
                f"layer {index} of the cache is {type(layer).__name__}, and what that holds cannot be cut from its "
                "graph: build the cache with DynamicCache(config=model.config) for a model of this package, or for "
                "one of attention."
            )
    for layer in layers:
        if hasattr(layer, "detach"):
            layer.detach()
        elif layer.is_initialized:
            layer.keys, layer.values = layer.keys.detach(), layer.values.detach()
