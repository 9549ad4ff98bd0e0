"""Optimizer: what the functions of `islices.optim` return. SPEC clause 16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from islices import modes
from islices.backend import INTEGERS, Array, Backend
from islices.linear import is_real, wide_dtype
from islices.native import adopt, without_padding
from islices.optim import step as stepping
from islices.optim.formulas import Formula, Numbers
from islices.optim.step import Plan, Work
from islices.registry import describe, find_backend
from islices.shapes import size_of
from islices.slices import IndexedSlices, check_indices
from islices.table import Table
from islices.update import adopt_table, check_shape, write_rows

__all__ = ["LearningRate", "Optimizer"]

#: A number, or a function of the number of steps taken before.
LearningRate = float | Callable[[Any], Any]
#: What the count of steps, an int32, can hold.
LAST_STEP = 2**31 - 1


class Optimizer:
    """An optimizer of row-sparse tables: hyperparameters and a formula, no state of its own.

    Made by the functions of `islices.optim`. The state is a plain dict of arrays of the table's framework, so that each
    framework's own checkpoints hold it, and `islices.convert` carries it to another.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices, optim
    >>> table = np.zeros((4, 1))
    >>> optimizer = optim.adagrad(0.5)
    >>> state = optimizer.init(table)
    >>> table, state = optimizer.step(table, IndexedSlices(np.ones((2, 1)), np.array([3, 3]), (4, 1)), state)
    >>> table.ravel().tolist(), state["accumulator"].ravel().tolist(), state["step"].tolist()
    ([0.0, 0.0, 0.0, -0.5], [0.0, 0.0, 0.0, 4.0], [1])
    """

    __slots__ = ("_formula", "_frozen", "_mask_length", "_remake", "hyper", "maximize", "name", "rows", "semantics")

    def __init__(
        self,
        name: str,
        hyper: Mapping[str, Any],
        formula: Formula,
        *,
        rows: str,
        semantics: str,
        maximize: bool,
        frozen: Any,
        remake: Callable[[], Optimizer],
    ) -> None:
        self.name, self.hyper, self.rows, self.semantics = name, dict(hyper), rows, semantics
        self.maximize = maximize
        self._formula, self._remake = formula, remake
        self._frozen, self._mask_length = _frozen_rows(frozen)

    def __repr__(self) -> str:
        parts = [f"{k}={getattr(v, '__name__', v)}" for k, v in self.hyper.items()]
        parts.append(f"rows={self.rows!r}")
        if self.semantics != "islices":
            parts.append(f"semantics={self.semantics!r}")
        if self._formula.raw:
            parts.append("duplicates='raw'")
        if self.maximize:
            parts.append("maximize=True")
        if self._frozen is not None:
            parts.append(f"frozen={len(self._frozen)} rows")
        return f"{self.name}({', '.join(parts)})"

    def __reduce__(self) -> tuple[Callable[[], Optimizer], tuple[()]]:
        return self._remake, ()  # formulas do not pickle; what was asked for does

    # ------------------------------------------------------------------ state
    def init(self, table: Any, *, master: bool = False) -> dict[str, Array]:
        """The state of a table that no step has been taken on.

        Parameters
        ----------
        table : Table, or float array of shape (rows, *row_shape)
        master : bool
            Keep a float32 copy of a 16-bit table: steps are taken on it, and the table holds its rows rounded.

        Returns
        -------
        dict of str to array
            "step", int32 of shape (1,), the steps taken; the optimizer's own arrays, of the table's shape or one
            number a row, float32 for 16-bit tables; with master, "master". tf.Variables for a tf.Variable.

        Raises
        ------
        TypeError, ValueError
            No table of floats; master for one that is not of 16 bits. SPEC clause 16.
        """
        B, weights = _adopt_float_table(table)
        dtype = B.dtype(weights)
        wide = wide_dtype(dtype)
        if master and wide == dtype:
            raise ValueError(f"master: got True for a table of {dtype}; accepted is a 16-bit table")
        shapes = stepping.state_shapes(B, self._formula, weights)
        with B.scope():
            state = {"step": B.variable(B.asarray(np.zeros(1, np.int32), weights), weights)}
            for spec in self._formula.state:
                x = B.zeros(shapes[spec.name], wide, weights)
                initial = self.hyper[spec.initial] if isinstance(spec.initial, str) else spec.initial
                if initial:
                    x = x + B.asarray(np.full((1,) * len(shapes[spec.name]), initial, wide), weights)
                state[spec.name] = B.variable(x, weights)
            if master:
                state["master"] = B.variable(B.astype(B.stop_gradient(weights), wide), weights)
        return state

    # ------------------------------------------------------------------ a step
    def step(
        self, table: Any, grad: Any, state: Mapping[str, Array], *, donate: bool = False, apply: Any = True
    ) -> tuple[Any, dict[str, Array]]:
        """One step: the table and the state after it.

        Parameters
        ----------
        table : Table, or float array of shape (rows, *row_shape)
            A tf.Variable, torch Parameter, NDArray, NumPy or JAX array ...
        grad : sparse gradient, dense array of the table's shape, or None
            Of the table's dtype, or float32 for a 16-bit table. Duplicates are summed first. A dense one names every
            row. None takes no step.
        state : dict
            What `init` or the step before returned.
        donate : bool
            JAX arrays of table and state may be written over, and must not be used afterwards. Without meaning where
            arrays change in place, and inside jit.
        apply : bool, or 0-d or (1,) boolean or integer array
            False takes no step: everything keeps its bits, the step count too. May be traced.

        Returns
        -------
        (table, state)
            Of the same types: use them. In place where the framework's arrays change, new ones of JAX and tf.Tensors.

        Raises
        ------
        TypeError, ValueError, IndexError
            Frameworks, dtypes, shapes, indices or a state that do not fit. Nothing has been written then.

        Notes
        -----
        No gradient is recorded. In traced code rows out of range take no step. SPEC clauses 15 and 16.
        """
        B, weights = _adopt_float_table(table)
        arrays = self._check_state(B, weights, state)
        if grad is None:
            return table, dict(state)
        leaf = self._adopt_gradient(B, weights, grad)
        if B.is_array(apply) and B.is_traced(apply):
            with B.scope():
                flag: Array | None = B.reshape(B.astype(apply, "int32"), (1,))
        elif _is_false(apply):
            return table, dict(state)
        else:
            flag = None
        plan, numbers = self._plan(B, arrays["step"], weights)
        targets = [arrays.get("master", weights), *(arrays[spec.name] for spec in self._formula.state)]
        work = Work(B, plan, leaf, targets, numbers, self._frozen_array(B, weights), flag)
        if self.rows == "touched" and isinstance(leaf, IndexedSlices):
            pieces = work.some_rows()
        else:
            in_place = [B.in_place(x) for x in (weights, *arrays.values())]
            parts = (leaf.values, leaf.indices) if isinstance(leaf, IndexedSlices) else (leaf,)
            whole = not all(in_place) or modes.is_traced(B, weights, arrays["step"], *parts)
            pieces = work.whole_tables() if whole else work.blocks()
        return _written(B, table, arrays, pieces, flag, donate)

    # ------------------------------------------------------------------ what came
    def _check_state(self, B: Backend, weights: Array, state: Any) -> dict[str, Array]:
        """The arrays of a state, "step" first, or TypeError, ValueError."""
        if not isinstance(state, Mapping):
            raise TypeError(f"state: got {describe(state)}; accepted is the dict that init returned")
        dtype = B.dtype(weights)
        shapes = {"step": (1,), **stepping.state_shapes(B, self._formula, weights)}
        if "master" in state and wide_dtype(dtype) != dtype:
            shapes["master"] = B.shape(weights)  # type: ignore[assignment]
        if set(state) != set(shapes):
            raise ValueError(f"state: got {', '.join(map(repr, state))}; {self!r} has {', '.join(map(repr, shapes))}")
        for name, shape in shapes.items():
            x, wanted = state[name], "int32" if name == "step" else wide_dtype(dtype)
            if not B.is_array(x):
                raise TypeError(f"state[{name!r}]: got {describe(x)}; accepted is an array of {B.name}")
            if B.dtype(x) != wanted:
                raise TypeError(f"state[{name!r}]: got {B.dtype(x)}; accepted for a table of {dtype} is {wanted}")
            if B.shape(x) != shape:
                raise ValueError(f"state[{name!r}]: got shape {B.shape(x)}; accepted is {shape}")
            B.in_place(x)  # raises for what is read-only, before anything is written
        B.in_place(weights)
        return {name: state[name] for name in shapes}

    def _adopt_gradient(self, B: Backend, weights: Array, grad: Any) -> IndexedSlices | Array:
        """grad as slices, checked, without padding, or as a dense array."""
        leaf, _ = adopt(grad, "grad")
        sparse = isinstance(leaf, IndexedSlices)
        backend, values = (leaf.backend, leaf.values) if sparse else (B, leaf)
        if backend is not B or not B.is_array(values):
            raise TypeError(f"grad: got {describe(grad)} for a table of {B.name}; accepted is one framework")
        dtype, shape = B.dtype(weights), B.shape(weights)
        if B.dtype(values) not in (dtype, wide_dtype(dtype)):
            accepted = dtype if dtype == wide_dtype(dtype) else f"{dtype} or {wide_dtype(dtype)}"
            raise TypeError(f"grad: got {B.dtype(values)} for a table of {dtype}; accepted is {accepted}")
        if not sparse:
            if B.shape(leaf) != shape:
                raise ValueError(f"grad: got shape {B.shape(leaf)} for a table of shape {shape}; accepted is one shape")
            return leaf
        check_shape(leaf, shape, "grad")
        if not modes.is_traced(B, leaf.values, leaf.indices):
            leaf = without_padding(leaf)
            check_indices(B, leaf.indices, shape[0])  # whoever vouched for them: what is written stays inside the table
        if leaf.dense_shape[0] is not None:
            return leaf
        return IndexedSlices._trusted(B, leaf.values, leaf.indices, shape, coalesced=leaf.coalesced, padded=leaf.padded)

    def _frozen_array(self, B: Backend, weights: Array) -> np.ndarray[Any, Any] | None:
        """The frozen rows, ascending and unique, none if there are none."""
        rows, frozen = B.shape(weights)[0], self._frozen
        if self._mask_length not in (None, rows):
            raise ValueError(f"frozen: got a mask of length {self._mask_length}; accepted is one entry a row, {rows}")
        if frozen is None or len(frozen) == 0:
            return None
        if frozen[-1] >= rows:
            raise IndexError(f"frozen: got {frozen[-1]} for a table of {rows} rows; accepted is 0 <= row < {rows}")
        return frozen

    def _plan(self, B: Backend, step: Array, weights: Array) -> tuple[Plan, Array]:
        """What is to be computed, and the rule's numbers of this step as one array."""
        traced = modes.is_traced(B, step)
        E, count = (B, step) if traced else (modes.HOST, np.array(B.to_numpy(step)))
        if not traced and not 0 <= count[0] < LAST_STEP:
            raise ValueError(f"state['step']: got {count[0]}; accepted is 0 <= step < {LAST_STEP}")
        lr = _rate(E, self.hyper["lr"], count)
        with E.scope():
            numbers = Numbers(E, count, _as_float64(E, lr, count), self.hyper)
            named = dict(self._formula.numbers(numbers))
            if self._formula.decay == "coupled":
                named["weight_decay"] = self.hyper["weight_decay"]
            elif self._formula.decay == "decoupled":
                decay = numbers.number(self.hyper["weight_decay"])
                named["keep"] = numbers.number(1.0) - E.round_product(numbers.lr, decay)
            wide = wide_dtype(B.dtype(weights))
            if traced:
                columns = [numbers.number(x) if is_real(x) else E.astype(x, "float64") for x in named.values()]
                array = E.astype(E.concat(columns), wide)
            else:  # the same, but one conversion for all
                array = np.array([x if is_real(x) else x[0] for x in named.values()], np.float64).astype(wide)
        if not traced:
            with B.scope():
                array = B.asarray(array, weights)
        return Plan(self._formula, tuple(named), self.maximize), array


