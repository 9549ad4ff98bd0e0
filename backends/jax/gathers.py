"""Row-sparse gradients of functions of plain arrays: rows are found where a parameter is read by a gather.

The function is traced once. `Plan` walks the jaxpr by a table from primitive to rule. Each read of whole rows of a
marked parameter is a *slot*; what else reads the parameter is recorded as an other use. `evaluate` runs the jaxpr with
one more input of zeros per slot, whose gradient is that of the rows. So no array of the parameter's size is made, and a
layer reads its parameter as it likes. May import: `jax`, `numpy`, the core, this
folder.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util
from jax.extend.core import Literal

from islices.arguments import show
from islices.backend import Backend
from islices.backends.jax import precision, segments
from islices.backends.jax.differentiation import Aux, check_unchecked
from islices.backends.jax.lookups import attach
from islices.backends.jax.memory import Tracer
from islices.backends.jax.rewriting import KEPT, as_jax, bind, is_wide, last_uses, opened
from islices.registry import describe
from islices.slices import IndexedSlices

__all__ = ["value_and_grad"]

#: What may be stored by rows.
FLOATS = ("float16", "bfloat16", "float32", "float64")


# ---------------------------------------------------------------------- the transformation
def value_and_grad(B: Backend, fn: Callable[[Any], tuple[Any, Any]], tree: Any, sparse: Any) -> tuple[Any, Any, Any]:
    """See `Backend.differentiate_rows`."""
    paths, structure = tree_util.tree_flatten_with_path(tree)
    names = [tree_util.keystr(path) for path, _ in paths]
    leaves = [x for _, x in paths]
    floats = [k for k, x in enumerate(leaves) if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, np.inexact)]
    marked = _marked(tree, names, leaves, floats, sparse)
    aux = Aux()

    def traced(arrays: list[Any]) -> tuple[Any, list[Any]]:
        full = list(leaves)
        for k, x in zip(floats, arrays, strict=True):
            full[k] = x
        loss, rest = fn(structure.unflatten(full))  # type: ignore[attr-defined]
        return jnp.reshape(loss, ()), aux.take_apart(rest)

    arrays = [leaves[k] for k in floats]
    try:
        closed = jax.make_jaxpr(traced)(arrays)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        error.add_note("islices.value_and_grad traces fn, as jax.jit does: it cannot look at the values of its arrays")
        raise
    check_unchecked(closed.jaxpr)
    plan = _plan(closed.jaxpr, floats, marked)
    if isinstance(sparse, str):
        marked = {k for k in marked if _pays(plan, k, leaves[k], sparse)}
        plan = _plan(closed.jaxpr, floats, marked)
    elif plan.others:
        leaf, use = next(iter(plan.others.items()))
        raise TypeError(
            f"sparse: got the leaf {names[leaf]!r}, which is used by {use.by}{use.line}; accepted are leaves that fn "
            "reads only by rows (w[ids], jnp.take(w, ids, axis=0)). Leave it out, or use sparse="
            '"auto": its gradient is dense then'
        )
    dense = [k for k in floats if k not in marked]

    def run(variables: list[Any], deltas: list[Any]) -> tuple[Any, tuple[list[Any], list[Any]]]:
        given = dict(zip(dense, variables, strict=True))
        (loss, *rest), found = evaluate(plan, closed.consts, [given.get(k, leaves[k]) for k in floats], deltas)
        rest = [leaves[m.leaf] if m is not None else x for m, x in zip(plan.outputs[1:], rest, strict=True)]
        return loss, (rest, found)

    deltas = [lax.full(slot.shape, 0, slot.dtype) for slot in plan.slots]
    taking = jax.value_and_grad(run, argnums=(0, 1), has_aux=True)
    (loss, (rest, found)), (gradients, upstreams) = taking([leaves[k] for k in dense], deltas)
    out: list[Any] = [None] * len(leaves)
    for k, gradient in zip(dense, gradients, strict=True):
        out[k] = gradient
    for k in marked:
        parts = [(g, i) for s, g, i in zip(plan.slots, upstreams, found, strict=True) if s.leaf == k]
        out[k] = _slices(B, leaves[k], parts)
    grads = structure.unflatten(out)  # type: ignore[attr-defined]
    return loss, aux.put_together(rest, [None] * len(rest)), grads


def _marked(tree: Any, names: list[str], leaves: list[Any], floats: list[int], sparse: Any) -> set[int]:
    """The numbers of the leaves that sparse marks."""
    if isinstance(sparse, str):
        if sparse not in ("auto", "always"):
            accepted = '"auto", "always", a function of a path, or a pytree of bools'
            raise ValueError(f"sparse: got {sparse!r}; accepted is {accepted}")
        return {k for k in floats if leaves[k].ndim >= 2 and leaves[k].dtype.name in FLOATS}
    if callable(sparse):
        flags = [sparse(name) for name in names]
    else:
        flags = []
        try:
            tree_util.tree_map(lambda flag, part: flags.extend([flag] * len(tree_util.tree_leaves(part))), sparse, tree)
        except ValueError as error:
            raise ValueError(
                f"sparse: got {describe(sparse)} of another structure than the differentiated arguments; accepted are "
                f"bools for their leaves {show(names)} or for containers of them"
            ) from error
    for name, flag in zip(names, flags, strict=True):
        if not isinstance(flag, (bool, np.bool_)):
            raise TypeError(f"sparse: got {describe(flag)} for the leaf {name!r}; accepted is a bool")
    marked = {k for k, flag in enumerate(flags) if flag}
    if callable(sparse) and not marked:
        raise ValueError(f"sparse: got a function that marks none of the leaves {show(names)}; accepted is one or more")
    for k in sorted(marked):
        x = leaves[k]
        if k not in floats or x.dtype.name not in FLOATS or x.ndim == 0:
            raise TypeError(
                f"sparse: got the leaf {names[k]!r}, {describe(x)}; accepted is a float array of one or more dimensions"
            )
    return marked


def _plan(jaxpr: Any, floats: list[int], marked: set[int]) -> Plan:
    marks = (Marked(k, v.aval.dtype) if k in marked else None for k, v in zip(floats, jaxpr.invars, strict=True))
    return Plan(jaxpr, tuple(marks))


def _pays(plan: Plan, leaf: int, x: Any, sparse: str) -> bool:
    """True if the leaf is read only by rows, and with "auto" by fewer than it has."""
    reads = [slot.reads for slot in plan.slots if slot.leaf == leaf]
    return bool(reads) and leaf not in plan.others and (sparse == "always" or sum(reads) < x.shape[0])


def _slices(B: Backend, table: Any, parts: list[tuple[Any, Any]]) -> IndexedSlices:
    """The stored rows of all slots. Those without a row are dropped, or become padding in traced code."""
    rows, row_shape = table.shape[0], table.shape[1:]
    if not parts:
        values, indices = lax.full((0, *row_shape), 0, table.dtype), lax.full((0,), 0, np.int32)
        return IndexedSlices._trusted(B, values, indices, table.shape)
    dtype = np.result_type(*(i.dtype for _, i in parts))
    values = _concatenated([g.reshape(-1, *row_shape) for g, _ in parts])
    indices = _concatenated([i.reshape(-1).astype(dtype) for _, i in parts])
    values, indices = B.select(values, indices, indices < rows, rows)
    padded = isinstance(values, Tracer) or isinstance(indices, Tracer)
    return IndexedSlices._trusted(B, values, indices, table.shape, padded=padded)


def _concatenated(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays)


# ---------------------------------------------------------------------- plans
class Marked(NamedTuple):
    """A variable that holds a marked leaf, and the casts that its rows get once they are read."""

    leaf: int
    dtype: Any
    casts: tuple[Any, ...] = ()


Marks = tuple[Marked | None, ...]


@dataclass(frozen=True)
class Slot:
    """One read of rows of a leaf."""

    leaf: int
    shape: tuple[int, ...]  # (*loops, n, *row_shape)
    reads: int  # the product of the loops and n
    dtype: Any
    ids: jax.ShapeDtypeStruct  # (*loops, n); rows stands for no row
    rows: int

    def repeated(self, length: int) -> Slot:
        """The slot of a loop's body as the loop sees it."""
        ids = jax.ShapeDtypeStruct((length, *self.ids.shape), self.ids.dtype)
        return replace(self, shape=(length, *self.shape), reads=length * self.reads, ids=ids)


