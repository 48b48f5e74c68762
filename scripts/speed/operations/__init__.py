"""Timed operations: the parts of benchmark_ops.py, benchmark_attention.py, check_kernels.py and tune.py."""
