"""A traced function evaluated again, with the rows it looks up as inputs of their own.

`Plan` reads a jaxpr and finds each `islices_lookup` in one of the tables, in nested jaxprs too: a *slot*. `evaluate`
runs the jaxpr with one more input a slot, which takes the gradient of its rows, and gives back what was looked up.
A table has no other way through: what else gets it raises TypeError, before anything is computed.

Nested functions stay what they were (compiled, rematerialised, looped). Their rewritten forms are kept by the nested
jaxpr, which JAX's own cache makes the same object at each call: an eager step does not compile anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from islices.backends.jax import precision
from islices.backends.jax.lookups import attach, lookup_p, read
from islices.backends.jax.memory import Tracer, put

__all__ = ["Found", "Plan", "Slot", "evaluate"]

#: ids and extras of a slot, and whether it ran (None: always); None for a slot that did not run.
Found = tuple[tuple[Any, ...], Any] | None

#: How many rewritten nested functions are kept; each holds its compiled code.
KEPT = 128


@dataclass(frozen=True)
class Slot:
    """One lookup in one table."""

    table: int
    rows: jax.ShapeDtypeStruct
    integers: tuple[jax.ShapeDtypeStruct, ...]  # ids and extras
    nowhere: int  # an id that names no row
    static: Any
    axes: tuple[str, ...] = ()  # the transformations that put axes in front of ids: "vmap", "scan"
    conditional: bool = False
    lead: tuple[int, ...] = ()  # the loops around the condition

    def repeated(self, length: int) -> Slot:
        """The slot of a loop's body as the loop sees it."""

        def longer(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((length, *x.shape), x.dtype)

        lead = (length, *self.lead) if self.conditional else ()
        integers = tuple(map(longer, self.integers))
        return replace(self, rows=longer(self.rows), integers=integers, axes=("scan", *self.axes), lead=lead)

    def not_run(self) -> Found:
        """What a branch that is not taken finds."""
        ids, *extras = self.integers
        empty = (lax.full(ids.shape, self.nowhere, ids.dtype), *(lax.full(x.shape, 0, x.dtype) for x in extras))
        return empty, np.zeros(self.lead, bool)


Tables = tuple[int | None, ...]  # which table each input is


class Plan:
    """What of a jaxpr is to be evaluated how. tables: of its inputs; relayed: tables that another recorder watches."""

    def __init__(self, jaxpr: Any, tables: Tables, relayed: frozenset[int]) -> None:
        self.jaxpr = jaxpr
        self.relayed = relayed
        self.slots: list[Slot] = []
        self.steps: list[tuple[Any, Callable[..., Any] | None, slice, bool, list[Any]]] = []
        self._table_of = {v: t for v, t in zip(jaxpr.invars, tables, strict=True) if t is not None}
        last: dict[Any, int] = {}
        for k, eqn in enumerate(jaxpr.eqns):
            last.update((v, k) for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal))
        for v in jaxpr.outvars:
            last.pop(v, None) if not isinstance(v, Literal) else None
        dead: list[list[Any]] = [[] for _ in jaxpr.eqns]
        for v, k in last.items():
            dead[k].append(v)
        for eqn, over in zip(jaxpr.eqns, dead, strict=True):
            start = len(self.slots)
            run = self._plan(eqn)
            self.steps.append((eqn, run, slice(start, len(self.slots)), _is_wide(eqn), over))
        self.outputs = tuple(self._table(v) for v in jaxpr.outvars)

    def _table(self, v: Any) -> int | None:
        return None if isinstance(v, Literal) else self._table_of.get(v)

    def _plan(self, eqn: Any) -> Callable[..., Any] | None:
        """How an equation that gets a table is run; None where it gets none, or may have it."""
        tables = tuple(map(self._table, eqn.invars))
        name = eqn.primitive.name
        if all(t is None for t in tables) or name == "stop_gradient":
            return None
        if eqn.primitive is lookup_p and all(t is None for t in tables[1:]):
            return self._plan_lookup(eqn, tables[0])  # type: ignore[arg-type]
        rule = _RULES.get(name)
        if rule is None:
            raise TypeError(_MISUSE.format(f"by {name}"))
        nested = rule(eqn, tables, self.relayed)
        self.slots += nested.slots
        self._table_of.update((v, t) for v, t in zip(eqn.outvars, nested.outputs, strict=True) if t is not None)
        return nested.run

    def _plan_lookup(self, eqn: Any, table: int) -> Callable[..., Any]:
        rows, *integers = (jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in (*eqn.outvars, *eqn.invars[1:]))
        num_rows = eqn.invars[0].aval.shape[0]
        nowhere = num_rows if num_rows <= np.iinfo(integers[0].dtype).max else -1
        self.slots.append(Slot(table, rows, tuple(integers), nowhere, **eqn.params))
        dtypes = [x.dtype for x in integers]
        return partial(_run_lookup, dtypes=dtypes, relayed=table in self.relayed, **eqn.params)


