"""Language models of every family, scored far beyond their training length."""
