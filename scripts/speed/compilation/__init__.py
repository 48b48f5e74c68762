"""Kernels compiled for GPUs that need not be there: the parts of compile_kernels.py."""
