"""The operator of SKI in other forms: its parts alone, causal, and products with its interpolation matrix."""
