"""Triton kernels of the Toeplitz product."""
