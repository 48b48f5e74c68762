"""Classifiers of ListOps on longer expressions, and by operator."""
