"""What the operations share."""
