"""Check ids, look up rows and bags, and compute gradients with respect to tables, also per sample."""
