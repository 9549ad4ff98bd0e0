"""Evaluate a jaxpr with one additional input of zeros for each read of rows of a marked parameter.

`Plan` goes through the equations of the jaxpr, and applies the rule for each primitive. Each read of whole rows of a
marked parameter is a *slot*. For a Table, uses of the weights as an array are slots as well (see `tables`). For each
marked parameter, the plan also records the first use that is not a slot. `evaluate` runs the jaxpr with an additional
input for each slot. The gradient of this input is the gradient of the slot's values. May import: `jax`, `numpy`, this
folder.
"""

from __future__ import annotations

import contextlib
import math
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal
from jax.sharding import PartitionSpec

from islices.backends.jax import precision, row_reads, tables
from islices.backends.jax.host_views import Tracer
from islices.backends.jax.row_reads import Evaluation, Marked, Marks, Outcome, Rule, Slot, Use, bind, constant
from islices.backends.jax.tables import Operand, TableWeights

#: The largest number of rewritten nested functions in each cache. Each function keeps its compiled code in memory.
KEPT = 128

Wanted = tuple[bool, ...]


class Plan:
    """A plan for the evaluation of a jaxpr. Some of the jaxpr's inputs are marked leaves.

    `wanted` contains a flag for each output, which is True if the output may have a gradient. If `wanted` is None, all
    outputs may have a gradient.
    """

    def __init__(self, jaxpr: Any, marks: Marks, wanted: Sequence[bool] | None = None) -> None:
        self.jaxpr = jaxpr
        self.slots: list[Slot] = []
        self.others: dict[int, Use] = {}  # leaf -> the first use of the leaf that is not a read of rows
        self.steps: list[tuple[Any, Evaluation | None, slice, bool, set[Any]]] = []
        self.marks = {v: m for v, m in zip(jaxpr.invars, marks, strict=True) if m is not None}
        every = any(isinstance(m, TableWeights) for m in marks)  # even an unused lookup counts
        last, self.moving = _needed(jaxpr, wanted or (True,) * len(jaxpr.outvars), every)
        for eqn in jaxpr.eqns:
            if id(eqn) not in last:
                continue
            start = len(self.slots)
            step = self._step(eqn)
            if step is not None:
                self.slots += step.slots
                self.marks.update((v, m) for v, m in zip(eqn.outvars, step.outputs, strict=True) if m is not None)
            self.steps.append((eqn, step, slice(start, len(self.slots)), _is_wide(eqn), last[id(eqn)]))
        self.outputs: Marks = tuple(map(self.mark, jaxpr.outvars))

    def mark(self, v: Any) -> Any:
        return None if isinstance(v, Literal) else self.marks.get(v)

    def _step(self, eqn: Any) -> Evaluation | None:
        marks = tuple(map(self.mark, eqn.invars))
        kinds = [type(m) for m in marks if m is not None]
        if not kinds:
            return None
        name, wanted = eqn.primitive.name, tuple(v in self.moving for v in eqn.outvars)
        if not any(wanted):
            return constant(eqn, marks)
        step = None
        if name in NESTED:
            step = NESTED[name](eqn, marks, wanted)
        elif name in RULES[kinds[0]]:
            step = RULES[kinds[0]][name](eqn, marks)
        if set(kinds) == {Operand} and (step is None or step.others):
            step = tables.whole(eqn, marks)
        others = {} if step is None else step.others
        if step is None:
            why = f" ({REFUSED[name]})" if name in REFUSED else ""
            others = {m.leaf: Use(name + why) for m in marks if m is not None}
        for leaf, use in others.items():
            self.others.setdefault(leaf, use if use.line else use._replace(line=_line(eqn)))
        return step


def _needed(jaxpr: Any, wanted: Sequence[bool], every: bool) -> tuple[dict[int, set[Any]], set[Any]]:
    """Find the equations that are needed. Return two results. The first is a dict that maps the id() of each such
    equation to the variables that nothing reads after it. The second is the set of variables that may have a gradient.

    An equation is needed if it has effects or if its results are used. If `every` is True, all equations are needed,
    and all of their results may have a gradient.
    """
    live = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    moving = {v for v, w in zip(jaxpr.outvars, wanted, strict=True) if w and _moves(v)}
    last = {}
    for eqn in reversed(jaxpr.eqns):
        if every or eqn.effects or any(v in live for v in eqn.outvars):
            last[id(eqn)] = {v for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal)} - live
            live |= last[id(eqn)]
        if every:
            moving.update(eqn.outvars)
        elif eqn.primitive.name != "stop_gradient" and any(v in moving for v in eqn.outvars):
            moving.update(filter(_moves, eqn.invars))
    return last, moving


