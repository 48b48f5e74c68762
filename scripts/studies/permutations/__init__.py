"""What another order of its tokens costs a trained model: the tasks of permutation.py."""
