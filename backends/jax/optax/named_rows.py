"""Run transformations on the rows of sparse leaves in trees.

This module contains no formulas of optimizers. optax or an `islices.optim.Optimizer` computes the steps from arrays of
these rows. SPEC clauses 16 and 17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from islices.backend import Array, Backend
from islices.core import modes
from islices.core.registry import describe, get_backend
from islices.core.rows import coalesce, to_dense
from islices.core.slices import IndexedSlices
from islices.core.slots import without_sentinels
from islices.embedding.table import Table
from islices.optim.optimizer import Optimizer


# ---------------------------------------------------------------------- trees
def is_leaf(x: object) -> bool:
    """Return True for slices and tables, which are single leaves in this package, although JAX flattens them to
    arrays."""
    return isinstance(x, (IndexedSlices, Table))


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of a tree. Slices and tables count as single leaves."""
    return jax.tree.leaves(tree, is_leaf=is_leaf)


def weights_of(params: Any) -> Any:
    """Replace each table in params by its array. optax makes the state of a transformation from the resulting tree."""
    return jax.tree.map(lambda x: x.weights if isinstance(x, Table) else x, params, is_leaf=is_leaf)


def map_slices(fn: Callable[[IndexedSlices], Any], tree: Any) -> Any:
    return jax.tree.map(lambda x: fn(x) if isinstance(x, IndexedSlices) else x, tree, is_leaf=is_leaf)


def checked(updates: Any) -> Any:
    """Return updates unchanged. Raise TypeError if `updates` contains a Table, or slices with arrays of another
    framework.

    If a transformation has changed the indices of slices, the slices raise ValueError when they are used. In traced
    code, the values of these slices become NaN instead (see `islices.backends.jax.pytree`).
    """
    for x in leaves_of(updates):
        if isinstance(x, Table) or (isinstance(x, IndexedSlices) and x.backend.name != "jax"):
            raise TypeError(f"updates: got {x!r}; accepted are gradients, JAX arrays and slices of these")
    return updates


def check_transformation(inner: Any, argument: str) -> Any:
    """Convert an optax transformation, or an optax.MultiSteps, to the form that accepts extra arguments. Raise
    TypeError for any other object."""
    if isinstance(inner, optax.MultiSteps):
        inner = inner.gradient_transformation()
    if not isinstance(inner, optax.GradientTransformation):
        raise TypeError(f"{argument}: got {describe(inner)}; accepted is an optax.GradientTransformation")
    return optax.with_extra_args_support(inner)


# ---------------------------------------------------------------------- rows
@dataclass(frozen=True)
class NamedRows:
    """The distinct rows of a gradient. The methods read and write these rows of an array. JAX treats an instance as a
    single leaf."""

    slices: IndexedSlices  # coalesced

    @property
    def B(self) -> Backend:
        return self.slices.backend

    def holding(self, x: Array, argument: str) -> Array:
        """Return x if it has the shape of the table, or one number per row of the table. Otherwise raise ValueError."""
        shape = self.slices.dense_shape
        if self.B.shape(x) not in (shape, shape[:1]):
            raise ValueError(
                f"{argument}: got an array of shape {self.B.shape(x)} for {self.slices!r}; accepted are "
                "transformations that treat each element by itself, and their state for a table of this shape"
            )
        return x

    def read(self, x: Array) -> Array:
        """Return the rows of `x` that the gradient contains. If the step is differentiated, these rows are
        constants."""
        with self.B.scope():
            return self.B.stop_gradient(self.B.read_rows(x, self.slices.indices))

    def write(self, x: Array, rows: Array) -> Array:
        """Replace the rows of `x` that the gradient contains by `rows`, and return the result."""
        with self.B.scope():
            return self.B.set_rows(x, self.slices.indices, rows)

    def update(self, values: Array) -> IndexedSlices:
        """Return slices with the same rows and new values. Padding slots get zeros. Raise ValueError if the values have
        the wrong shape."""
        s = self.slices
        if self.B.shape(values) != self.B.shape(s.values):
            raise ValueError(
                f"inner: got updates of shape {self.B.shape(values)} for rows of shape {self.B.shape(s.values)}; "
                "accepted by on_rows is a transformation that treats each element by itself"
            )
        if s.padded:
            values = modes.run(without_sentinels, self.B, (values, s.indices), rows=s.dense_shape[0])
        return IndexedSlices._trusted(self.B, values, s.indices, s.dense_shape, coalesced=s.coalesced, padded=s.padded)


