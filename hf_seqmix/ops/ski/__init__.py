"""Structured kernel interpolation."""
