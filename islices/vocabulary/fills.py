"""What rows that the old table had not begin with: numbers, the table's mean, rows that are given, random ones.

May import: `numpy`, the core below `islices.vocabulary`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from islices import modes
from islices.arguments import check_name, is_real, show
from islices.backend import FLOATS, INTEGERS
from islices.linear import as_float, wide_dtype
from islices.optim.optimizer import Optimizer
from islices.registry import describe, find_backend

__all__ = ["Fill", "Random", "Rows", "cast", "fill_of_state", "mean_of_rows", "normal", "rows_of", "uniform"]

Host = np.ndarray[Any, Any]
#: What a user may give for the rows that are new.
Fill = Any
#: Rows first to stop - 1 of those that are new, 16-bit tables' in float32; asked for in order, from 0 on.
Rows = Callable[[int, int], Host]
#: What `fill` may be, for messages.
ACCEPTED = "a number, 'mean', an array, a function of a shape, or vocabulary.normal(...) or uniform(...)"


@dataclass(frozen=True)
class Random:
    """Random rows from a seed: made by `normal` and `uniform`.

    ``Random(...)(shape)`` makes them all. Each table begins with the seed anew.
    """

    kind: Literal["normal", "uniform"]
    #: standard deviation, or the largest absolute value
    scale: float
    seed: int

    def __post_init__(self) -> None:
        check_name(self.kind, ("normal", "uniform"), "kind")
        if not is_real(self.scale) or not 0 <= float(self.scale) < np.inf:
            raise ValueError(f"scale: got {show(self.scale)}; accepted is a finite number >= 0")
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer)) or self.seed < 0:
            raise ValueError(f"seed: got {show(self.seed)}; accepted is an int >= 0")

    def __call__(self, shape: tuple[int, ...]) -> Host:
        return self._drawn(shape[1:])(0, shape[0])

    def _drawn(self, row_shape: tuple[int, ...]) -> Rows:
        """The rows one piece after the other."""
        generator: np.random.Generator

        def rows(first: int, stop: int) -> Host:
            nonlocal generator
            if first == 0:
                generator = np.random.Generator(np.random.PCG64(int(self.seed)))
            shape = (stop - first, *row_shape)
            if self.kind == "normal":
                return generator.standard_normal(shape) * float(self.scale)
            return (generator.random(shape) * 2 - 1) * float(self.scale)

        return rows


def normal(stddev: float, *, seed: int) -> Random:
    """New rows from a normal distribution of mean 0.

    Parameters
    ----------
    stddev : float
    seed : int
        The same seed draws the same rows, in memory and in files, in every framework.

    Returns
    -------
    Random
        For ``fill=``. SPEC clause 27.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import vocabulary
    >>> vocabulary.grow(np.zeros((1, 2)), 2, fill=vocabulary.normal(0.02, seed=1)).shape
    (2, 2)
    """
    return Random("normal", stddev, seed)


def uniform(limit: float, *, seed: int) -> Random:
    """New rows from the uniform distribution from -limit to limit.

    Parameters
    ----------
    limit : float
    seed : int
        As for `normal`.

    Returns
    -------
    Random
        For ``fill=``. SPEC clause 27.

    Examples
    --------
    >>> uniform(0.05, seed=1)((2, 2)).shape
    (2, 2)
    """
    return Random("uniform", limit, seed)


def mean_of_rows(pieces: Iterable[Host], row_shape: tuple[int, ...], padding: int | None) -> Host:
    """The mean, (1, *row_shape) of float64, of a table whose rows come a piece at a time: added up in order, without
    the padding's row; zeros where there are no rows."""
    total: Host = np.zeros((1, *row_shape))
    first = count = 0
    for piece in pieces:
        rows = cast(piece, "float64")
        if padding is not None and first <= padding < first + len(piece):
            rows = np.delete(rows, padding - first, axis=0)
        first += len(piece)
        count += len(rows)
        together = np.concatenate([total, rows])
        total = modes.run("segment_sum", modes.HOST, (together, np.zeros(len(together), np.int32)), count=1)
    return total / max(1, count)


