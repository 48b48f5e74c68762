"""What the degree of a layer is worth: the parts of degree_experiment.py."""