def _moves(v: Any) -> bool:
    return not isinstance(v, Literal) and jax.numpy.issubdtype(getattr(v.aval, "dtype", np.bool_), np.inexact)


def _line(eqn: Any) -> str:
    """Return " at file:line" for the user's code that made an equation. JAX caches the jaxprs of its functions, so
    sometimes only JAX's code is known. In this case, return ""."""
    found = eqn.source_info.traceback
    frames = [] if found is None else traceback.extract_tb(found.as_python_traceback())
    users = [f for f in frames if not f.filename.startswith(_LIBRARIES)]
    return f" at {users[-1].filename}:{users[-1].lineno}" if users else ""  # the outermost call is the first


#: This folder, and the folder of installed packages.
_LIBRARIES = (os.path.dirname(__file__), os.path.dirname(os.path.dirname(jax.__file__)))


def evaluate(plan: Plan, consts: Sequence[Any], args: Sequence[Any], deltas: Sequence[Any]) -> Outcome:
    """Evaluate a jaxpr. Return its outputs and, for each slot, the values that the read found, such as row numbers. If
    an output is a marked leaf but not an `Operand`, return None in place of this output."""
    jaxpr = plan.jaxpr
    consts = [_as_jax(c, v) for c, v in zip(consts, jaxpr.constvars, strict=True)]
    env: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    leaves = {m.leaf: env[v] for v, m in plan.marks.items() if v in env and not isinstance(m, Operand)}
    found: list[Any] = []

    def read(v: Any) -> Any:
        return _as_jax(v.val, v) if isinstance(v, Literal) else env[v]

    for eqn, step, slots, wide, dead in plan.steps:
        values = list(map(read, eqn.invars))
        with eqn.ctx.manager, precision.wide() if wide else contextlib.nullcontext():
            if step is None:
                outs = bind(eqn, values)
            else:
                outs, new = step.run(values, deltas[slots])
                found += new
        for v, x in zip(eqn.outvars, outs, strict=True):
            env[v] = leaves[plan.marks[v].leaf] if x is None else x
        for v in dead:
            env.pop(v, None)
    # with None, the leaf need not be copied out of a call
    kept = (mark is None or isinstance(mark, Operand) for mark in plan.outputs)
    return [read(v) if k else None for v, k in zip(jaxpr.outvars, kept, strict=True)], found


def _as_jax(x: Any, v: Any) -> Any:
    """Convert a constant of a jaxpr to a JAX array. In some versions of JAX, the constant is a NumPy array, which jit
    does not convert."""
    if not isinstance(x, np.ndarray):
        return x
    with precision.wide():
        return jax.numpy.asarray(x, v.aval.dtype)


def _is_wide(eqn: Any) -> bool:
    """Return True if an equation has 64-bit operands or results, which JAX would narrow outside of
    `precision.scope`."""
    return any(getattr(v.aval, "dtype", np.dtype(bool)) in _WIDE for v in (*eqn.invars, *eqn.outvars))


_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


# ---------------------------------------------------------------------- rules: equations that hold jaxprs
def _calling(wrap: Callable[..., Any], *options: str) -> Callable[[Any, Marks, Wanted], Evaluation]:
    """Return the rule for equations that call a jaxpr. ``wrap(function, **parameters)`` wraps the function that
    evaluates this jaxpr. `options` contains the names of the equation's parameters that `wrap` gets."""

    def rule(eqn: Any, marks: Marks, wanted: Wanted) -> Evaluation:
        return _called(eqn.params["jaxpr"], marks, wanted, wrap, tuple((name, eqn.params[name]) for name in options))

    return rule


# JAX's cache returns the same jaxpr at each call. So this cache finds the function, and an eager step does not compile
# it again.
@lru_cache(KEPT)
def _called(
    jaxpr: Any, marks: Marks, wanted: Wanted, wrap: Callable[..., Any], options: tuple[tuple[str, Any], ...]
) -> Evaluation:
    jaxpr, consts = (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, ())
    plan = Plan(jaxpr, marks, wanted)
    run = wrap(lambda values, deltas: evaluate(plan, consts, values, deltas), **dict(options))
    return Evaluation(run, plan.outputs, plan.slots, plan.others)


