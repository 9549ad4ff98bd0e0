"""Loss scaling for 16-bit training: gradients of a scaled loss, taken back to size, and whether they are finite.

Overflow is looked for after duplicates are summed, in every dtype: one row's contributions may each be finite while
their sum is not. SPEC clause 16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from islices.backend import INTEGERS, Array, Backend
from islices.core import modes
from islices.core.arguments import is_real, show, whole_number
from islices.core.conversion import map_adopted
from islices.core.linear import as_float
from islices.core.registry import describe, find_backend, get_backend
from islices.core.rows import coalesce
from islices.core.scatter import write_rows
from islices.core.shapes import size_of
from islices.core.slices import IndexedSlices
from islices.optim.inputs import changes_in_place, is_taken

#: The state's arrays.
NAMES = ("scale", "good_steps")
#: What a scale stays within: powers of two that float32 holds, and whose reciprocals it does.
SMALLEST, LARGEST = 2.0**-125, 2.0**125


class LossScale:
    """A scale for the loss that halves when gradients overflow and doubles after a long time without.

    Parameters
    ----------
    initial : float
        The scale to begin with.
    growth_factor, backoff_factor : float
        What the scale is multiplied by after growth_interval finite steps, and after one that was not.
    growth_interval : int
        Finite steps between two growths.

    Raises
    ------
    TypeError, ValueError
        A parameter that is no number, or out of its range.

    Notes
    -----
    Powers of two (the defaults) cost no rounding. Micikevicius et al. 2018, "Mixed precision training"; the defaults
    are those of torch.amp.GradScaler. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> loss_scale = LossScale(initial=1024.0)
    >>> state = loss_scale.init(np.zeros(1, np.float16))
    >>> big = IndexedSlices(np.full((2, 1), 4e4, np.float16), np.array([1, 1]), (4, 1))
    >>> _, finite = loss_scale.unscale(big, state)
    >>> finite
    False
    >>> loss_scale.update(state, finite)["scale"].tolist()
    [512.0]
    """

    __slots__ = ("backoff_factor", "growth_factor", "growth_interval", "initial")

    def __init__(
        self,
        initial: float = 2.0**16,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        given = {"initial": initial, "growth_factor": growth_factor, "backoff_factor": backoff_factor}
        for name, value in given.items():
            if not is_real(value):
                raise TypeError(f"{name}: got {describe(value)}; accepted is a number")
        if not SMALLEST <= initial <= LARGEST:
            raise ValueError(f"initial: got {show(initial)}; accepted is {SMALLEST:.3g} to {LARGEST:.3g}")
        if not 1 <= as_float(growth_factor) < math.inf:
            raise ValueError(f"growth_factor: got {show(growth_factor)}; accepted is a finite number of at least 1")
        if not 0 < backoff_factor < 1:
            raise ValueError(f"backoff_factor: got {show(backoff_factor)}; accepted is a number between 0 and 1")
        interval = whole_number(growth_interval)
        if interval is None:
            raise TypeError(f"growth_interval: got {describe(growth_interval)}; accepted is an int >= 1")
        if not 1 <= interval < 2**31:
            raise ValueError(f"growth_interval: got {show(interval)}; accepted is an int >= 1")
        self.initial, self.growth_factor = float(initial), as_float(growth_factor)
        self.backoff_factor, self.growth_interval = float(backoff_factor), interval

    def __repr__(self) -> str:
        return (
            f"LossScale({self.initial}, growth_factor={self.growth_factor}, backoff_factor={self.backoff_factor}, "
            f"growth_interval={self.growth_interval})"
        )

    def init(self, like: Array) -> dict[str, Array]:
        """The state before the first step.

        Parameters
        ----------
        like : array
            Any array of the framework, whose device the state shares.

        Returns
        -------
        dict of str to array
            "scale", float32 of shape (1,), and "good_steps", int32 of shape (1,).
        """
        B = get_backend(like)
        with B.scope():
            return {
                "scale": B.variable(B.asarray(np.full(1, self.initial, np.float32), like), like),
                "good_steps": B.variable(B.asarray(np.zeros(1, np.int32), like), like),
            }

    def scaled(self, loss: Array, state: Mapping[str, Array]) -> Array:
        """The loss times the scale: what is to be differentiated.

        Parameters
        ----------
        loss : array of one floating-point number
        state : dict
            What `init` or `update` returned.

        Returns
        -------
        array of loss's shape, at least float32

        Raises
        ------
        TypeError, ValueError
            No such loss, or a state of something else.
        """
        B = find_backend(loss)
        if B is None or not B.is_array(loss) or B.dtype(loss) not in B.float_dtypes or size_of(B.shape(loss)) != 1:
            raise TypeError(f"loss: got {describe(loss)}; accepted is one floating-point number, an array")
        scale, _ = _check_state(state, B)
        wide = B.widen(loss)
        return wide * B.reshape(B.astype(B.stop_gradient(scale), B.dtype(wide)), B.shape(loss))

    def unscale(self, tree: Any, state: Mapping[str, Array]) -> tuple[Any, Any]:
        """Gradients of the scaled loss taken back to size, and whether all are finite.

        Parameters
        ----------
        tree : sparse gradient, dense array, None, or a list, tuple or dict of them
            Of the scaled loss.
        state : dict
            What `init` or `update` returned.

        Returns
        -------
        tree, finite
            The types of tree, coalesced, 16-bit gradients in float32 (small values would vanish in 16 bits), for
            `Optimizer.step`. finite is a bool, traced an int32 array of shape (1,): step's ``apply``.

        Raises
        ------
        TypeError, ValueError
            Gradients of integers, or a state of something else.
        """
        flags: list[tuple[Backend, Any]] = []

        def one(leaf: Any) -> Any:
            c = coalesce(leaf) if isinstance(leaf, IndexedSlices) else leaf
            values = c.values if isinstance(c, IndexedSlices) else c
            B = get_backend(values)
            scale, _ = _check_state(state, B)
            if B.dtype(values) in INTEGERS:
                raise TypeError(f"tree: got {describe(values)}; accepted is a floating dtype")
            divided, finite = modes.run(_unscaled, B, (values, scale))
            flags.append((B, finite))
            return c.replace(values=divided) if isinstance(c, IndexedSlices) else divided

        unscaled = map_adopted(one, tree, "tree")
        return unscaled, _all(flags)

    def update(self, state: Mapping[str, Array], finite: Any) -> dict[str, Array]:
        """The state after a step: in place where the framework's arrays change.

        Parameters
        ----------
        state : dict
            What `init` or `update` returned.
        finite : bool, or array of one
            Whether the step's gradients were, as `unscale` says.

        Returns
        -------
        dict of str to array

        Raises
        ------
        TypeError, ValueError
            A state of something else, or that cannot be written to; no flag. Nothing has been written then.
        """
        B = find_backend(state["scale"]) if isinstance(state, Mapping) and "scale" in state else None
        scale, good = _check_state(state, B)
        assert B is not None, "checked"
        for name in NAMES:  # both are looked at before the first is written
            changes_in_place(B, state[name], name)
        taken = is_taken(B, finite)
        with B.scope():
            ok = B.asarray(np.full(1, taken, np.int32), scale) if isinstance(taken, bool) else taken
            first = B.asarray(np.zeros(1, np.int32), scale)
        factors, interval = (self.growth_factor, self.backoff_factor), self.growth_interval
        new = modes.run(_rescaled, B, (scale, good, ok), factors=factors, interval=interval)
        return {name: write_rows(B, state[name], first, x) for name, x in zip(NAMES, new, strict=True)}


def _check_state(state: Any, B: Backend | None) -> tuple[Array, Array]:
    """(scale, good_steps) of a state of B."""
    if not isinstance(state, Mapping) or set(state) != set(NAMES):
        came = ", ".join(map(repr, state)) if isinstance(state, Mapping) else describe(state)
        raise ValueError(f"state: got {came}; accepted is the dict that init returned, {', '.join(map(repr, NAMES))}")
    for name, dtype in zip(NAMES, ("float32", "int32"), strict=True):
        x = state[name]
        if B is None or not B.is_array(x) or B.dtype(x) != dtype or B.shape(x) != (1,):
            raise TypeError(f"state[{name!r}]: got {describe(x)}; accepted is {dtype} of shape (1,), of one framework")
    return state["scale"], state["good_steps"]


def _unscaled(B: Backend, values: Array, scale: Array) -> tuple[Array, Array]:
    """(values over scale in the wide type, 1 if all of these are finite, (1,))"""
    wide = B.widen(values)
    divided = B.div(wide, B.reshape(B.astype(scale, B.dtype(wide)), (1,) * len(B.shape(wide))))
    peak = B.row_amax(B.reshape(divided, (1, size_of(B.shape(wide)))))
    one = B.astype(B.equal(B.zeros_like(B.astype(scale, "int32")), 0), "int32")
    return divided, B.where(B.isfinite(peak), one, one - one)


def _rescaled(
    B: Backend, scale: Array, good: Array, ok: Array, *, factors: tuple[float, float], interval: int
) -> tuple[Array, Array]:
    def number(x: float, like: Array) -> Array:
        return B.asarray(np.full(1, x, B.dtype(like)), like)

    one = number(1, good)
    counted = good + one
    due, fine = B.in_range(counted - number(interval, good), None), B.equal(ok, 1)
    grown = B.minimum(B.round_product(scale, number(factors[0], scale)), number(LARGEST, scale))
    shrunk = B.maximum(B.round_product(scale, number(factors[1], scale)), number(SMALLEST, scale))
    new = B.where(fine, B.where(due, grown, scale), shrunk)
    return new, B.where(fine, B.where(due, one - one, counted), one - one)


def _all(flags: list[tuple[Backend, Any]]) -> Any:
    """Whether all are 1: a bool, traced an int32 array (1,)."""
    if not any(modes.is_traced(B, x) for B, x in flags):
        return all(bool(B.to_numpy(x)[0]) for B, x in flags)
    B = flags[0][0]
    with B.scope():
        total = flags[0][1]
        for _, x in flags[1:]:
            total = B.round_product(total, x)
    return total
