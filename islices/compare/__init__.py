"""Comparing gradients and tables, and saying why they differ."""
