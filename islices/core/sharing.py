"""Check that the arrays which a call writes share no memory with each other or with the call's input. SPEC clause 16.

The arrays' memory bounds are sorted and compared first. If bounds overlap, as for columns of one buffer, NumPy compares
the elements' addresses.
May import: `numpy`, `islices.backend`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from islices.backend import Array, Backend

#: the limit of NumPy's work on two interleaved arrays; arrays that need more work count as shared
MOST_WORK: Any = 10**6  # NumPy's type annotation allows only two of the numbers that NumPy accepts


#: (the backend of an array, the array, True if the call writes it, its name in messages)
Part = tuple[Backend, Array, bool, str]
#: (the first byte, the byte after the last, the number of the part, the part). If the bounds are unknown, the array's
#: id stands for the first byte, and the next number for the end.
_Span = tuple[int, int, int, Part]


def check_apart(parts: Iterable[Part]) -> None:
    """Raise ValueError if a written array shares an element with another array, or if this cannot be decided.

    An array with unknown memory bounds counts as sharing memory only with itself.
    """
    parts = list(parts)
    if _have_owners(parts):
        return None
    spans: list[_Span] = []
    for number, part in enumerate(parts):
        start, stop = part[0].memory_span(part[1]) or (id(part[1]), id(part[1]) + 1)
        if start != stop:  # an empty array shares no memory
            spans.append((start, stop, number, part))
    spans.sort()
    end = 0
    for span in spans:
        if span[0] < end:
            return _check_overlapping(spans)
        end = span[1]


def _have_owners(parts: Sequence[Part]) -> bool:
    """Return True if all arrays are NumPy arrays and the memory of each belongs to a different array."""
    owners = set()
    for _, x, _, _ in parts:
        if type(x) is not np.ndarray:
            return False
        base = x.base
        while type(base) is np.ndarray:
            x, base = base, base.base
        if base is not None or not x.flags.owndata:
            return False
        owners.add(id(x))
    return len(owners) == len(parts)


def _check_overlapping(spans: Iterable[_Span]) -> None:
    """Raise ValueError in the cases of `check_apart`, given the arrays' spans in ascending order."""
    written: list[_Span] = []  # the written spans that end after the current start
    read: dict[int, _Span] = {}  # keyed by identity, since one gradient may belong to many tables
    for span in spans:
        start, _, number, part = span
        written = [x for x in written if x[1] > start]
        read = {key: x for key, x in read.items() if x[1] > start}
        for other in (*written, *read.values()) if part[2] else written:
            if other[0] == start or _share(part, other[3]):
                first, second = (other, span) if other[2] < number else (span, other)
                raise ValueError(
                    f"{second[3][3]}: got memory of {first[3][3]}; accepted are arrays of their own (a table of "
                    "several uses is given once, with the sum of its gradients)"
                )
        if part[2]:
            written.append(span)
        else:
            read[id(part[1])] = span


def share_memory(B: Backend, a: Array, b: Array) -> bool:
    """Return True if two arrays of a backend have an element in common, or if this cannot be decided.

    An array with unknown memory bounds counts as sharing memory only with itself.
    """
    first, second = sorted(B.memory_span(x) or (id(x), id(x) + 1) for x in (a, b))
    if first[0] == first[1] or second[0] == second[1] or first[1] <= second[0]:
        return False
    return first[0] == second[0] or _share((B, a), (B, b))


def _share(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return True if two arrays with overlapping bounds have an element in common, or if this cannot be decided.

    The first items of `a` and `b` are the backend and the array.
    """
    views = a[0].host_view(a[1]), b[0].host_view(b[1])
    if views[0] is None or views[1] is None:
        return True
    try:
        return bool(np.shares_memory(views[0], views[1], max_work=MOST_WORK))
    except np.exceptions.TooHardError:
        return True
