"""Small classifiers of images and their spectra, for vision_spectra.py and permutation.py."""
