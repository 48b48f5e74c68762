"""Run folders and the checkpoints in them: what a killed run leaves, and what the next one goes on from."""