@dataclass(frozen=True)
class Step:
    """The steps of an equation that reads a marked leaf: ``run(values, deltas)`` returns (outputs, ids of each slot).

    outputs says which results are marked leaves again; others has the leaves with other uses in nested jaxprs.
    """

    run: Callable[..., Any]
    outputs: Marks
    slots: list[Slot] = field(default_factory=list)
    others: dict[int, Use] = field(default_factory=dict)


class Use(NamedTuple):
    """A use of a leaf other than by rows."""

    by: str  # the primitive, and what is known of it
    line: str = ""  # " at file:line" of the user, where it is known


class Plan:
    """The static plan of a jaxpr some of whose inputs are marked leaves."""

    def __init__(self, jaxpr: Any, marks: Marks) -> None:
        self.jaxpr = jaxpr
        self.slots: list[Slot] = []
        self.others: dict[int, Use] = {}  # by leaf, where it is first used other than by rows
        self.steps: list[tuple[Any, Step | None, slice, bool, list[Any]]] = []
        self.marks = {v: m for v, m in zip(jaxpr.invars, marks, strict=True) if m is not None}
        needed = _needed(jaxpr)
        for eqn, over in zip(jaxpr.eqns, last_uses(jaxpr), strict=True):
            if id(eqn) not in needed:
                continue
            start = len(self.slots)
            step = self._step(eqn)
            if step is not None:
                self.slots += step.slots
                self.marks.update((v, m) for v, m in zip(eqn.outvars, step.outputs, strict=True) if m is not None)
            self.steps.append((eqn, step, slice(start, len(self.slots)), is_wide(eqn), over))
        self.outputs: Marks = tuple(map(self.mark, jaxpr.outvars))

    def mark(self, v: Any) -> Marked | None:
        return None if isinstance(v, Literal) else self.marks.get(v)

    def _step(self, eqn: Any) -> Step | None:
        marks = tuple(map(self.mark, eqn.invars))
        if all(m is None for m in marks):
            return None
        rule = RULES.get(eqn.primitive.name)
        step = None if rule is None else rule(eqn, marks)
        if step is None:
            why = f" ({REFUSED[eqn.primitive.name]})" if eqn.primitive.name in REFUSED else ""
            others = {m.leaf: Use(eqn.primitive.name + why) for m in marks if m is not None}
        else:
            others = step.others
        for leaf, use in others.items():
            self.others.setdefault(leaf, use if use.line else use._replace(line=_line(eqn)))
        return step


