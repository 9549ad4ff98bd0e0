"""Handle trees with sparse leaves, and run transformations on the rows of these leaves.

This module has no formulas: optax or an `islices.optim.Optimizer` steps on arrays that only contain these rows. SPEC
clauses 16 and 17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from islices.backend import INDICES, Array, Backend
from islices.core import modes
from islices.core.registry import describe, get_backend
from islices.core.rows import coalesce, to_dense
from islices.core.slices import IndexedSlices, check_indices
from islices.embedding.table import Table
from islices.optim.optimizer import Optimizer

__all__ = [
    "WITNESSES",
    "NamedRows",
    "add_to_rows",
    "check_transformation",
    "checked",
    "densely",
    "is_leaf",
    "leaves_of",
    "map_slices",
    "named_rows",
    "on_named_rows",
    "step_rows",
    "weights_of",
]

#: A list to which each running transformation of this package adds its name; see `chain` of this package.
WITNESSES: ContextVar[list[str] | None] = ContextVar("WITNESSES", default=None)

WAY_OUT = "accepted are transformations of islices.backends.jax.optax, and on_rows(...) around those of optax itself"


# ---------------------------------------------------------------------- trees
def is_leaf(x: object) -> bool:
    """Return whether x is one leaf here; optax sees a tree of arrays."""
    return isinstance(x, (IndexedSlices, Table))


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of a tree, with slices and tables as single leaves."""
    return jax.tree.leaves(tree, is_leaf=is_leaf)


def weights_of(params: Any) -> Any:
    """Return params with arrays in place of tables: the form of a transformation's state."""
    return jax.tree.map(lambda x: x.weights if isinstance(x, Table) else x, params, is_leaf=is_leaf)


def map_slices(fn: Callable[[IndexedSlices], Any], tree: Any) -> Any:
    """Return the tree with fn applied to its slices."""
    return jax.tree.map(lambda x: fn(x) if isinstance(x, IndexedSlices) else x, tree, is_leaf=is_leaf)


def checked(updates: Any, name: str) -> Any:
    """Return updates unchanged, or raise an error if the indices of slices are no longer valid.

    optax computes with indices as with any leaf. If the indices become floats, this function raises, also in traced
    code. If they stay integers, it raises outside of traced code; in traced code `islices.backends.jax.pytree` gives
    NaN. The function notes name, its caller, in `WITNESSES`.
    """
    witnesses = WITNESSES.get()
    if witnesses is not None:
        witnesses.append(name)
    for path, leaf in jax.tree_util.tree_flatten_with_path(updates, is_leaf=is_leaf)[0]:
        if isinstance(leaf, Table):
            raise TypeError(f"updates{jax.tree_util.keystr(path)}: got a Table; accepted is a gradient, IndexedSlices")
        if isinstance(leaf, IndexedSlices):
            _check_slices(leaf, f"updates{jax.tree_util.keystr(path)}")
    return updates


def _check_slices(s: IndexedSlices, argument: str) -> None:
    B, ours, (values, indices) = s.backend, get_backend("jax"), s._as_they_are()
    if B is not ours or not all(map(ours.is_array, (values, indices))):
        raise TypeError(f"{argument}: got {describe(values)}; accepted are slices of JAX arrays")
    if B.dtype(indices) not in INDICES:
        raise TypeError(
            f"{argument}: got slices with {B.dtype(indices)} indices: a transformation before this one computed with "
            f"them as if they were gradients; {WAY_OUT}"
        )
    if s.dense_shape[0] is None:
        raise ValueError(f"{argument}: got {s!r}; accepted are slices that know their number of rows")
    if modes.is_traced(B, values, indices):
        return
    try:
        check_indices(B, s.indices, s.dense_shape[0], coalesced=s.coalesced, padded=s.padded, argument=argument)
    except (IndexError, ValueError) as error:
        error.add_note(f"{argument}: has a transformation of optax itself computed with the indices? {WAY_OUT}")
        raise


def check_transformation(inner: Any, argument: str) -> Any:
    """Return inner in optax's type with extra arguments, or raise TypeError."""
    if isinstance(inner, optax.MultiSteps):
        inner = inner.gradient_transformation()
    if not isinstance(inner, optax.GradientTransformation):
        raise TypeError(f"{argument}: got {describe(inner)}; accepted is an optax.GradientTransformation")
    return optax.with_extra_args_support(inner)


# ---------------------------------------------------------------------- rows
@dataclass(frozen=True)
class NamedRows:
    """The distinct rows of a gradient, with methods that read and write these rows; a single leaf to JAX."""

    slices: IndexedSlices  # coalesced

    @property
    def B(self) -> Backend:
        """Return JAX's backend."""
        return self.slices.backend

    def holding(self, x: Array, argument: str) -> Array:
        """Return x if it has the table's shape or one number per row; otherwise raise ValueError."""
        shape = self.slices.dense_shape
        if self.B.shape(x) not in (shape, shape[:1]):
            raise ValueError(
                f"{argument}: got an array of shape {self.B.shape(x)} for {self.slices!r}; accepted are "
                "transformations that treat each element by itself, and their state for a table of this shape"
            )
        return x

    def read(self, x: Array) -> Array:
        """Return the rows of x."""
        with self.B.scope():
            return self.B.stop_gradient(self.B.read_rows(x, self.slices.indices))

    def write(self, x: Array, rows: Array) -> Array:
        """Return x with new rows."""
        with self.B.scope():
            return self.B.set_rows(x, self.slices.indices, rows)

    def update(self, values: Array) -> IndexedSlices:
        """Return slices of these rows with other values; slots without a row contain zeros."""
        s = self.slices
        if self.B.shape(values) != self.B.shape(s.values):
            raise ValueError(
                f"inner: got updates of shape {self.B.shape(values)} for rows of shape {self.B.shape(s.values)}; "
                "accepted by on_rows is a transformation that treats each element by itself"
            )
        if s.padded:
            values, _ = modes.run(_without_sentinels, self.B, (values, s.indices), rows=s.dense_shape[0])
        return IndexedSlices._trusted(self.B, values, s.indices, s.dense_shape, coalesced=s.coalesced, padded=s.padded)


