"""Kernels with decaying modes for tails: the parts of distilled_decoding.py."""
