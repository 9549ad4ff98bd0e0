"""How many different rows come up when ids are drawn by Zipf's law: in milliseconds, however many rows there are.

The first `HEAD` rows are summed one by one. What comes after is an integral: of a term over [k - 1/2, k + 1/2] for the
term at k, the midpoint rule backwards. NumPy alone.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from islices.arguments import is_real, show, whole_number

__all__ = ["HEAD", "Zipf"]

Array = np.ndarray[Any, Any]

HEAD = 1 << 14
#: Nodes of Gauss-Legendre on each panel of the integral, and panels for each factor of e in the row number.
NODES, PANELS = 12, 2.0


class Zipf:
    """Row k of 1 to ``rows`` comes up with a probability proportional to ``k ** -exponent``.

    Parameters
    ----------
    rows : int
    exponent : float
        At least 0, where all rows are alike.

    Raises
    ------
    ValueError
        Either is none of these.

    Examples
    --------
    >>> round(Zipf(6, 0.0).distinct(3), 6)  # dice: 6 (1 - (5/6)^3)
    2.527778
    >>> round(Zipf(10_000_000_000, 1.1).distinct(65_536))
    25351
    """

    def __init__(self, rows: int, exponent: float) -> None:
        count = whole_number(rows)
        if count is None or count < 1:
            raise ValueError(f"rows: got {show(rows)}; accepted is a whole number of at least 1")
        if not (is_real(exponent) and 0 <= exponent < math.inf):
            raise ValueError(f"exponent: got {show(exponent)}; accepted is a number of at least 0")
        self.rows, self.exponent = count, float(exponent)
        self._head = np.arange(1, min(count, HEAD) + 1, dtype=np.float64) ** -self.exponent
        self._of_head = float(self._head.sum())
        self._total = self._of_head + self._integral(HEAD + 0.5, count + 0.5)

    def distinct(self, draws: float, top: int | None = None) -> float:
        """How many different rows are expected among so many draws: sum of 1 - (1 - p_k)^draws.

        Parameters
        ----------
        draws : float
        top : int, optional
            Count only rows 1 to ``top``, those that come up most often.

        Returns
        -------
        float

        Notes
        -----
        Differs from the sum by less than `error`. That a term's integral may stand for it: the midpoint rule's error is
        1/24 of the total variation of the term's slope, which rises once and falls once, and is s / (e (K - 1)) at most
        from row K on, since x exp(-x) <= 1/e. The total weight is as well known; a term grows more slowly than its p_k.
        """
        last = self.rows if top is None else min(top, self.rows)
        if draws <= 0 or last <= 0:
            return 0.0
        found = float(self._seen(self._head[:last], draws).sum())
        if last > HEAD and self._head[-1] > 0:  # else those beyond have no weight that a float64 could hold
            x, weight = _nodes(math.log(HEAD + 0.5), math.log(last + 0.5), max(1.0, self.exponent))
            found += float((self._seen(x**-self.exponent, draws) * x) @ weight)
        return min(found, float(last), float(draws))

    def error(self, draws: float) -> float:
        """What `distinct` may differ by from the exact sum, in rows; a relative 1e-12 for rounding and Gauss's rule."""
        exact = 1e-12 * self.distinct(draws)
        if self.rows <= HEAD:
            return exact
        s = self.exponent
        return exact + s / (12 * math.e * (HEAD - 1)) + self.distinct(draws) * s / (24 * HEAD**2)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """So many row numbers, counted from 0, the most frequent first: int64."""
        wanted = rng.random(count) * self._total
        ids = np.searchsorted(np.cumsum(self._head), wanted).astype(np.int64)
        beyond = wanted >= self._of_head
        if beyond.any():
            ids[beyond] = np.clip(np.rint(self._reached(wanted[beyond] - self._of_head)), 1, self.rows) - 1
        return np.minimum(ids, self.rows - 1)

    def _seen(self, weight: Array, draws: float) -> Array:
        """1 - (1 - p)^draws for rows of these weights; p is 1 where there is one row."""
        with np.errstate(divide="ignore"):
            return -np.expm1(float(draws) * np.log1p(-np.minimum(weight / self._total, 1.0)))

    def _integral(self, start: float, end: float) -> float:
        """Of x ** -exponent."""
        if end <= start:
            return 0.0
        s, steps = 1.0 - self.exponent, math.log(end / start)
        # (end^s - start^s) / s, which is the logarithm where s is 0
        area = steps if abs(s * steps) < 1e-12 else math.expm1(s * steps) / s
        return float(start**s * area)

    def _reached(self, area: Array) -> Array:
        """The x up to which the integral from the end of the head is ``area``."""
        start, s = HEAD + 0.5, 1.0 - self.exponent
        if abs(s) < 1e-12:
            return start * np.exp(area)
        return start * np.exp(np.log1p(s * area * start**-s) / s)  # type: ignore[no-any-return]


def _nodes(start: float, end: float, steepness: float) -> tuple[Array, Array]:
    """(x, weight) for integrals over [exp(start), exp(end)] of what changes by about e^steepness in a factor of e; the
    weight is of d log x."""
    panels = math.ceil((end - start) * PANELS * steepness)
    places, weights = _gauss()
    width = (end - start) / panels
    middles = start + width * (np.arange(panels) + 0.5)
    logs = (middles[:, None] + 0.5 * width * places).reshape(-1)
    return np.exp(logs), np.tile(0.5 * width * weights, panels)


@lru_cache(1)
def _gauss() -> tuple[Array, Array]:
    places, weights = np.polynomial.legendre.leggauss(NODES)
    return places, weights
