"""Polynomial-degree transformer."""
