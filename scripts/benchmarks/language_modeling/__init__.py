"""Saved language models, causal and masked, on held-out text."""
