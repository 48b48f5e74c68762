"""The column operation of iterated piecewise affine networks."""
