"""Triton kernels of structured kernel interpolation."""
