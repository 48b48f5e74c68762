"""Configurations, backbone, heads, and the families made of them."""
