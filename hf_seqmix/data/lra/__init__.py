"""Tasks of the Long Range Arena."""
