"""Check that gradients or tables are equal, in tests of programs and libraries that use islices. SPEC clause 22."""

from __future__ import annotations

from typing import Any

from islices.porting.compare import diff

__all__ = ["assert_equal"]


def assert_equal(a: Any, b: Any, **context: Any) -> None:
    """Raise AssertionError unless two gradients, tables or trees of them are exactly equal.

    Parameters
    ----------
    a, b : sparse gradient, dense array, Table, None, or a list, tuple or dict of them
        a and b may belong to different frameworks. Sparse gradients are coalesced before they are compared, so order
        and duplicates of slices do not matter. If only one of two sparse gradients stores a row of zeros, this counts
        as a difference.
    **context
        Further arguments of `islices.diff`; for example, ``before=``, ``max_norm=`` and ``padding_idx=`` help to find
        the cause of a difference.

    Raises
    ------
    AssertionError
        a and b differ. The message is the report of `islices.diff`, which shows the differences, and their causes if
        `islices.diff` finds any.
    TypeError, ValueError, IndexError
        See `islices.diff`.

    Notes
    -----
    NaN equals any NaN, and -0 equals +0. SPEC clause 22.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> s = IndexedSlices(np.ones((2, 1)), np.array([1, 1]), (3, 1))
    >>> assert_equal(s, np.array([[0.0], [2.0], [0.0]]))
    """
    __tracebackhide__ = True
    found = diff(a, b, **context)
    if not found.equal:
        raise AssertionError(str(found))
