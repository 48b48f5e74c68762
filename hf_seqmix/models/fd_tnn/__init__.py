"""FD-TNN."""
