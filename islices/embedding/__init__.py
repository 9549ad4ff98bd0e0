"""Embeddings: checks of ids, bags, lookups, gradients with respect to tables, and gradients per sample."""