# ---------------------------------------------------------------------- helpers of a step
def _adopt_float_table(table: Any) -> tuple[Backend, Array]:
    B, weights = adopt_table(table)
    if B.dtype(weights) in INTEGERS:
        raise TypeError(f"table: got {describe(weights)}; accepted is a floating dtype")
    return B, weights


def _is_false(apply: Any) -> bool:
    if isinstance(apply, (bool, np.bool_)):
        return not apply
    backend = find_backend(apply)
    if backend is not None and backend.is_array(apply) and size_of(backend.shape(apply)) == 1:
        return not bool(backend.to_numpy(apply).reshape(()))
    raise TypeError(f"apply: got {describe(apply)}; accepted is a bool, or an array of one")


def _rate(E: Backend, lr: LearningRate, count: Array) -> Any:
    """The learning rate of a step: a number, or an array of one."""
    value: Any = lr
    if callable(lr):
        value = lr(int(count[0]) if E is modes.HOST else E.reshape(count, ()))
    if is_real(value):
        return value
    backend = find_backend(value)
    if backend is None or not backend.is_array(value) or size_of(backend.shape(value)) != 1:
        raise TypeError(f"lr: got {describe(value)}; accepted is a number, or a function of the step that returns one")
    if E is modes.HOST and modes.is_traced(backend, value):
        raise TypeError("lr: got a traced array for a state that is not; accepted is a step count traced with it")
    return backend.to_numpy(value) if E is modes.HOST else value


