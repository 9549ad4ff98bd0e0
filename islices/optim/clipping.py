"""Steps on gradients that are clipped together first: by one grouping and one factor, not by a copy of the gradients.

May import: `islices.norms.clip`, `islices.norms.clip_formulas`, `islices.norms.limits`, `islices.norms.norm`,
`islices.optim.row_steps`, `islices.core.slices`, `islices.core.slots`.
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
from islices.optim.row_steps import Request


def clip_requests(requests: Sequence[Request], limit: Limit, formula: ClipFormula) -> tuple[list[Request], Any]:
    """(steps on the gradients clipped by their global norm, the norm as `islices.global_norm` gives it); nothing is
    written, and what is to be multiplied is multiplied where the steps are taken."""
    leaves, grads = [], []
    for request in requests:
        grads.append(request.grad)
        later = deferred(request.grad) if isinstance(request.grad, IndexedSlices) else request.grad
        leaves.append(Leaf(later, later))
    total = total_norm(grads, raw=formula.raw)
    clipped = clip_leaves(grads, leaves, total, limit, formula, "propagate")
    return [_on(request, grad) for request, grad in zip(requests, clipped, strict=True)], total.given


def _on(request: Request, grad: Any) -> Request:
    """The step on another gradient: of slices that are computed when they are read the views stay true."""
    known = grad is request.grad or (isinstance(grad, IndexedSlices) and grad._slots is not None)
    return request._replace(grad=grad, look=request.look if known else None)
