"""What clipping does where a norm is NaN or infinite. SPEC clause 10.

May import: `numpy`, `islices.core.arguments`, `islices.backend`, `islices.core.modes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, cast

import numpy as np

from islices.backend import Array, Backend
from islices.core import modes
from islices.core.arguments import check_name

#: What a NaN or infinite norm does.
Nonfinite: TypeAlias = Literal["propagate", "raise", "zero"]
NONFINITE = ("propagate", "raise", "zero")


def check_nonfinite(nonfinite: str, accepted: Sequence[str] = NONFINITE) -> Nonfinite:
    """Return nonfinite, or raise ValueError for a name that is not accepted."""
    if type(nonfinite) is str and nonfinite in accepted:
        return cast(Nonfinite, nonfinite)
    return cast(Nonfinite, check_name(nonfinite, accepted, "nonfinite"))


def refuse_nonfinite(E: Backend, norms: Array, nonfinite: str) -> None:
    """Raise FloatingPointError for a norm that is not finite, where nonfinite is "raise"."""
    if nonfinite != "raise":
        return
    if E is not modes.HOST:
        raise ValueError("nonfinite: got 'raise' under a trace; accepted there are 'propagate' and 'zero'")
    if not np.isfinite(norms).all():
        bad = float(norms[~np.isfinite(norms)][0])
        raise FloatingPointError(f"the norm of the gradient is {bad}; nonfinite= accepts 'propagate' and 'zero' too")
