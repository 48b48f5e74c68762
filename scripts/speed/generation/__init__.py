"""Timed generation: the parts of decoding.py, step_overhead.py, serving.py and assisted.py."""
