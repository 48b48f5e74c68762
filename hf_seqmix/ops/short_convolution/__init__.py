"""Convolutions of each channel with a few taps of its own."""
