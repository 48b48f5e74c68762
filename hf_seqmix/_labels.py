"""The label of what is not predicted."""

__all__ = ["IGNORED_LABEL"]

IGNORED_LABEL = -100
"""What torch's cross entropy leaves out by default."""
