"""A few rows stand for all: how many different rows the ranks have together, and where to cut them into equal shares.

Each rank sends the `SIZE` of its indices whose hashes are smallest. As all ranks hash alike, the smallest of all of
these are a random sample of the union, whose density tells its size: the KMV estimator of Z. Bar-Yossef, T. S. Jayram,
R. Kumar, D. Sivakumar, L. Trevisan, "Counting distinct elements in a data stream", RANDOM 2002. Its relative error is
about 1 / sqrt(SIZE - 2); it decides what is moved, never what comes out. The hash is the finalizer of splitmix64
(G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["SIZE", "sketch", "splitters", "union_size"]

Ids = np.ndarray[Any, Any]

SIZE = 64
#: What fills up a sketch of fewer indices: no index is negative.
NOTHING = -1


def sketch(indices: Ids) -> Ids:
    """Those of unique indices whose hashes are smallest, in the order of hashes: int64, (SIZE,), filled up with -1."""
    ids = indices.astype(np.int64)
    hashes = _hash(ids)
    if len(ids) > SIZE:
        chosen = np.argpartition(hashes, SIZE - 1)[:SIZE]
        ids, hashes = ids[chosen], hashes[chosen]
    out = np.full(SIZE, NOTHING, np.int64)
    out[: len(ids)] = ids[np.argsort(hashes)]
    return out


def union_size(sketches: Sequence[Ids], counts: Sequence[int]) -> float:
    """About how many different indices the ranks have, given each rank's sketch and how many it has; exact where no
    rank has more than SIZE."""
    at_least, at_most = max(counts), sum(counts)
    seen = np.concatenate([_kept(s) for s in sketches])
    hashes = np.unique(_hash(seen))
    if at_most == 0 or max(counts) <= SIZE:
        return float(len(hashes))
    # the SIZE smallest of all are the sketch of the union
    largest = float(hashes[SIZE - 1]) / 2.0**64
    return min(max((SIZE - 1) / largest, float(at_least)), float(at_most))


def splitters(sketches: Sequence[Ids], counts: Sequence[int], parts: int) -> Ids:
    """The first index of parts 1 to parts - 1, ascending, so that each part has about as many of all ranks' rows."""
    places = np.concatenate([_kept(s) for s in sketches])
    weights = np.concatenate(
        [np.full(k, n / k if k else 0.0) for s, n in zip(sketches, counts, strict=True) for k in (len(_kept(s)),)]
    )
    order = np.argsort(places, kind="stable")
    places, reached = places[order], np.cumsum(weights[order])
    if not len(places):
        return np.zeros(parts - 1, np.int64)
    wanted = reached[-1] * np.arange(1, parts) / parts
    cuts: Ids = places[np.minimum(np.searchsorted(reached, wanted), len(places) - 1)]
    return cuts


def _kept(sketch: Ids) -> Ids:
    kept: Ids = sketch[sketch != NOTHING]
    return kept


def _hash(ids: Ids) -> Ids:
    with np.errstate(over="ignore"):
        x = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes: Ids = x ^ (x >> np.uint64(31))
        return hashes
