"""Triton kernels of the short convolution."""
