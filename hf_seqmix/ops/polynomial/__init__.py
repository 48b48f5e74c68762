"""Products of a degree."""
