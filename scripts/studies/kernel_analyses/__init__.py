"""Learned kernels, and theorems on kernels: the parts of analyze_kernels.py."""