def rows_of(
    fill: Fill, argument: str, count: int, row_shape: tuple[int, ...], dtype: str, mean: Callable[[], Host]
) -> Rows:
    """How to make the new rows, count of them, of one table; what is wrong with fill is said now."""
    wide = wide_dtype(dtype)
    if isinstance(fill, Random):
        drawn = fill._drawn(row_shape)
        return lambda first, stop: cast(drawn(first, stop), wide)
    if isinstance(fill, str):
        check_name(fill, ("mean",), argument)
        made = mean() if count else np.zeros((1, *row_shape))
    elif is_real(fill):
        made = np.full((1,) * (len(row_shape) + 1), fill)
        if made.dtype == object:  # an int of more than 64 bits, a fraction
            made = np.full(made.shape, as_float(fill))
    else:
        made = _given(fill, argument, count, row_shape, dtype)
    if dtype not in FLOATS:
        _check_whole(made, argument, dtype)
    made = cast(made, wide)
    if made.shape == (count, *row_shape):
        return lambda first, stop: made[first:stop]
    return lambda first, stop: np.broadcast_to(made, (stop - first, *row_shape))


def _check_whole(made: Host, argument: str, dtype: str) -> None:
    """Numbers for an array of integers: a cast would take others for what they are not."""
    if not (np.trunc(made) == made).all():
        raise TypeError(f"{argument}: got numbers that are not whole for an array of {dtype}; accepted are whole ones")
    limits = np.iinfo(dtype)
    for found in (made.min(), made.max()) if made.size else ():
        if not np.isfinite(found) or not limits.min <= int(found) <= limits.max:
            raise ValueError(
                f"{argument}: got {found} for an array of {dtype}; accepted is {limits.min} to {limits.max}"
            )


def cast(rows: Host, dtype: str) -> Host:
    """Rows in the host's array for a dtype: bfloat16 as its bits, on both sides."""
    if dtype not in FLOATS:
        return rows.astype(dtype)
    with modes.HOST.scope():
        out: Host = modes.HOST.astype(rows, dtype)
    return out


def _given(fill: Fill, argument: str, count: int, row_shape: tuple[int, ...], dtype: str) -> Host:
    """Rows that the caller made, or a function of his."""
    shape, asked = (count, *row_shape), False
    if callable(fill) and find_backend(fill) is None:
        fill, asked = fill(shape), True
    backend = find_backend(fill)
    array = backend is not None and backend.is_array(fill)
    accepted = FLOATS if dtype in FLOATS else INTEGERS
    if backend is None or not array or backend.dtype(fill) not in accepted or backend.is_traced(fill):
        what = f"a function that returned {describe(fill)}" if asked else describe(fill)
        raise TypeError(f"{argument}: got {what}; accepted is {ACCEPTED}, of {' or '.join(accepted)}")
    given = backend.shape(fill)
    if given not in (shape, (1, *row_shape)):
        raise ValueError(
            f"{argument}: got shape {given} for {count} new rows; accepted is {shape}, or {(1, *row_shape)} for all of "
            "them"
        )
    return backend.to_numpy(fill)


def fill_of_state(fill: Fill, name: str, added: int) -> Fill:
    """What of state_fill is for the array of the state that has a name; it is not asked for where no rows are added."""
    if not added:
        return 0.0
    if isinstance(fill, Optimizer):
        for spec in fill._formula.state:
            if spec.name == name:
                return as_float(fill.hyper[spec.initial]) if isinstance(spec.initial, str) else spec.initial
        names = ", ".join(repr(spec.name) for spec in fill._formula.state) or "none"
        raise ValueError(f"state_fill: got {fill!r} for the array {name!r}; its own are {names}")
    if isinstance(fill, Mapping):
        if name not in fill:
            raise ValueError(f"state_fill: got nothing for the array {name!r}; accepted is a value for each")
        return fill[name]
    if fill is None:
        raise TypeError(
            f"state_fill: got None, and {name!r} has new rows; accepted is the islices optimizer of the state, a "
            "number, or a mapping of name to number (0 for most; what an Adagrad's accumulator begins with)"
        )
    return fill