_MISUSE = (
    "table: used other than through lookup, {}; accepted within the differentiated function is lookup(table, ids), "
    "with the rows passed on. For a dense gradient pass the array itself"
)


def evaluate(plan: Plan, consts: Sequence[Any], args: Sequence[Any], deltas: Sequence[Any]) -> tuple[Any, list[Found]]:
    """(outputs, what each slot found); None stands for an output that is a table."""
    jaxpr = plan.jaxpr
    consts = [_as_jax(c, v) for c, v in zip(consts, jaxpr.constvars, strict=True)]
    env: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    tables = {t: env[v] for v, t in plan._table_of.items() if v in env}

    def value(v: Any) -> Any:
        return _as_jax(v.val, v) if isinstance(v, Literal) else env[v]

    found: list[Found] = []
    for eqn, run, slots, wide, dead in plan.steps:
        values = list(map(value, eqn.invars))
        with eqn.ctx.manager, precision.wide() if wide else contextlib.nullcontext():
            if run is None:
                bound = eqn.primitive.get_bind_params(eqn.params)
                subfuns, params = bound if isinstance(bound, tuple) else ((), bound)  # a dict alone in later versions
                outs = eqn.primitive.bind(*subfuns, *values, **params)
                outs = outs if eqn.primitive.multiple_results else [outs]
            else:
                outs, new = run(values, deltas[slots])
                found += new
        for v, x in zip(eqn.outvars, outs, strict=True):
            table = plan._table_of.get(v)
            env[v] = x if table is None else tables[table]
        for v in dead:
            env.pop(v, None)
    outputs = [None if t is not None else value(v) for v, t in zip(jaxpr.outvars, plan.outputs, strict=True)]
    return outputs, found


def _as_jax(x: Any, v: Any) -> Any:
    """A constant of a jaxpr, in some versions an array of NumPy, as JAX's: jit and custom_vjp hand it on as it is."""
    if not isinstance(x, np.ndarray):
        return x
    with precision.wide():
        return jax.numpy.asarray(x, v.aval.dtype)


def _is_wide(eqn: Any) -> bool:
    """Whether the core's 64-bit types are in it: JAX would narrow its numbers outside of the core's scope."""
    return any(getattr(v.aval, "dtype", np.dtype(bool)) in _WIDE for v in (*eqn.invars, *eqn.outvars))


_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


# ---------------------------------------------------------------------- equations that get a table
def _run_lookup(
    values: Any, deltas: Any, *, dtypes: list[Any], relayed: bool, static: Any, axes: tuple[str, ...]
) -> tuple[Any, list[Found]]:
    weights, *integers = values
    # a literal of the jaxpr may be a Python number
    integers = [
        x if isinstance(x, jax.Array) else put(np.asarray(x, d), None) for x, d in zip(integers, dtypes, strict=True)
    ]
    rows = lookup_p.bind(weights, *integers, static=static, axes=axes) if relayed else read(weights, integers[0])
    return [attach(rows, deltas[0])], [(tuple(integers), None)]


@dataclass(frozen=True)
class _Nested:
    """An equation with jaxprs of its own: ``run(values, deltas)`` gives (outputs, found), as `evaluate` does."""

    slots: list[Slot]
    outputs: Tables
    run: Callable[..., Any]


def _inline(eqn: Any, tables: Tables, relayed: frozenset[int]) -> _Nested:
    jaxpr, consts = _opened(eqn.params["call_jaxpr"])
    plan = Plan(jaxpr, tables, relayed)
    return _Nested(plan.slots, plan.outputs, lambda values, deltas: evaluate(plan, consts, values, deltas))


def _opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """(jaxpr, consts) of a jaxpr, closed or not."""
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, ())


def _jit(eqn: Any, tables: Tables, relayed: frozenset[int]) -> _Nested:
    # shardings and donation, which change no value, are left to the compiler
    return _jitted(eqn.params["jaxpr"], tables, relayed, eqn.params["inline"])


@lru_cache(KEPT)
def _jitted(jaxpr: Any, tables: Tables, relayed: frozenset[int], inline: bool) -> _Nested:
    plan = Plan(jaxpr.jaxpr, tables, relayed)
    run = jax.jit(lambda values, deltas: evaluate(plan, jaxpr.consts, values, deltas), inline=inline)
    return _Nested(plan.slots, plan.outputs, run)


def _checkpoint(eqn: Any, tables: Tables, relayed: frozenset[int]) -> _Nested:
    return _rematerialised(eqn.params["jaxpr"], tables, relayed, eqn.params["prevent_cse"], eqn.params["policy"])


