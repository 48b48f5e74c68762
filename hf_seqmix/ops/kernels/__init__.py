"""Kernels in Triton, and one in C. Nothing imports them but `ops/backend.py`, which does without where Triton is missing."""
