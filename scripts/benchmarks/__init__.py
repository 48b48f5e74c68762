"""The sub-commands of run_benchmarks.py."""