def named_rows(s: IndexedSlices) -> NamedRows:
    """Return the distinct rows of slices, which only include sentinels in traced code."""
    return NamedRows(coalesce(s))


def _without_sentinels(B: Backend, values: Array, indices: Array, *, rows: int) -> tuple[Array, Array]:
    mask = B.in_range(indices, rows)
    return B.where(B.as_column(mask, values), values, B.zeros_like(values)), indices


def add_to_rows(weights: Array, update: IndexedSlices, *, donate: bool) -> Array:
    """Return weights plus update: each row is added once, in the wider type, and rounded once."""
    rows = named_rows(update)
    B = rows.B
    new = modes.run(_add, B, (rows.read(weights), rows.slices.values), dtype=B.dtype(weights))
    with B.scope():
        return B.set_rows(weights, rows.slices.indices, new, donate=donate)


def _add(B: Backend, x: Array, y: Array, *, dtype: str) -> Array:
    return B.astype(B.widen(x) + B.widen(y), dtype)


# ---------------------------------------------------------------------- optax's arithmetic
def densely(inner: Any, updates: Any, state: Any, params: Any, extra: Mapping[str, Any]) -> tuple[Any, Any]:
    """Run inner on dense gradients: every row moves as in optax."""
    return inner.update(map_slices(to_dense, updates), state, weights_of(params), **extra)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Part:
    """An array of a transformation's state, and its rows for a step."""

    whole: Array
    rows: NamedRows


def on_named_rows(inner: Any, updates: Any, state: Any, params: Any, extra: Mapping[str, Any]) -> tuple[Any, Any]:
    """Run inner on the rows of slices in gradients, state and parameters, and on whole dense leaves.

    optax.tree_map_params finds the state's arrays for each leaf.
    """
    rows = map_slices(named_rows, updates)
    some = jax.tree.map(lambda x: x.slices.values if isinstance(x, NamedRows) else x, rows)
    weights = None if params is None else jax.tree.map(_rows_of, rows, weights_of(params), is_leaf=_is_none)
    try:
        parts = optax.tree_map_params(inner, _part, state, rows, is_leaf=_is_masked)
    except (AssertionError, AttributeError, TypeError) as error:
        error.add_note(
            "on_rows: optax calls functions of labels and masks with a placeholder for the parameters; accepted are "
            "functions that map over leaves (jax.tree_util.tree_map_with_path), or labels: label_fn(params)"
        )
        raise
    read = jax.tree.map(lambda x: x.rows.read(x.whole) if isinstance(x, _Part) else x, parts)
    stepped, after = inner.update(some, read, weights, **extra)
    written = jax.tree.map(lambda x, new: x.rows.write(x.whole, new) if isinstance(x, _Part) else new, parts, after)
    return jax.tree.map(lambda x, new: x.update(new) if isinstance(x, NamedRows) else new, rows, stepped), written


def _part(x: Any, rows: Any) -> Any:
    """Select the rows of a table's arrays; numbers, one per table, and dense leaves stay as they are."""
    if not isinstance(rows, NamedRows) or _is_masked(x) or not jnp.ndim(x):
        return x
    return _Part(rows.holding(x, "state"), rows)


def _is_none(x: Any) -> bool:
    """Return True for the gradient of a leaf that is not differentiated, such as an Equinox module's function."""
    return x is None


def _is_masked(x: Any) -> bool:
    """Return True for the state of a leaf that a masked transformation leaves out."""
    return isinstance(x, optax.MaskedNode)


def _rows_of(rows: Any, weights: Array) -> Array:
    if not isinstance(rows, NamedRows):
        return weights
    shape = rows.B.shape(weights)
    if shape != rows.slices.dense_shape:
        raise ValueError(f"updates: got {rows.slices!r} for a parameter of shape {shape}; accepted is one shape")
    return rows.read(weights)


# ---------------------------------------------------------------------- islices' arithmetic
def step_rows(optimizer: Optimizer, grad: Any, state: Any) -> tuple[Any, Any]:
    """Return one table's update and state: the optimizer's addition to the rows, or to all rows for a dense gradient.

    All rules used here end in w - x or w + x, so a step on w = 0 gives exactly -x or x. `add_to_rows` adds this to w,
    with the bits of a step on w itself. This is why the update of 16-bit tables is float32.
    """
    if isinstance(grad, IndexedSlices) and optimizer.rows == "all":
        grad = to_dense(grad)
    if not isinstance(grad, IndexedSlices):
        B = get_backend(grad)
        gradient = B.widen(jnp.atleast_1d(grad))  # an optimizer's tables have rows
        update, state = optimizer.step(B.zeros_like(gradient), gradient, state)
        return jnp.reshape(update, jnp.shape(grad)), state
    rows = named_rows(grad)
    B, gradient = rows.B, rows.B.widen(rows.slices.values)
    whole = {name: x for name, x in state.items() if name != "step"}
    read = {name: rows.read(rows.holding(x, f"state[{name!r}]")) for name, x in whole.items()}
    update, after = optimizer.step(B.zeros_like(gradient), gradient, {"step": state["step"], **read})
    written = {name: rows.write(x, after[name]) for name, x in whole.items()}
    return rows.update(update), {"step": after["step"], **written}
