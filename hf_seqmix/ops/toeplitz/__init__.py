"""Products with Toeplitz matrices."""
