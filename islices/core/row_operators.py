"""The operators of `islices.core.scatter` on the rows of a table, with their traits.

SPEC clause 15. May import: `islices.backend`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from islices.backend import Array, Backend


class RowOperator(NamedTuple):
    """An operator of `islices.scatter`: contributions to a row act in order.

    One of `sign`, `extreme`, `last` and `fold` gives its implementation on whole arrays.
    """

    name: str
    #: applies one contribution to an element; compiled kernels inline it
    element: Callable[[Any, Any], Any]
    #: the sign of the sum that it adds; 0 if it adds none
    sign: int = 0
    #: 1: keeps the largest, -1: keeps the smallest
    extreme: int = 0
    #: True if the last contribution replaces all before it
    last: bool = False
    #: applies one contribution to arrays, rounded, if each depends on those before
    fold: Callable[[Backend, Array, Array], Array] | None = None
    #: True if tables of integers support it
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
        # one lambda per line: kernels find its source by that
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
