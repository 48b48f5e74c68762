"""What options of training and of a model are worth in equal seconds."""
