"""The check of per-sample gradients: that a sample's loss and gradient depend on that sample alone. SPEC clause 14."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from islices.backend import Array, Backend
from islices.embedding.per_sample import PerSample

HALVES = ("float16", "bfloat16")


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
    return _is_close(B, losses, again)


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


def check_alone(B: Backend, b: int, losses: Array, alone: Array) -> None:
    """Check the loss of sample b among the batch's against that of fn with this sample only."""
    if not _is_close(B, losses[b : b + 1], alone):
        refuse_influence(b, "the loss differs between the whole batch and one sample")


def _is_close(B: Backend, losses: Array, others: Array) -> bool:
    """Whether losses are as close as SPEC clause 14 asks; what is not finite must be equal."""
    x, y = _host(B, losses), _host(B, others)
    finite = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    x, y = x[finite].astype(np.float64), y[finite].astype(np.float64)
    bound = max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0)) / (4 if B.dtype(losses) in HALVES else 16)
    return bool((np.abs(x - y) <= bound).all())


def _host(B: Backend, x: Array) -> np.ndarray[Any, Any]:
    with B.scope():
        return B.to_numpy(B.widen(x))
