"""A second oracle, which tests the first: `NAIVE` computes what each operation of the golden cases gives, its own way.

Its modules import NumPy, plain data and one another, nothing of the first (`islices.conformance.oracle`).
"""

from naive import embedding, gradients, operations, optim, unitwise

__all__ = ["NAIVE"]

NAIVE = operations.NAIVE | embedding.NAIVE | gradients.NAIVE | optim.NAIVE | unitwise.NAIVE