@lru_cache(KEPT)
def _rematerialised(jaxpr: Any, tables: Tables, relayed: frozenset[int], prevent_cse: bool, policy: Any) -> _Nested:
    jaxpr, consts = _opened(jaxpr)
    plan = Plan(jaxpr, tables, relayed)
    run = jax.checkpoint(  # type: ignore[attr-defined]
        lambda values, deltas: evaluate(plan, consts, values, deltas), prevent_cse=prevent_cse, policy=policy
    )
    return _Nested(plan.slots, plan.outputs, run)


def _cond(eqn: Any, tables: Tables, relayed: frozenset[int]) -> _Nested:
    if tables[0] is not None:
        raise TypeError(_MISUSE.format("by cond"))
    return _switch(eqn.params["branches"], tables[1:], relayed)


@lru_cache(KEPT)
def _switch(branches: tuple[Any, ...], tables: Tables, relayed: frozenset[int]) -> _Nested:
    plans = [Plan(b.jaxpr, tables, relayed) for b in branches]
    if any(t is not None for plan in plans for t in plan.outputs):
        raise TypeError(_MISUSE.format("as the result of a branch of cond"))
    slots = [replace(s, conditional=True) for plan in plans for s in plan.slots]
    ends = np.cumsum([0, *(len(plan.slots) for plan in plans)]).tolist()

    def branch(k: int, values: Any, deltas: Any) -> tuple[Any, list[Found]]:
        outs, found = evaluate(plans[k], branches[k].consts, values, deltas[ends[k] : ends[k + 1]])
        here = [one and (one[0], np.True_ if one[1] is None else one[1]) for one in found]
        return outs, [None] * ends[k] + here + [None] * (len(slots) - ends[k + 1])

    def filled(k: int, values: Any, deltas: Any) -> tuple[Any, list[Found]]:
        outs, found = branch(k, values, deltas)
        return outs, [slot.not_run() if one is None else one for one, slot in zip(found, slots, strict=True)]

    filled_branches = [partial(filled, k) for k in range(len(plans))]

    def run(values: Any, deltas: Any) -> tuple[Any, list[Found]]:
        index, *values = values
        if not isinstance(index, Tracer):  # known: the others need not run, and no slot has to say so
            return branch(min(max(int(index), 0), len(plans) - 1), values, deltas)
        return lax.switch(index, filled_branches, values, deltas)  # type: ignore[no-any-return]

    return _Nested(slots, (None,) * len(plans[0].outputs), run)


def _scan(eqn: Any, tables: Tables, relayed: frozenset[int]) -> _Nested:
    p = eqn.params
    if any(t is not None for t in tables[p["num_consts"] :]):
        raise TypeError(_MISUSE.format("as what scan carries or scans over (close over it instead)"))
    how = {"reverse": p["reverse"], "length": p["length"], "unroll": p["unroll"]}
    return _looped(p["jaxpr"], tables, relayed, p["num_consts"], p["num_carry"], tuple(how.items()))


@lru_cache(KEPT)
def _looped(
    jaxpr: Any, tables: Tables, relayed: frozenset[int], num_consts: int, num_carry: int, how: tuple[Any, ...]
) -> _Nested:
    plan = Plan(jaxpr.jaxpr, tables, relayed)
    if any(t is not None for t in plan.outputs):
        raise TypeError(_MISUSE.format("as a result of the body of scan"))

    def run(values: Any, deltas: Any) -> tuple[Any, list[Found]]:
        shared, carry, rows = values[:num_consts], values[num_consts:][:num_carry], values[num_consts + num_carry :]

        def body(carry: Any, x: Any) -> Any:
            outs, found = evaluate(plan, jaxpr.consts, [*shared, *carry, *x[0]], x[1])
            return outs[:num_carry], (outs[num_carry:], found)

        carry, (ys, found) = lax.scan(body, carry, (rows, deltas), **dict(how))
        return [*carry, *ys], found

    slots = [s.repeated(dict(how)["length"]) for s in plan.slots]
    return _Nested(slots, (None,) * len(plan.outputs), jax.jit(run))


def _refuse(why: str) -> Callable[..., _Nested]:
    def rule(eqn: Any, tables: Tables, relayed: frozenset[int]) -> _Nested:
        raise TypeError(_MISUSE.format(f"by {eqn.primitive.name} ({why})"))

    return rule


_OWN_GRADIENT = _refuse("a function with a derivative of its own; look the rows up before it, and pass them in")

_RULES: dict[str, Callable[[Any, Tables, frozenset[int]], _Nested]] = {
    "jit": _jit,
    "pjit": _jit,
    "closed_call": _inline,
    "core_call": _inline,
    "checkpoint": _checkpoint,
    "remat": _checkpoint,
    "remat2": _checkpoint,
    "cond": _cond,
    "scan": _scan,
    "while": _refuse("which has no reverse-mode derivative; use lax.scan, or fori_loop with a fixed number of steps"),
    "custom_jvp_call": _OWN_GRADIENT,
    "custom_vjp_call": _OWN_GRADIENT,
    "custom_vjp_call_jaxpr": _OWN_GRADIENT,
}