@lru_cache(KEPT)
def _switch(branches: tuple[Any, ...], marks: Marks, wanted: Wanted) -> Evaluation:
    plans = [Plan(b.jaxpr, marks, wanted) for b in branches]
    slots = [replace(slot, rounds=slot.rounds or 0) for plan in plans for slot in plan.slots]
    ends = np.cumsum([0, *(len(plan.slots) for plan in plans)]).tolist()
    outputs = tuple(
        ms[0] if ms.count(ms[0]) == len(ms) else None for ms in zip(*(p.outputs for p in plans), strict=True)
    )

    def branch(k: int, values: Any, deltas: Any) -> Outcome:
        outs, found = evaluate(plans[k], branches[k].consts, values, deltas[ends[k] : ends[k + 1]])
        none = [slot.not_run() for slot in slots]
        return outs, [*none[: ends[k]], *found, *none[ends[k + 1] :]]

    runs = [partial(branch, k) for k in range(len(plans))]

    def run(values: Any, deltas: Any) -> Outcome:
        index, *values = values
        if not isinstance(index, Tracer):  # the other branches need not run
            return branch(int(index), values, deltas)
        return lax.switch(index, runs, values, deltas)  # type: ignore[no-any-return]

    return Evaluation(run, outputs, slots, _uses(plans, outputs, "cond"))


def _scan(eqn: Any, marks: Marks, wanted: Wanted) -> Evaluation | None:
    p = eqn.params
    if any(m is not None for m in marks[p["num_consts"] + p["num_carry"] :]):
        return None
    how = tuple((key, p[key]) for key in ("reverse", "length", "unroll"))
    return _looped(p["jaxpr"], marks, wanted, p["num_consts"], p["num_carry"], how)


@lru_cache(KEPT)
def _looped(
    jaxpr: Any, marks: Marks, wanted: Wanted, num_consts: int, num_carry: int, how: tuple[tuple[str, Any], ...]
) -> Evaluation | None:
    plan = Plan(jaxpr.jaxpr, marks, (True,) * num_carry + wanted[num_carry:])
    carried = marks[num_consts:][:num_carry]
    if any(m not in (None, out) for m, out in zip(carried, plan.outputs, strict=False)):
        return None  # the body of the loop changes the leaf
    outputs = (*carried, *(None for _ in wanted[num_carry:]))

    def run(values: Any, deltas: Any) -> Outcome:
        shared, first, rows = values[:num_consts], values[num_consts:][:num_carry], values[num_consts + num_carry :]

        def whole(carry: Sequence[Any]) -> list[Any]:
            rest = iter(carry)
            return [next(rest) if m is None else x for x, m in zip(first, carried, strict=True)]

        def changing(carry: Sequence[Any]) -> list[Any]:
            return [x for x, m in zip(carry, carried, strict=True) if m is None]

        def body(carry: Any, x: Any) -> Any:
            own = [delta if one is None else one for one, delta in zip(x[1], deltas, strict=True)]
            outs, found = evaluate(plan, jaxpr.consts, [*shared, *whole(carry), *x[0]], own)
            return changing(outs[:num_carry]), (outs[num_carry:], found)

        each = [delta if slot.found else None for slot, delta in zip(plan.slots, deltas, strict=True)]
        carry, (ys, found) = lax.scan(body, changing(first), (rows, each), **dict(how))
        return [*whole(carry), *ys], found

    slots = [slot.repeated(dict(how)["length"]) for slot in plan.slots]
    return Evaluation(jax.jit(run), outputs, slots, _uses([plan], outputs, "scan"))


