"""Limit the norms of a table's rows, as the argument max_norm of torch's lookups does.

SPEC clause 12.
"""

from __future__ import annotations

from typing import TypeVar

from islices.backend import Array
from islices.core.scatter import distinct_rows, write_rows
from islices.embedding.ids import check_ids, check_range, flat_ids
from islices.embedding.lookup import lookup_source
from islices.norms.clip import clip_by_row_norm
from islices.norms.limits import check_max_norm
from islices.norms.nonfinite import Nonfinite, check_nonfinite

T = TypeVar("T")


def renorm_rows(table: T, ids: Array, max_norm: float, *, nonfinite: Nonfinite = "propagate") -> T:
    """Scale each looked-up row of a table down to a norm of at most max_norm.

    Parameters
    ----------
    table : Table, or float array of shape (rows, *row_shape)
    ids : int32 or int64 array of any shape
        The rows to scale. A row is scaled once, however often it occurs in ids.
    max_norm : float
    nonfinite : {"propagate", "raise", "zero"}
        The effect of a NaN or infinite norm: "propagate" makes its row NaN, "raise" raises FloatingPointError, and
        "zero" makes the row zero.

    Returns
    -------
    same type as table
        The table with scaled rows; use the result instead of the argument. JAX arrays and tf.Tensors cannot change, so
        the result is a copy if a row may change. All other tables change in place, unless the call raises an error. No
        gradient is recorded.

    Raises
    ------
    TypeError, ValueError, IndexError
        dtypes, ids or max_norm do not fit, nonfinite is unknown, the gradient of the table is being taken, or the array
        cannot be changed in place.
    FloatingPointError
        nonfinite is "raise", and the norm of a row is NaN or infinite. In traced code, "raise" raises ValueError
        instead.

    Notes
    -----
    The factor is max_norm / norm, as in SPEC clause 10; torch's lookups add 1e-7 to the norm. SPEC clause 12.

    Examples
    --------
    >>> import numpy as np
    >>> table = np.array([[3.0, 4.0], [6.0, 8.0], [0.0, 1.0]])
    >>> renorm_rows(table, np.array([0, 2, 0]), 1.0).round(3).tolist()
    [[0.6, 0.8], [6.0, 8.0], [0.0, 1.0]]
    """
    B, source, _ = lookup_source(table, None)
    if source.watched:
        raise TypeError("table: got one whose gradient is being taken; accepted is renorm_rows before value_and_grad")
    limit = check_max_norm(max_norm)
    nonfinite = check_nonfinite(nonfinite)
    weights = source.weights
    count = B.shape(weights)[0]
    ids = check_ids(B, ids, weights)
    check_range(B, ids, count)
    distinct, _ = distinct_rows(B, flat_ids(B, ids), count)
    with B.scope():
        rows = B.stop_gradient(B.read_rows(weights, distinct))
    clipped = clip_by_row_norm(rows, limit, nonfinite=nonfinite)
    if clipped is rows:
        return table
    B.in_place(weights)  # raises ValueError for an array that must not change
    return write_rows(B, table, distinct, clipped)
