"""Checkpoints fine-tuned on the tasks of GLUE."""
