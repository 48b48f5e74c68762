"""The tasks of the Long Range Arena, as trainings and trade-offs know them."""

NUM_LABELS = {"listops": 10, "text": 2, "retrieval": 2, "image": 10, "pathfinder": 2, "path-x": 2}
"""Task -> its classes."""

IMAGES = ("image", "pathfinder", "path-x")
"""Tasks whose inputs are pictures."""
