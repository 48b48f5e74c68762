"""Triton kernels of the products of a degree."""
