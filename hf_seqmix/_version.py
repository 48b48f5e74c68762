"""Version of the package, alone in its file so that building it imports nothing."""

__version__ = "0.3.0.dev0"