def _needed(jaxpr: Any) -> set[int]:
    """The ids of equations that have effects or results that are read."""
    live = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    needed = set()
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or any(v in live for v in eqn.outvars):
            needed.add(id(eqn))
            live.update(v for v in eqn.invars if not isinstance(v, Literal))
    return needed


def _line(eqn: Any) -> str:
    """The user's line that made an equation; "" in JAX's functions, whose jaxprs are kept from one call to the next."""
    found = eqn.source_info.traceback
    frames = [] if found is None else traceback.extract_tb(found.as_python_traceback())
    outside = [f for f in frames if not f.filename.startswith(_OWN)]
    users = [f for f in outside if "site-packages" not in f.filename] or outside
    return f" at {users[-1].filename}:{users[-1].lineno}" if users else ""  # the outermost call is the first


_OWN = tuple(os.path.dirname(path or "") + os.sep for path in (jax.__file__, np.__file__, __file__))


def evaluate(plan: Plan, consts: Sequence[Any], args: Sequence[Any], deltas: Sequence[Any]) -> tuple[Any, list[Any]]:
    """(outputs, ids of each slot) of a jaxpr; None stands for an output that is a marked leaf."""
    jaxpr = plan.jaxpr
    consts = [as_jax(c, v) for c, v in zip(consts, jaxpr.constvars, strict=True)]
    env: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    tables = {m.leaf: env[v] for v, m in plan.marks.items() if v in env}
    found: list[Any] = []
    for eqn, step, slots, wide, dead in plan.steps:
        values = [as_jax(v.val, v) if isinstance(v, Literal) else env[v] for v in eqn.invars]
        with eqn.ctx.manager, precision.wide() if wide else contextlib.nullcontext():
            if step is None:
                outs = bind(eqn, values)
            else:
                outs, new = step.run(values, deltas[slots])
                found += new
        for v, x in zip(eqn.outvars, outs, strict=True):
            mark = plan.mark(v)
            env[v] = x if mark is None else tables[mark.leaf]
        for v in dead:
            env.pop(v, None)
    outputs = [
        as_jax(v.val, v) if isinstance(v, Literal) else None if m is not None else env[v]
        for v, m in zip(jaxpr.outvars, plan.outputs, strict=True)
    ]
    return outputs, found


