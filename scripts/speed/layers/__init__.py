"""Timed layers and those that they are timed against: the parts of benchmark_models.py."""
