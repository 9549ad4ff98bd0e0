"""Find the bags of ids.

Bags lie along the last axis, start at offsets, have lengths, or are rows of a ragged array.

SPEC clause 19. A layout assigns ids to bags; `islices.embedding.bags` reduces the bags.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from islices.backend import Array, Backend, Host, RaggedParts, Shape
from islices.core.registry import describe
from islices.core.shapes import same_shape, size_of
from islices.embedding.ids import along_axis, check_ids


class BagLayout(NamedTuple):
    """The assignment of ids to bags."""

    segments: Array  # the bag of each id, a flat int32 array; ascending except for ids in no bag, and tf.SparseTensors
    bags: Array  # an array with one entry per bag
    shape: Shape  # the shape in which the bags are arranged
    present: Array | None = None  # int32: 1 for each id in a bag, else 0; None if all ids are in bags


class Ragged(NamedTuple):
    """Ids in rows of different lengths: a framework's ragged array of integers, or a pair (values, lengths)."""

    values: Array  # (n, ...): the ids of all rows, one after the other
    layout: BagLayout  # the innermost rows as bags
    samples: Array  # the number of the outermost row of each value: int32, shape (n,)
    batch: Array  # an array with one entry per outermost row
    parts: RaggedParts | None  # None for a pair
    lengths: Array | None  # the lengths of a pair, else None

    def with_rows(self, rows: Array) -> Any:
        """Return looked-up rows (n, ..., *row_shape) in the form of the ids: a ragged array, or a pair (rows, lengths).

        Raise ValueError if the ids are of a kind that cannot contain rows, such as a tf.SparseTensor.
        """
        if self.parts is None:
            return rows, self.lengths
        if self.parts.with_rows is None:
            raise ValueError(
                f"combiner: got None with ids of a {self.parts.kind}, which has no form for rows; accepted is one of "
                "the combiners, or ids.values for the rows themselves"
            )
        return self.parts.with_rows(rows)

    def with_bags(self, bags: Array) -> Any:
        """Return bags (bags, *row_shape) in the structure of the ids without the innermost dimension.

        For a pair, the result is the array `bags`.
        """
        return bags if self.parts is None else self.parts.with_bags(bags)


# ---------------------------------------------------------------------- bags of one length
def bags_of_last_axis(B: Backend, ids: Array) -> BagLayout:
    """Return the bags along the last axis of ids (..., L)."""
    shape = B.shape(ids)
    if len(shape) < 2:
        raise ValueError(
            f"ids: got shape {shape} with a combiner; accepted are two dimensions or more (bags along the last one), "
            "or one dimension with offsets"
        )
    if len(shape) > 2 and None in shape[1:]:
        raise ValueError(f"ids: got shape {shape}; accepted for bags of three dimensions or more is a known shape")
    lead = shape[:-1]
    with B.scope():
        bags = ids if len(shape) == 2 else B.reshape(ids, (size_of(lead), shape[-1]))
    return BagLayout(along_axis(B, bags), bags, lead)


# ---------------------------------------------------------------------- bags at offsets, bags with lengths
def bags_at_offsets(B: Backend, offsets: Any, ids: Array) -> BagLayout:
    """Return the bags that start at offsets in ids (n,)."""
    offsets = check_ids(B, offsets, ids, "offsets")
    shape, n = B.shape(offsets), B.shape(ids)[0] if B.shape(ids) else None
    if len(shape) != 1:
        raise ValueError(f"offsets: got shape {shape}; accepted is one dimension (bags,)")
    if len(B.shape(ids)) != 1:
        raise ValueError(f"ids: got shape {B.shape(ids)} with offsets; accepted is one dimension (n,)")
    if not B.is_traced(offsets):
        _check_offsets(B.to_numpy(offsets), n)
    with B.scope():
        places = B.searchsorted(offsets, B.astype(B.arange(ids), B.dtype(offsets)), right=True)
        segments = B.astype(places, "int32") - B.astype(B.equal(ids, ids), "int32")
    return BagLayout(segments, offsets, shape)


def _check_offsets(starts: Host, n: int | None) -> None:
    if (len(starts) and starts[0] != 0) or (not len(starts) and n):
        raise ValueError(f"offsets: got {starts[:1].tolist()} first; accepted is 0, where the first bag starts")
    if (starts[1:] < starts[:-1]).any():
        at = int(np.argmax(starts[1:] < starts[:-1])) + 1
        raise ValueError(
            f"offsets: got {int(starts[at])} at position {at} after {int(starts[at - 1])}; accepted is ascending"
        )
    if len(starts) and n is not None and starts[-1] > n:
        raise ValueError(f"offsets: got {int(starts[-1])} last, with {n} ids; accepted is at most their number")