def _cast(x: Any, mark: Marked | None) -> Any:
    for dtype in () if mark is None else mark.casts:
        x = lax.convert_element_type(x, dtype)
        if dtype.itemsize == 2:  # XLA may skip a rounding to 16 bits that is widened again right after
            x = lax.optimization_barrier(x)
    return x


# ---------------------------------------------------------------------- rules: reads of rows
def _gather(eqn: Any, marks: Marks) -> Step | None:
    mark, numbers, sizes = marks[0], eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape, starts = eqn.invars[0].aval.shape, eqn.invars[1].aval
    axes, mode = numbers.start_index_map, eqn.params["mode"].name
    whole = shape[0] > 0 and sizes[0] == 1 and tuple(sizes[1:]) == shape[1:]
    if mark is None or not whole or 0 not in axes or numbers.operand_batching_dims or mode not in _MODES:
        return None
    if mode == "FILL_OR_DROP" and not _fills(eqn.params["fill_value"], mark):
        return None
    offsets, batch = numbers.offset_dims, starts.shape[:-1]
    dtype = _index_dtype(starts.dtype)

    def ids(start: Any) -> Any:
        start = start.reshape(-1, start.shape[-1])
        row = _signed(start[:, axes.index(0)], dtype)
        if mode == "CLIP":
            return jnp.clip(row, 0, shape[0] - 1)
        inside = (row >= 0) & (row < shape[0])
        if mode == "FILL_OR_DROP":  # a start of another axis fits only at its beginning
            for k, axis in enumerate(axes):
                inside &= start[:, k] == 0 if axis else inside
        return jnp.where(inside, row, shape[0])

    def read(table: Any, start: Any) -> Any:
        return eqn.primitive.bind(table, start, **eqn.params)

    def spread(delta: Any) -> Any:
        out = eqn.outvars[0].aval.shape
        delta = delta.reshape(*batch, *(out[k] for k in offsets))
        return jnp.moveaxis(delta, range(len(batch), delta.ndim), offsets)

    return _reading(eqn, mark, int(np.prod(batch)), dtype, read, ids, spread)


_MODES = ("CLIP", "FILL_OR_DROP", "PROMISE_IN_BOUNDS")


def _fills(value: Any, mark: Marked) -> bool:
    """True if reading before the casts fills absent rows with the same number as reading behind them."""
    if value is None or not mark.casts:  # NaN
        return True
    value = np.asarray(value)
    return bool(value == 0 or np.isnan(value))


def _dynamic_slice(eqn: Any, marks: Marks) -> Step | None:
    mark, shape, sizes = marks[0], eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    if mark is None or tuple(sizes[1:]) != shape[1:]:
        return None
    dtype = _index_dtype(eqn.invars[1].aval.dtype)

    def ids(start: Any, *zeros: Any) -> Any:
        return jnp.clip(_signed(start, dtype), 0, shape[0] - sizes[0]) + lax.iota(dtype, sizes[0])

    def read(table: Any, *starts: Any) -> Any:
        return eqn.primitive.bind(table, *starts, **eqn.params)

    return _reading(eqn, mark, sizes[0], dtype, read, ids, lambda delta: delta)


def _slice(eqn: Any, marks: Marks) -> Step | None:
    mark, shape = marks[0], eqn.invars[0].aval.shape
    starts, limits, strides = (eqn.params[k] for k in ("start_indices", "limit_indices", "strides"))
    strides = strides or (1,) * len(shape)
    if mark is None or any(starts[1:]) or tuple(limits[1:]) != shape[1:] or set(strides[1:]) - {1}:
        return None
    count, dtype = eqn.outvars[0].aval.shape[0], _index_dtype(np.dtype("int32"), shape[0])

    def ids() -> Any:
        return lax.iota(dtype, count) * np.asarray(strides[0], dtype) + np.asarray(starts[0], dtype)

    def read(table: Any) -> Any:
        return eqn.primitive.bind(table, **eqn.params)

    return _reading(eqn, mark, count, dtype, read, ids, lambda delta: delta)


