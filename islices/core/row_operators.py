"""The operators of `islices.core.scatter` on the rows of a table, with their traits.

SPEC clause 15. May import: `islices.backend`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from islices.backend import Array, Backend


class RowOperator(NamedTuple):
    """An operator of `islices.scatter`. Contributions to a row act in order; `sign`, `extreme`, `last` and
    `fold` say how, one of them, on whole arrays."""

    name: str
    #: One contribution on an element, as compiled kernels inline it.
    element: Callable[[Any, Any], Any]
    #: Of the sum that it adds; 0: it adds none.
    sign: int = 0
    #: 1: the largest stays, -1: the smallest.
    extreme: int = 0
    #: The last contribution stays, whatever was before.
    last: bool = False
    #: One contribution on arrays, rounded, where each depends on those before.
    fold: Callable[[Backend, Array, Array], Array] | None = None
    #: Tables of integers have it.
    integers: bool = True


#: name -> operator
OPERATORS = {
    operator.name: operator
    for operator in (
        RowOperator("add", lambda x, y: x + y, sign=1),
        RowOperator("sub", lambda x, y: x - y, sign=-1),
        RowOperator("update", lambda x, y: y, last=True),
        RowOperator("min", lambda x, y: x if x <= y or x != x else y, extreme=-1),
        RowOperator("max", lambda x, y: x if x >= y or x != x else y, extreme=1),
        # a lambda a line: kernels find its source by that
        RowOperator(
            "mul",
            lambda x, y: x * y,
            fold=lambda B, x, y: B.round_product(x, y),
        ),
        RowOperator(
            "div",
            lambda x, y: x / y,
            fold=lambda B, x, y: B.div(x, y),
            integers=False,
        ),
    )
}
