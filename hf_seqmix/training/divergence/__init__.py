"""A loss that explodes: how that is seen, what is done about it, and what the user is told."""
