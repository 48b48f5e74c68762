"""Generated tasks that separate mixers."""
