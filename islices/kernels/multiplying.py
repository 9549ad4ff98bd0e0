"""Multiply and divide values by numbers, for example in the second pass of clipping. SPEC clauses 6, 10 and 18.

May import: `numpy`, `islices.kernels.compiling`, `islices.kernels.halves`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from islices.kernels.compiling import INTEGER, Kernel, compile_kernel, scalar, vector
from islices.kernels.halves import FORMATS


@cache
def scale_kernel(dtype: str, steps: tuple[str, ...]) -> Kernel:
    """Return the kernel that applies one or two steps, each "mul" or "div", to values of a dtype."""
    form, wide = FORMATS[dtype], scalar(FORMATS[dtype].wide)
    load, store = form.load, form.store
    over, twice, then_over = steps[0] == "div", len(steps) == 2, steps[-1] == "div"

    def scale(x, c, d, out, first, last):
        """Set out[k], for first <= k < last, to x[k] multiplied or divided by c, then by d if there are two steps.

        Each step rounds once in the dtype of computations, and 16-bit results are rounded again when they are stored.
        """
        for k in range(np.uint64(first), np.uint64(last)):
            y = load(x[k])
            y = y / c if over else y * c
            if twice:
                y = y / d if then_over else y * d
            out[k] = store(y)

    arguments = (vector(form.stored, readonly=True), wide, wide, vector(form.stored), INTEGER, INTEGER)
    return compile_kernel(scale, arguments)
