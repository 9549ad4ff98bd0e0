"""The operators that `islices.core.scatter` applies to the rows of a table.

SPEC clause 15. May import: `islices.backend`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from islices.backend import Array, Backend


class RowOperator(NamedTuple):
    """An operator with which `islices.scatter` applies contributions (values of slices) to a row, in order.

    Exactly one of `sign`, `extreme`, `last` and `fold` is set and defines the implementation on whole arrays.
    """

    name: str
    #: applies one contribution to an element; compiled kernels inline it
    element: Callable[[Any, Any], Any]
    #: 1 if the operator adds the sum of the contributions, -1 if it subtracts the sum, else 0
    sign: int = 0
    #: 1 if the operator keeps the largest value, -1 if it keeps the smallest, else 0
    extreme: int = 0
    #: True if the last contribution replaces all before it
    last: bool = False
    #: applies one contribution per row to an array of rows, and rounds; only for operators that must apply
    #: contributions one by one
    fold: Callable[[Backend, Array, Array], Array] | None = None
    #: True if the operator supports tables of integers
    integers: bool = True


#: the name of an operator -> the operator
OPERATORS = {
    operator.name: operator
    for operator in (
        RowOperator("add", lambda x, y: x + y, sign=1),
        RowOperator("sub", lambda x, y: x - y, sign=-1),
        RowOperator("update", lambda x, y: y, last=True),
        RowOperator("min", lambda x, y: x if x <= y or x != x else y, extreme=-1),
        RowOperator("max", lambda x, y: x if x >= y or x != x else y, extreme=1),
        # at most one lambda per line, because kernels find a lambda's source by its line
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
