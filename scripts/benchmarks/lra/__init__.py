"""The Long Range Arena: data, sizes, pretraining, and runs of every family."""
