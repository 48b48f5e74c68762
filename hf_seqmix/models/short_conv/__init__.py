"""A short convolution as the only mixing: the control of models that have one before each mixer."""
