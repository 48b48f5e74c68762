"""Hybrids of several mixers, and the attention control."""
