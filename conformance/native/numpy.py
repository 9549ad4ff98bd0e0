"""NumPy's own calls: what a NumPy user writes by hand. NumPy has no embedding layer, so the gradient is np.add.at's."""

from __future__ import annotations

__all__ = ["block", "embedding_gradient", "own_calls"]
