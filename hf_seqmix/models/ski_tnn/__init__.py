"""SKI-TNN."""
