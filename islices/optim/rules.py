"""Weight decay, ahead of any rule of an optimizer (islices/optim/records/), for one element of a row.

A rule takes the gradient ``g``, where it asks for it the square ``q`` (of the element, or the mean over the row), the
weight ``w``, then its state and its numbers by name, and returns the new weight and the new state, in the order of its
parameters. Operators are those of `islices.optim.operators`; ``+`` and ``-`` are the elements' own. Every operation
rounds once, in the order written: the order is the specification (SPEC clause 16).
"""

from __future__ import annotations

from typing import Any

from islices.optim.operators import mul

__all__ = ["coupled", "decoupled"]


def coupled(g: Any, w: Any, decay: Any) -> Any:
    """The gradient with that of the penalty decay / 2 * w^2."""
    return g + mul(decay, w)


def decoupled(w: Any, keep: Any) -> Any:
    """The weight shrunk before the step; keep is 1 - lr * weight_decay. Loshchilov and Hutter 2019."""
    return mul(keep, w)
