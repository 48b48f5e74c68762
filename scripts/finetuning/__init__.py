"""The parts of finetune.py."""