def _reading(
    eqn: Any, mark: Marked, count: int, dtype: Any, read: Callable[..., Any], ids: Any, spread: Callable[[Any], Any]
) -> Step:
    """The step of one slot of count rows. spread gives a delta (count, *row_shape) the shape of what is read."""
    table = eqn.invars[0].aval
    segments.check_sentinel(table.shape[0], dtype)
    found = jax.ShapeDtypeStruct((count,), dtype)
    slot = Slot(mark.leaf, (count, *table.shape[1:]), count, mark.dtype, found, table.shape[0])

    def run(values: Any, deltas: Any) -> tuple[Any, list[Any]]:
        leaf, *starts = values
        return [_cast(attach(read(leaf, *starts), spread(deltas[0])), mark)], [ids(*starts)]

    return Step(run, (None,), [slot])


def _index_dtype(dtype: Any, rows: int = 0) -> Any:
    """int32 or int64: the type of stored row numbers that holds a read's starts."""
    wide = np.dtype(dtype).itemsize == 8 or rows > np.iinfo(np.int32).max
    return np.dtype("int64" if wide else "int32")


def _signed(x: Any, dtype: Any) -> Any:
    """Starts in a signed type; those that it cannot hold become its largest number."""
    if jnp.issubdtype(x.dtype, np.unsignedinteger) and x.dtype.itemsize >= dtype.itemsize:
        x = jnp.minimum(x, np.asarray(np.iinfo(dtype).max, x.dtype))
    return x.astype(dtype)


# ---------------------------------------------------------------------- rules: a leaf handed on
def _same(eqn: Any, marks: Marks) -> Step | None:
    """The leaf itself: an operation that changes no number, and is left out."""
    return Step(lambda values, deltas: (list(values), []), marks)


def _barrier(eqn: Any, marks: Marks) -> Step | None:
    def run(values: Any, deltas: Any) -> tuple[Any, list[Any]]:
        others = iter(bind(eqn, [x for x, m in zip(values, marks, strict=True) if m is None]))
        return [next(others) if m is None else x for x, m in zip(values, marks, strict=True)], []

    return Step(run, marks)


def _convert(eqn: Any, marks: Marks) -> Step | None:
    (mark,), dtype = marks, np.dtype(eqn.params["new_dtype"])
    if mark is None or dtype.name not in FLOATS:
        return None
    return Step(lambda values, deltas: (list(values), []), (mark._replace(casts=(*mark.casts, dtype)),))


def _stop_gradient(eqn: Any, marks: Marks) -> Step | None:
    return Step(lambda values, deltas: ([lax.stop_gradient(_cast(values[0], marks[0]))], []), (None,))


# ---------------------------------------------------------------------- rules: equations that hold jaxprs
def _inline(eqn: Any, marks: Marks) -> Step | None:
    jaxpr, consts = opened(eqn.params["call_jaxpr"])
    plan = Plan(jaxpr, marks)
    return Step(lambda values, deltas: evaluate(plan, consts, values, deltas), plan.outputs, plan.slots, plan.others)


def _jit(eqn: Any, marks: Marks) -> Step | None:
    # shardings and donation, which change no value, are left to the compiler
    return _jitted(eqn.params["jaxpr"], marks, eqn.params["inline"])


# kept by the jaxpr, which JAX's own cache makes the same object at each call: an eager step does not compile anew
@lru_cache(KEPT)
def _jitted(jaxpr: Any, marks: Marks, inline: bool) -> Step:
    plan = Plan(jaxpr.jaxpr, marks)
    run = jax.jit(lambda values, deltas: evaluate(plan, jaxpr.consts, values, deltas), inline=inline)
    return Step(run, plan.outputs, plan.slots, plan.others)


def _checkpoint(eqn: Any, marks: Marks) -> Step | None:
    return _rematerialised(eqn.params["jaxpr"], marks, eqn.params["prevent_cse"], eqn.params["policy"])


@lru_cache(KEPT)
def _rematerialised(jaxpr: Any, marks: Marks, prevent_cse: Any, policy: Any) -> Step:
    jaxpr, consts = opened(jaxpr)
    plan = Plan(jaxpr, marks)

    def body(values: Any, deltas: Any) -> tuple[Any, list[Any]]:
        return evaluate(plan, consts, values, deltas)

    run = jax.checkpoint(body, prevent_cse=prevent_cse, policy=policy)
    return Step(run, plan.outputs, plan.slots, plan.others)


