"""The ablations of Moreno, Mei, Walters 2023 (arXiv 2305.09028): the parts of ablate_toeplitz.py."""
