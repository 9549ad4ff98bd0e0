"""Embeddings: ids and bags, lookups, gradients with respect to tables, gradients per sample."""
