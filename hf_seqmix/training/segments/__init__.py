"""Texts that go on from block to block: states and losses that one update hands to the next, and streams."""