def _shard_map(eqn: Any, marks: Marks, wanted: Wanted) -> Evaluation | None:
    """Return the evaluation of a shard_map. Each rank reads its rows, and the slots of all ranks are concatenated along
    a new first axis.

    Return None if the weights are used as an array, or if a leaf is divided along another axis than its rows. Also
    return None if two operands divide the rows of one leaf differently.
    """
    p = eqn.params
    mesh, checked, jaxpr = p["mesh"], p["check_vma"], p["jaxpr"]
    manual = p["newly_manual_axes"] if "newly_manual_axes" in p else p["manual_axes"]
    plan = Plan(jaxpr, marks, wanted)
    if any(slot.rows < 0 for slot in plan.slots):  # a slot for a use of the weights as an array
        return None
    parts: dict[int, tuple[str, ...]] = {}  # leaf -> the axes over which its rows are divided
    for mark, spec in zip(marks, p["in_specs"], strict=True):
        if mark is not None:
            first, *others = (*list(spec), None)
            names = (first,) if isinstance(first, str) else tuple(first or ())
            if any(others) or parts.setdefault(mark.leaf, names) != names:
                return None

    def size(names: tuple[str, ...]) -> int:
        return math.prod(mesh.shape[a] for a in names)

    axes = [tuple(a for a in mesh.axis_names if a in (s.varying if checked else manual)) for s in plan.slots]
    specs = [PartitionSpec(names) for names in axes]

    def whole(slot: Slot, ids: Any) -> Any:
        """Convert row numbers in a rank's part to row numbers in the whole leaf."""
        axis = parts[slot.leaf]
        if not axis:
            return ids
        rows = slot.rows * size(axis)
        return jax.numpy.where(
            (ids >= 0) & (ids < slot.rows), ids + lax.axis_index(axis).astype(ids.dtype) * slot.rows, rows
        )

    def body(values: Any, deltas: Any) -> Outcome:
        outs, found = evaluate(plan, (), values, [x[0] for x in deltas])
        of_leaf = [(whole(slot, ids), *more) for slot, (ids, *more) in zip(plan.slots, found, strict=True)]
        return outs, jax.tree_util.tree_map(lambda x: x[None], of_leaf)

    def run(values: Any, deltas: Any) -> Outcome:
        return jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(list(p["in_specs"]), specs),
            out_specs=(list(p["out_specs"]), specs),
            check_vma=checked,
            axis_names=set(manual),
        )(list(values), list(deltas))

    slots = [
        replace(slot.repeated(size(names)), rows=slot.rows * size(parts[slot.leaf]), varying=frozenset())
        for slot, names in zip(plan.slots, axes, strict=True)
    ]
    return Evaluation(run, (None,) * len(wanted), slots, _uses([plan], (None,) * len(wanted), "shard_map"))


def _uses(plans: Sequence[Plan], outputs: Marks, name: str) -> dict[int, Use]:
    """Return a dict that maps each leaf with a use in any of the plans to one such use. Reads of rows do not count as
    uses. If a plan returns a leaf whose mark in `outputs` is None, this counts as a use."""
    out = ((m, whole) for plan in plans for m, whole in zip(plan.outputs, outputs, strict=True))
    returned = {m.leaf: Use(f"{name} (as a result)") for m, whole in out if m is not None and whole is None}
    for plan in plans:
        returned.update(plan.others)
    return returned


#: The rules of equations that contain jaxprs. The third argument of a rule contains a flag for each result, which is
#: True if the result may have a gradient.
NESTED: dict[str, Callable[[Any, Marks, Wanted], Evaluation | None]] = {
    # shardings and donation do not change values, so the compiler may decide about them
    "jit": _calling(jax.jit, "inline"),
    "remat2": _calling(jax.checkpoint, "prevent_cse", "policy"),
    "cond": lambda eqn, marks, wanted: _switch(eqn.params["branches"], marks[1:], wanted),
    "scan": _scan,
    "shard_map": _shard_map,
}
#: type of a mark -> the rules of all other equations
RULES: dict[type, dict[str, Rule]] = {
    Marked: row_reads.RULES,
    TableWeights: tables.RULES,
    Operand: tables.OPERAND_RULES,
}
#: primitive -> an explanation or an alternative, which the error shows for a rejected use by this primitive
REFUSED = {
    "broadcast_in_dim": "as of a table mapped by jax.vmap, or of lax.cond whose predicate is mapped; read the rows "
    "before it, or choose with jnp.where",
    "scan": "as what it scans over, or carries and changes; close over the leaf",
    "while": "which has no reverse-mode derivative; use lax.scan, or fori_loop with a fixed number of steps",
    "custom_jvp_call": "a function with a derivative of its own; read the rows before it",
    "custom_vjp_call": "a function with a derivative of its own; read the rows before it",
    "dot_general": "which reads the whole array; instead of a product with one-hot ids use jnp.take",
    "shard_map": "whose in_specs split it otherwise than by rows",
}
