"""A session on a machine with a GPU: the parts of gpu_session.py."""