def named_rows(s: IndexedSlices) -> NamedRows:
    """Sum the duplicates of slices, and return the distinct rows. In traced code, the rows may include the sentinel."""
    return NamedRows(coalesce(s))


def add_to_rows(weights: Array, update: IndexedSlices) -> Array:
    """Sum the duplicates of an update, and return the weights plus these sums. 16-bit numbers are added in float32, and
    each new row is rounded once to the dtype of the weights."""
    rows = named_rows(update)
    B = rows.B
    new = modes.run(_add, B, (rows.read(weights), rows.slices.values), dtype=B.dtype(weights))
    return rows.write(weights, new)


def _add(B: Backend, x: Array, y: Array, *, dtype: str) -> Array:
    return B.astype(B.widen(x) + B.widen(y), dtype)


# ---------------------------------------------------------------------- optax's arithmetic
@dataclass(frozen=True)
class _Part:
    """An array of a transformation's state, and the rows of this array that a step uses."""

    whole: Array
    rows: NamedRows


def on_named_rows(inner: Any, updates: Any, state: Any, params: Any, extra: Mapping[str, Any]) -> tuple[Any, Any]:
    """Run a step of `inner` on the rows of slices and on whole dense leaves. Return (updates, state).

    optax.tree_map_params finds the arrays of the state that belong to a leaf. If the leaf is slices, `inner` gets only
    the gradient's rows of these arrays and of the leaf's parameter.
    """
    rows = map_slices(named_rows, updates)
    some = jax.tree.map(lambda x: x.slices.values if isinstance(x, NamedRows) else x, rows)
    # the gradient is None if a leaf is not differentiated, such as a function in an Equinox module
    weights = None if params is None else jax.tree.map(_read, rows, weights_of(params), is_leaf=lambda x: x is None)
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


def _read(rows: Any, weights: Array) -> Array:
    return rows.read(rows.holding(weights, "params")) if isinstance(rows, NamedRows) else weights


def _part(x: Any, rows: Any) -> Any:
    """Convert an array of a table's state to a `_Part`. Return a placeholder, a single number or the state of a dense
    leaf unchanged."""
    if not isinstance(rows, NamedRows) or _is_masked(x) or not jnp.ndim(x):
        return x
    return _Part(rows.holding(x, "state"), rows)


def _is_masked(x: Any) -> bool:
    """Return True for optax's placeholder. The placeholder is the state of a leaf to which a masked transformation does
    not apply."""
    return isinstance(x, optax.MaskedNode)


# ---------------------------------------------------------------------- islices' arithmetic
def step_rows(optimizer: Optimizer, grad: Any, state: Any) -> tuple[Any, Any]:
    """Return (the update, the new state) of one table. The update contains the rows of the gradient, or all rows if the
    gradient is dense or the optimizer has rows="all".

    `from_optim` accepts only rules that end in w - x or w + x. So a step from w = 0 returns exactly -x or x. If
    `add_to_rows` adds this update to w, the result has the same bits as a step from w. The same is true of 16-bit
    tables, because the updates of 16-bit tables are float32.
    """
    if isinstance(grad, IndexedSlices) and optimizer.rows == "all":
        grad = to_dense(grad)
    if not isinstance(grad, IndexedSlices):
        B = get_backend(grad)
        gradient = B.widen(jnp.atleast_1d(grad))  # optimizers need tables with at least one axis
        update, state = optimizer.step(B.zeros_like(gradient), gradient, state)
        return jnp.reshape(update, jnp.shape(grad)), state
    rows = named_rows(grad)
    B, gradient = rows.B, rows.B.widen(rows.slices.values)
    whole = {name: x for name, x in state.items() if name != "step"}
    read = {name: rows.read(rows.holding(x, f"state[{name!r}]")) for name, x in whole.items()}
    update, after = optimizer.step(B.zeros_like(gradient), gradient, {"step": state["step"], **read})
    written = {name: rows.write(x, after[name]) for name, x in whole.items()}
    return rows.update(update), {"step": after["step"], **written}