def _cond(eqn: Any, marks: Marks) -> Step | None:
    return _switch(eqn.params["branches"], marks[1:])


@lru_cache(KEPT)
def _switch(branches: tuple[Any, ...], marks: Marks) -> Step:
    plans = [Plan(b.jaxpr, marks) for b in branches]
    slots = [slot for plan in plans for slot in plan.slots]
    ends = np.cumsum([0, *(len(plan.slots) for plan in plans)]).tolist()

    def branch(k: int, values: Any, deltas: Any) -> tuple[Any, list[Any]]:
        outs, found = evaluate(plans[k], branches[k].consts, values, deltas[ends[k] : ends[k + 1]])
        none = [lax.full(slot.ids.shape, slot.rows, slot.ids.dtype) for slot in slots]
        return outs, [*none[: ends[k]], *found, *none[ends[k + 1] :]]

    runs = [partial(branch, k) for k in range(len(plans))]

    def run(values: Any, deltas: Any) -> tuple[Any, list[Any]]:
        index, *values = values
        return lax.switch(index, runs, values, deltas)  # type: ignore[no-any-return]

    return Step(run, (None,) * len(branches[0].jaxpr.outvars), slots, _uses(plans, "cond"))


def _scan(eqn: Any, marks: Marks) -> Step | None:
    p = eqn.params
    if any(m is not None for m in marks[p["num_consts"] :]):
        return None
    how = tuple((key, p[key]) for key in ("reverse", "length", "unroll"))
    return _looped(p["jaxpr"], marks, p["num_consts"], p["num_carry"], how)


@lru_cache(KEPT)
def _looped(jaxpr: Any, marks: Marks, num_consts: int, num_carry: int, how: tuple[tuple[str, Any], ...]) -> Step:
    plan = Plan(jaxpr.jaxpr, marks)

    def run(values: Any, deltas: Any) -> tuple[Any, list[Any]]:
        shared, carry, rows = values[:num_consts], values[num_consts:][:num_carry], values[num_consts + num_carry :]

        def body(carry: Any, x: Any) -> Any:
            outs, found = evaluate(plan, jaxpr.consts, [*shared, *carry, *x[0]], x[1])
            return outs[:num_carry], (outs[num_carry:], found)

        carry, (ys, found) = lax.scan(body, carry, (rows, deltas), **dict(how))
        return [*carry, *ys], found

    slots = [slot.repeated(dict(how)["length"]) for slot in plan.slots]
    return Step(jax.jit(run), (None,) * len(plan.outputs), slots, _uses([plan], "scan"))


def _uses(plans: Sequence[Plan], name: str) -> dict[int, Use]:
    """The other uses of plans whose outputs may be no marked leaves."""
    returned = {m.leaf: Use(f"{name} (as a result)") for plan in plans for m in plan.outputs if m is not None}
    for plan in plans:
        returned.update(plan.others)
    return returned


#: Rules by primitive: (equation, marks of its operands) -> how it runs, or None where it is another use.
RULES: dict[str, Callable[[Any, Marks], Step | None]] = {
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "slice": _slice,
    "convert_element_type": _convert,
    "copy": _same,
    "copy_p": _same,
    "name": _same,
    "optimization_barrier": _barrier,
    "stop_gradient": _stop_gradient,
    "jit": _jit,
    "pjit": _jit,
    "closed_call": _inline,
    "core_call": _inline,
    "checkpoint": _checkpoint,
    "remat": _checkpoint,
    "remat2": _checkpoint,
    "cond": _cond,
    "scan": _scan,
}
#: Why an equation that holds jaxprs has no rule.
REFUSED = {
    "scan": "as what it carries or scans over; close over the leaf",
    "while": "which has no reverse-mode derivative; use lax.scan, or fori_loop with a fixed number of steps",
    "custom_jvp_call": "a function with a derivative of its own; read the rows before it",
    "custom_vjp_call": "a function with a derivative of its own; read the rows before it",
    "custom_vjp_call_jaxpr": "a function with a derivative of its own; read the rows before it",
    "shard_map": "whose ranks' gradients are not told apart; call value_and_grad within it",
}
