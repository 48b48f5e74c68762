"""Iterated piecewise affine models."""
