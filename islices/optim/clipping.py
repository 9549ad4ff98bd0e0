"""Steps on gradients that are clipped together first: by one grouping and one factor, not by a copy of the gradients.

May import: `islices.norms.clip`, `islices.norms.clip_formulas`, `islices.norms.limits`, `islices.norms.norm`,
`islices.optim.step`, `islices.core.slices`, `islices.core.slots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from islices.core.slices import IndexedSlices
from islices.core.slots import deferred
from islices.norms.clip import clip_leaves
from islices.norms.clip_formulas import ClipFormula
from islices.norms.limits import Limit
from islices.norms.norm import Leaf, total_norm
from islices.optim.step import Work

__all__ = ["clip_works"]


def clip_works(works: Sequence[Work], limit: Limit, formula: ClipFormula) -> tuple[list[Work], Any]:
    """(steps on the gradients clipped by their global norm, the norm as `islices.global_norm` gives it); nothing is
    written, and what is to be multiplied is multiplied where the steps are taken."""
    leaves, grads = [], []
    for work in works:
        grads.append(work.grad)
        later = deferred(work.grad) if isinstance(work.grad, IndexedSlices) else work.grad
        leaves.append(Leaf(later, later))
    total = total_norm(grads, raw=formula.raw)
    clipped = clip_leaves(grads, leaves, total, limit, formula, "propagate")
    return [_on(work, grad) for work, grad in zip(works, clipped, strict=True)], total.given


def _on(work: Work, grad: Any) -> Work:
    """The step on another gradient: of slices that are computed when they are read the views stay true."""
    known = grad is work.grad or (isinstance(grad, IndexedSlices) and grad._slots is not None)
    return work._replace(grad=grad, views=work.views if known else None)
