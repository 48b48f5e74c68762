"""What the three Toeplitz families share."""
