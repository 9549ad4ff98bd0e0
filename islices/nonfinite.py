"""What clipping does where a norm is NaN or infinite. SPEC clause 10.

May import: `numpy`, `islices.arguments`, `islices.backend`, `islices.modes`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from islices import modes
from islices.arguments import check_name
from islices.backend import Array, Backend

__all__ = ["Nonfinite", "check_nonfinite", "refuse_nonfinite"]

#: What a NaN or infinite norm does.
Nonfinite: TypeAlias = Literal["propagate", "raise", "skip"]
NONFINITE = ("propagate", "raise", "skip")


def check_nonfinite(nonfinite: str) -> None:
    """Raise ValueError for a name that means nothing."""
    if type(nonfinite) is not str or nonfinite not in NONFINITE:
        check_name(nonfinite, NONFINITE, "nonfinite")


def refuse_nonfinite(E: Backend, norms: Array, nonfinite: str) -> None:
    """Raise FloatingPointError for a norm that is not finite, where nonfinite is "raise"."""
    if nonfinite != "raise":
        return
    if E is not modes.HOST:
        raise ValueError("nonfinite: got 'raise' under a trace; accepted there are 'propagate' and 'skip'")
    if not np.isfinite(norms).all():
        bad = float(norms[~np.isfinite(norms)][0])
        raise FloatingPointError(f"the norm of the gradient is {bad}; nonfinite= accepts 'propagate' and 'skip' too")
