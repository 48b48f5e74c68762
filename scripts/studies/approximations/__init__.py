"""Which relationships between sequences models learn: the parts of approximation.py."""