def _bags_at_ends(B: Backend, ends: Array, ids: Array, *, full: bool) -> BagLayout:
    """Return the bags of ids (n,) that end at `ends`; the first bag starts at 0.

    If `full` is True, the last bag ends with the last id, so that each id is in a bag.
    """
    bags = B.shape(ends)
    with B.scope():
        segments = B.searchsorted(ends, B.astype(B.arange(ids), B.dtype(ends)), right=True)
        segments = B.astype(segments, "int32")
        if full:
            return BagLayout(segments, ends, bags)
        if bags[0] is None:
            inside = B.isin(segments, B.astype(B.arange(ends), "int32"))
        else:
            inside = B.in_range(segments, bags[0])
        present = B.astype(inside, "int32")
        segments = B.where(B.equal(present, 0), B.zeros_like(segments), segments)
    return BagLayout(segments, ends, bags, present)


def _bags_of_lengths(B: Backend, lengths: Array, values: Array) -> BagLayout:
    """Return the bags with these lengths, one after the other from the start of values (n,)."""
    n, shape = B.shape(values)[0], B.shape(lengths)
    if len(shape) != 1:
        raise ValueError(f"ids: got lengths of shape {shape}; accepted is one dimension (bags,)")
    if shape[0] == 0 and n:
        raise ValueError(f"ids: got {n} values and no lengths; accepted is at least one")
    if B.is_traced(lengths):
        with B.scope():
            return _bags_at_ends(B, B.running_sum(lengths), values, full=False)
    numbers = B.to_numpy(lengths)
    if (numbers < 0).any():
        at = int(np.argmax(numbers < 0))
        raise ValueError(f"ids: got length {int(numbers[at])} at position {at}; accepted are lengths >= 0")
    total = sum(numbers.tolist())  # a sum of Python ints, which does not overflow
    if n is not None and total > n:
        raise ValueError(f"ids: got lengths that add up to {total} with {n} values; accepted is at most their number")
    ends = B.asarray(np.cumsum(numbers, dtype=numbers.dtype), values)
    return _bags_at_ends(B, ends, values, full=total == n)


# ---------------------------------------------------------------------- ragged
def accept_ragged(B: Backend, ids: Any, like: Array) -> Ragged | None:
    """Return a `Ragged` for ragged ids of the backend or a pair (values, lengths), or None for anything else."""
    if isinstance(ids, tuple) and len(ids) == 2:
        values, lengths = (check_ids(B, x, like) for x in ids)
        if len(B.shape(values)) != 1:
            shape = B.shape(values)
            raise ValueError(f"ids: got values of shape {shape} with lengths; accepted is one dimension (n,)")
        layout = _bags_of_lengths(B, lengths, values)
        return Ragged(values, layout, layout.segments, layout.bags, None, lengths)
    parts = B.take_ragged(ids, "ids")
    if parts is None:
        return None
    values = check_ids(B, parts.values, like)
    with B.scope():
        segments, samples = (B.astype(x, "int32") for x in (parts.segments, parts.samples))
    layout = BagLayout(segments, parts.bags, B.shape(parts.bags))
    return Ragged(values, layout, samples, parts.batch, parts, None)


def values_of(B: Backend, x: Any, ragged: Ragged, argument: str) -> Any:
    """Return the values of weights, of a mask or of an upstream gradient for ragged ids.

    None and arrays are returned unchanged. Raise TypeError for any other object that is not ragged, and ValueError for
    a ragged object whose kind or row lengths differ from those of the ids.
    """
    if x is None or B.is_array(x) or isinstance(x, np.ndarray):
        return x
    parts = B.take_ragged(x, argument)
    if parts is None:
        raise TypeError(
            f"{argument}: got {describe(x)} beside ragged ids; accepted is the ids' own form, or an array of the shape "
            f"of their values, {B.shape(ragged.values)}"
        )
    if ragged.parts is None or not _same_structure(B, parts, ragged.parts):
        accepted = "an array" if ragged.parts is None else f"a {ragged.parts.kind}"
        raise ValueError(f"{argument}: got a {parts.kind} unlike the ids; accepted is {accepted} with the ids' rows")
    return parts.values


def _same_structure(B: Backend, one: RaggedParts, other: RaggedParts) -> bool:
    """Return True if two ragged arrays are of one kind and have the same row lengths; traced lengths of one shape count
    as equal."""
    if one.kind != other.kind or len(one.structure) != len(other.structure):
        return False
    for a, b in zip(one.structure, other.structure, strict=True):
        if a is b:
            continue
        if not same_shape(B.shape(a), B.shape(b)):
            return False
        if not (B.is_traced(a) or B.is_traced(b)) and not np.array_equal(B.to_numpy(a), B.to_numpy(b)):
            return False
    return True
