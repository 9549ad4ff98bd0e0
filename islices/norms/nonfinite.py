"""The option `nonfinite` of clipping functions, which decides the effect of a NaN or infinite norm. SPEC clause 10.

`refuse_nonfinite` applies "raise". For "zero", functions that scale by arrays use the mask of `finite_norms`. If one
known norm scales the values, `islices.norms.clip` needs no mask. May import: `numpy`, the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, cast

import numpy as np

from islices.backend import Array, Backend
from islices.core import modes
from islices.core.arguments import check_name

#: the effect of a NaN or infinite norm
Nonfinite: TypeAlias = Literal["propagate", "raise", "zero"]
NONFINITE = ("propagate", "raise", "zero")


def check_nonfinite(nonfinite: str, accepted: Sequence[str] = NONFINITE) -> Nonfinite:
    """Return `nonfinite` if it is one of the accepted names, else raise ValueError."""
    if type(nonfinite) is str and nonfinite in accepted:
        return cast(Nonfinite, nonfinite)
    return cast(Nonfinite, check_name(nonfinite, accepted, "nonfinite"))


def refuse_nonfinite(E: Backend, norms: Array, nonfinite: str) -> None:
    """Raise FloatingPointError if `nonfinite` is "raise" and a norm is NaN or infinite.

    If `nonfinite` is "raise" and the norms are traced (E is not the host's backend), raise ValueError.
    """
    if nonfinite != "raise":
        return
    if E is not modes.HOST:
        raise ValueError("nonfinite: got 'raise' under a trace; accepted there are 'propagate' and 'zero'")
    if not np.isfinite(norms).all():
        bad = float(norms[~np.isfinite(norms)][0])
        raise FloatingPointError(f"the norm of the gradient is {bad}; nonfinite= accepts 'propagate' and 'zero' too")


def finite_norms(E: Backend, norms: Array, nonfinite: str) -> Array | None:
    """Return a mask with False for norms whose values become zeros. Return None unless `nonfinite` is "zero"."""
    return E.isfinite(norms) if nonfinite == "zero" else None
