"""The check of per-sample gradients: that a sample's loss and gradient depend on that sample alone. SPEC clause 14."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from islices.backend import Array, Backend
from islices.embedding.per_sample import PerSample

__all__ = ["check_alone", "check_reach", "is_repeated", "largest_two", "refuse_influence"]


def refuse_influence(b: int, what: str) -> NoReturn:
    """Raise the error for a sample that is not alone."""
    raise ValueError(
        f"per_sample: got samples that influence each other: {what}, sample {b}; accepted is fn where the loss of each "
        "sample depends on that sample only, sample_axis being its axis in ids and arguments (no batch norm, no rows "
        "or l2 term shared by the batch, no division by the batch's size; random numbers per sample; the whole batch "
        "among the arguments, or none of it). check=False leaves this check out"
    )


def largest_two(B: Backend, losses: Array) -> list[int]:
    """Return the two samples of the largest finite losses."""
    size = np.abs(_host(B, losses))
    return [int(b) for b in np.argsort(-np.where(np.isfinite(size), size, -1.0), kind="stable")[:2]]


def is_repeated(B: Backend, losses: Array, again: Array) -> bool:
    """Whether a second run gives the same losses; random numbers make others."""
    return _is_close(_host(B, losses), _host(B, again), half=_is_half(B, losses))


def check_reach(b: int, names: Sequence[str], tables: Sequence[PerSample]) -> None:
    """Check the gradient of sample b's loss: it is 0, or NaN, in the slices of all others."""
    for name, x in zip(names, tables, strict=True):
        B = x.backend
        others = np.arange(x.dense_shape[0]) != b
        reached = _is_set(_host(B, x.values)[_host(B, x.samples) != b]).any()
        for pair in x.products:  # either factor may be the gradient
            g, inputs = (_is_set(_host(B, a)[others]).any(-1) for a in (pair.upstream, pair.inputs))
            reached = reached or (g & inputs).any()
        if reached:
            refuse_influence(b, f"the gradient of one sample's loss reaches rows of others in {name}")


def _is_set(x: np.ndarray[Any, Any]) -> Any:
    return (x != 0) & ~np.isnan(x)


def check_alone(B: Backend, b: int, names: Sequence[str], batch: Sequence[Any], alone: Sequence[Any]) -> None:
    """Check sample b of each leaf, the losses and gradients of a batch, against those of fn with this sample only."""
    pairs = [list(zip(_parts(B, x, b), _parts(B, y, 0), strict=True)) for x, y in zip(batch, alone, strict=True)]
    largest = max((_size(x) for parts in pairs[1:] for pair in parts for x in pair if x.dtype.kind == "f"), default=0.0)
    for name, leaf, parts in zip(names, batch, pairs, strict=True):
        floor = 0.0 if leaf is batch[0] else largest  # gradients that cancel are nothing but rounding errors
        if not all(x.shape == y.shape and _is_close(x, y, floor, half=_is_half(B, leaf)) for x, y in parts):
            refuse_influence(b, f"{name} differs between the whole batch and one sample")


def _is_close(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], floor: float = 0.0, *, half: bool) -> bool:
    """Whether two arrays of one shape are as close as SPEC clause 14 asks; what is not finite must be equal."""
    if x.dtype.kind != "f":
        return bool((x == y).all())
    finite = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    share = 4 if half else 16
    bound = max(_size(x), _size(y), floor / share**2) / share
    return bool((np.abs(x[finite].astype(np.float64) - y[finite]) <= bound).all())


def _size(x: np.ndarray[Any, Any]) -> float:
    """The largest finite absolute value."""
    return float(np.abs(x).max(initial=0.0, where=np.isfinite(x)))


def _parts(B: Backend, x: Any, b: int) -> list[np.ndarray[Any, Any]]:
    """The arrays that make sample b's share of a leaf; of a tied table its norm, which has no size of the table."""
    if not isinstance(x, PerSample):
        return [_host(B, x)[b]]
    if x.products:
        return [_host(B, x.norms())[b]]
    kept = _host(B, x.samples) == b
    return [_host(B, x.indices)[kept], _host(B, x.values)[kept]]


def _is_half(B: Backend, x: Any) -> bool:
    return B.dtype(x.values if isinstance(x, PerSample) else x) in ("float16", "bfloat16")


def _host(B: Backend, x: Array) -> np.ndarray[Any, Any]:
    with B.scope():
        return B.to_numpy(B.widen(x))
