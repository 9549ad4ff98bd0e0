"""Options of a whole table, in the form that a rank with some of its rows needs."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np

from islices.backend import FLOATS, Array, Backend, Host
from islices.core.registry import describe
from islices.core.slices import check_dense_shape
from islices.optim.hyperparameters import known_hyper
from islices.optim.inputs import check_frozen
from islices.optim.optimizer import Optimizer


class LocalOptimizer(NamedTuple):
    """An optimizer of the whole table, and the optimizer for the rows of a range."""

    whole: Optimizer
    #: with those of its frozen rows that lie in the range, counted from its first
    own: Optimizer
    #: that ranks freeze the same rows of the whole table: how many, and their digest
    frozen: str

    def facts(self, taken: int) -> dict[str, str]:
        """Return the facts that are the same on every rank at a step. A schedule is compared by its value, because
        its name says little and may contain an address in memory.
        """
        hyper = known_hyper(self.whole.hyper, np.array([taken]), self.whole._formula.limits)
        options = {name: getattr(self.whole, name) for name in ("rows", "semantics", "maximize")}
        words = ", ".join(f"{name}={value}" for name, value in {**hyper, **options}.items())
        return {"optimizer": f"{self.whole.name}({words})", "frozen": self.frozen}


def local_optimizer(optimizer: Any, rows: int, start: int, stop: int) -> LocalOptimizer:
    """Return the optimizer for the rows start to stop - 1 of a table."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: got {describe(optimizer)}; accepted is one of islices.optim")
    if optimizer._formula.raw:
        raise ValueError("optimizer: got duplicates='raw'; accepted is 'sum': ranks' gradients come summed")
    frozen = check_frozen(*optimizer._frozen, rows)
    if frozen is None:
        return LocalOptimizer(optimizer, optimizer, "no rows")
    own = Optimizer(
        optimizer.name,
        optimizer.hyper,
        optimizer._formula,
        rows=optimizer.rows,
        semantics=optimizer.semantics,
        requested=optimizer._requested,
        frozen=frozen[slice(*np.searchsorted(frozen, (start, stop)))] - start,
        remake=optimizer._remake,
    )
    digest = hashlib.sha256(frozen.astype("<i8").tobytes()).hexdigest()
    return LocalOptimizer(optimizer, own, f"{len(frozen)} rows (digest {digest:.8})")


def made_rows(init: Any, start: int, stop: int, row_shape: Any) -> Host:
    """Return init's rows after a check of their form; bfloat16 as its bits."""
    if not callable(init):
        raise TypeError(f"init: got {describe(init)}; accepted is a function of (start, stop)")
    if not isinstance(row_shape, (tuple, list)):
        raise TypeError(f"row_shape: got {describe(row_shape)}; accepted is a tuple of ints")
    shape = (stop - start, *check_dense_shape((0, *row_shape))[1:])
    made = np.asarray(init(start, stop))
    if made.dtype.name not in FLOATS:
        raise TypeError(f"init: returned {made.dtype}; accepted dtypes are {', '.join(FLOATS)}")
    if made.shape != shape:
        raise ValueError(f"init: returned shape {made.shape}; accepted is {shape}")
    return made.view(np.uint16) if made.dtype.name == "bfloat16" else made


def given_like(B: Backend, x: Host, like: Any, probe: Array) -> Array:
    """Return x, whose memory has no other owner, as B's array on probe's device.

    If like is an array, the result is on like's device, and is a variable if like is.
    """
    return B.variable(B.from_host(x, like), like) if B.is_array(like) else B.from_host(x, probe)
