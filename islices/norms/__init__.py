"""Exact norms of gradients, their derivatives, and clipping by them. SPEC clauses 7 to 11."""