def _as_float64(E: Backend, value: Any, count: Array) -> Array:
    """A number or an array of one as a float64 array of shape (1,)."""
    if is_real(value):
        return E.asarray(np.full(1, float(value)), count)
    return E.astype(E.reshape(value, (1,)), "float64")


def _written(
    B: Backend, table: Any, arrays: Mapping[str, Array], pieces: Any, flag: Array | None, donate: bool
) -> tuple[Any, dict[str, Array]]:
    """The pieces put in their places, one after the other, then the step counted."""
    names = ["master" if "master" in arrays else "", *(k for k in arrays if k not in ("step", "master"))]
    now: dict[str, Any] = {"": table, **arrays}
    for ids, rows in pieces:
        new = dict(zip(names, rows, strict=True))
        if "master" in new:
            weights = table.weights if isinstance(table, Table) else table
            new[""] = modes.run(_rounded, B, (new["master"],), dtype=B.dtype(weights))
        for name, x in new.items():
            now[name] = write_rows(B, now[name], ids, x, donate=donate)
    with B.scope():
        one = B.asarray(np.ones(1, np.int32), arrays["step"])
        count = arrays["step"] + (one if flag is None else flag)
        first = B.asarray(np.zeros(1, np.int32), arrays["step"])
    now["step"] = write_rows(B, arrays["step"], first, count, donate=donate)
    return now.pop(""), now


def _rounded(B: Backend, x: Array, *, dtype: str) -> Array:
    return B.astype(x, dtype)


def _frozen_rows(frozen: Any) -> tuple[np.ndarray[Any, Any] | None, int | None]:
    """(row numbers ascending and unique, the mask's length if it was one)"""
    if frozen is None:
        return None, None
    backend = find_backend(frozen)
    try:
        rows = backend.to_numpy(frozen) if backend is not None and backend.is_array(frozen) else np.asarray(frozen)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"frozen: got {describe(frozen)}; accepted are row numbers or a boolean mask") from error
    if rows.ndim == 1 and rows.size == 0:
        return None, None
    if rows.ndim != 1 or (rows.dtype != bool and rows.dtype.name not in INTEGERS):
        came = f"{rows.dtype} of shape {rows.shape}"
        raise TypeError(f"frozen: got {came}; accepted are 1-D row numbers, or a boolean mask")
    if rows.dtype == bool:
        return np.flatnonzero(rows), len(rows)
    check_indices(modes.HOST, rows, None, argument="frozen")
    return np.unique(rows.astype(np.int64)), None
