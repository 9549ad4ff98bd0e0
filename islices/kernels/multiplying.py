"""Values times (or divided by) numbers: the second pass of clipping. SPEC clauses 6, 10 and 18.

May import: `numpy`, `islices.kernels.compiling`, `islices.kernels.halves`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numpy as np

from islices.kernels.compiling import INTEGER, Kernel, compile_kernel, scalar, vector
from islices.kernels.halves import FORMATS


def _scale(x: Any, c: Any, d: Any, out: Any, first: Any, last: Any) -> None:
    """out[k] = x[k] times or over c, then, if TWICE, times or over d, first <= k < last: each rounded once."""
    for k in range(np.uint64(first), np.uint64(last)):
        y = load(x[k])
        y = y / c if OVER else y * c
        if TWICE:
            y = y / d if THEN_OVER else y * d
        out[k] = store(y)


# what `_scale` leaves open
load = store = cast(Any, None)
OVER = TWICE = THEN_OVER = False


@cache
def scale_kernel(dtype: str, steps: tuple[str, ...]) -> Kernel:
    """The compiled `_scale` for values of a dtype and one or two steps, "mul" or "div"."""
    form = FORMATS[dtype]
    wide = scalar(form.wide)
    arguments = (vector(form.stored, readonly=True), wide, wide, vector(form.stored), INTEGER, INTEGER)
    return compile_kernel(
        _scale, arguments, load=form.load, store=form.store,
        OVER=steps[0] == "div", TWICE=len(steps) == 2, THEN_OVER=steps[-1] == "div",
    )  # fmt: skip
