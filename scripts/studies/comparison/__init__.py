"""Models of equal size, trained on equal data: the parts of compare_mixers.py and compare_lengths.py."""
