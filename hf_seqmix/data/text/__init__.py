"""Corpora of text."""
