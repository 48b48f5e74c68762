"""The sub-commands of run_benchmarks.py, a folder each, and what they share."""
