"""Toeplitz neural network."""
