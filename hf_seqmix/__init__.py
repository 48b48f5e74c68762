"""Sequence mixers other than softmax attention, as ordinary Hugging Face models."""

from ._version import __version__


__all__ = ["__version__"]
