"""A traced function evaluated again, with the rows it looks up as inputs of their own.

`Rewriting` reads a jaxpr and finds each `islices_lookup` in one of the tables, in nested jaxprs too: a *slot*.
`evaluate` runs the jaxpr with one more input a slot, which takes the gradient of its rows, and gives back what was
looked up. A table has no other way through: what else gets it raises TypeError, before anything is computed. Where its
weights are asked for by name (`islices_operand`), each product with them is a slot as well, whose gradient and inputs
are kept as factors; whatever else is done with them, JAX differentiates, to a dense array.

Nested functions stay what they were (compiled, rematerialised, looped). Their rewritten forms are kept by the nested
jaxpr, which JAX's own cache makes the same object at each call: an eager step does not compile anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from islices.backends.jax import precision
from islices.backends.jax.lookups import attach, bags_p, hidden_p, lookup_p, operand_p, read
from islices.backends.jax.memory import Tracer, put

__all__ = [
    "KEPT",
    "Found",
    "Rewriting",
    "Roles",
    "Slot",
    "as_jax",
    "bind",
    "evaluate",
    "is_wide",
    "last_uses",
    "opened",
]


@dataclass(frozen=True)
class Operand:
    """The weights of a table as an array, (rows, width), or transposed."""

    table: int
    transposed: bool = False


class Multiplied(NamedTuple):
    """What of a product with the weights its gradient needs to know."""

    leading: bool  # the weights come first: so does their axis in the result
    by_rows: bool  # they are contracted over their rows, as by one-hot ids: the factors change roles


class Roles(NamedTuple):
    """Which tables are differentiated otherwise than by slots alone."""

    relayed: frozenset[int]  # another recorder watches them
    arrays: frozenset[int] = frozenset()  # their weights are arrays to JAX too (`Rewriting.dense`)


@jax.custom_jvp
def _held(weights: Any) -> Any:
    """Weights that are differentiated as an array too, as a constant to that derivative: a slot counts this use."""
    return weights


@_held.defjvp
def _held_jvp(primals: Any, tangents: Any) -> Any:
    return primals[0], jax.numpy.zeros_like(tangents[0])


#: ids and extras of a slot, and whether it ran (None: always); None for a slot that did not run.
Found = tuple[tuple[Any, ...], Any] | None

#: How many rewritten nested functions are kept; each holds its compiled code.
KEPT = 128


@dataclass(frozen=True)
class Slot:
    """One lookup in one table, or one product with its weights."""

    table: int
    rows: jax.ShapeDtypeStruct  # or the product
    integers: tuple[jax.ShapeDtypeStruct, ...]  # ids and extras; of a product, what the weights are multiplied with
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


Tables = tuple[int | Operand | None, ...]  # which table each input is, or whose weights


class Rewriting:
    """What of a jaxpr is to be evaluated how. tables: of its inputs; roles: of the tables."""

    def __init__(self, jaxpr: Any, tables: Tables, roles: Roles) -> None:
        self.jaxpr = jaxpr
        self.roles = roles
        self.slots: list[Slot] = []
        self.dense: set[int] = set()  # the tables whose weights are used in other ways than by a product
        self.steps: list[tuple[Any, Callable[..., Any] | None, slice, bool, list[Any]]] = []
        self._table_of = {v: t for v, t in zip(jaxpr.invars, tables, strict=True) if t is not None}
        for eqn, over in zip(jaxpr.eqns, last_uses(jaxpr), strict=True):
            start = len(self.slots)
            run = self._plan(eqn)
            self.steps.append((eqn, run, slice(start, len(self.slots)), is_wide(eqn), over))
        self.outputs = tuple(self._table(v) for v in jaxpr.outvars)

    def _table(self, v: Any) -> int | Operand | None:
        return None if isinstance(v, Literal) else self._table_of.get(v)

    def _plan(self, eqn: Any) -> Callable[..., Any] | None:
        """How an equation that gets a table is run; None where it gets none, or may have it."""
        tables = tuple(map(self._table, eqn.invars))
        name = eqn.primitive.name
        if all(t is None for t in tables) or name == "stop_gradient":
            return None
        if eqn.primitive is lookup_p and isinstance(tables[0], int) and all(t is None for t in tables[1:]):
            return self._plan_lookup(eqn, tables[0])
        if eqn.primitive is bags_p and isinstance(tables[1], int):
            return self._plan_bags(eqn, tables[1])
        if eqn.primitive is hidden_p and isinstance(tables[0], int):
            return _run_relayed if tables[0] in self.roles.relayed else _run_hidden
        if eqn.primitive is operand_p and isinstance(tables[0], int):
            return self._plan_operand(eqn, tables[0])
        own = all(t is None or isinstance(t, Operand) for t in tables)
        carried = name == "scan" and any(t is not None for t in tables[eqn.params["num_consts"] :])
        if own and (carried or name not in _NESTED):
            return self._plan_array(eqn, tables)
        rule = _RULES.get(name)
        if rule is None:
            raise TypeError(_MISUSE.format(f"by {name}"))
        nested = rule(eqn, tables, self.roles)
        self.slots += nested.slots
        self.dense |= nested.dense
        self._table_of.update((v, t) for v, t in zip(eqn.outvars, nested.outputs, strict=True) if t is not None)
        return nested.run

    def _plan_operand(self, eqn: Any, table: int) -> Callable[..., Any]:
        if table in self.roles.relayed:
            raise NotImplementedError(
                "table.weights: got those of a table whose gradient is being taken twice; accepted in second "
                "derivatives is lookup(table, ids), or the array itself beside the table"
            )
        self._table_of[eqn.outvars[0]] = Operand(table)
        return lambda values, deltas: (values, [])

    def _plan_array(self, eqn: Any, tables: Tables) -> Callable[..., Any] | None:
        """Of an equation that gets weights as an array: None, as it is, where it is no product to take apart."""
        name, (first, *_) = eqn.primitive.name, tables
        if isinstance(first, Operand):
            if name == "transpose":  # of two axes
                flip = tuple(eqn.params["permutation"]) == (1, 0)
                self._table_of[eqn.outvars[0]] = Operand(first.table, first.transposed != flip)
                return None
            if name == "convert_element_type" and jax.numpy.issubdtype(eqn.params["new_dtype"], np.floating):
                self._table_of[eqn.outvars[0]] = first
                return None
        if name == "dot_general" and tables.count(None) == 1:
            (contracted, batched) = eqn.params["dimension_numbers"]
            place = 0 if isinstance(first, Operand) else 1
            operand = tables[place]
            assert isinstance(operand, Operand)
            other = eqn.invars[1 - place].aval
            if not any(batched) and len(contracted[0]) == 1 and len(other.shape) > 1:
                by_rows = (contracted[place][0] == 0) != operand.transposed
                return self._plan_product(eqn, operand.table, contracted[1 - place][0], Multiplied(place == 0, by_rows))
        self.dense |= {t.table for t in tables if isinstance(t, Operand)}
        return None

    def _plan_product(self, eqn: Any, table: int, axis: int, how: Multiplied) -> Callable[..., Any]:
        other, out = eqn.invars[1 if how.leading else 0].aval, eqn.outvars[0].aval
        lead = tuple(n for k, n in enumerate(other.shape) if k != axis)
        inputs = jax.ShapeDtypeStruct((*lead, other.shape[axis]), other.dtype)
        axes = ("vmap",) if "vmap" in str(eqn.source_info.name_stack) else ()
        self.slots.append(Slot(table, jax.ShapeDtypeStruct(out.shape, out.dtype), (inputs,), 0, how, axes))
        held = table in self.roles.arrays

        def run(values: Any, deltas: Any) -> tuple[Any, list[Found]]:
            a, b = values
            if held:
                a, b = (_held(a), b) if how.leading else (a, _held(b))
            product = eqn.primitive.bind(a, b, **eqn.params)
            x = lax.stop_gradient(jax.numpy.moveaxis(b if how.leading else a, axis, -1))
            return [attach(product, deltas[0])], [((x,), None)]

        return run

    def _slot(self, eqn: Any, table: int, weights: Any, integers: Sequence[Any]) -> list[Any]:
        """Remember a lookup, and give the dtypes of its integers."""
        rows, *given = (jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in (*eqn.outvars, *integers))
        num_rows = weights.aval.shape[0]
        nowhere = num_rows if num_rows <= np.iinfo(given[0].dtype).max else -1
        self.slots.append(Slot(table, rows, tuple(given), nowhere, **eqn.params))
        return [x.dtype for x in given]

    def _plan_bags(self, eqn: Any, table: int) -> Callable[..., Any]:
        dtypes = self._slot(eqn, table, eqn.invars[1], eqn.invars[2:])
        relayed = table in self.roles.relayed

        def run(values: Any, deltas: Any) -> tuple[Any, list[Found]]:
            bags, weights, *integers = values
            integers = _as_arrays(integers, dtypes)
            if relayed:
                bags = bags_p.bind(bags, weights, *integers, **eqn.params)
            return [attach(bags, deltas[0])], [(tuple(integers), None)]

        return run

    def _plan_lookup(self, eqn: Any, table: int) -> Callable[..., Any]:
        dtypes = self._slot(eqn, table, eqn.invars[0], eqn.invars[1:])
        return partial(
            _run_lookup,
            dtypes=dtypes,
            relayed=table in self.roles.relayed,
            held=table in self.roles.arrays,
            **eqn.params,
        )


_MISUSE = (
    "table: used other than through lookup, {}; accepted within the differentiated function is lookup(table, ids), "
    "with the rows passed on, and table.weights as an array. For a dense gradient pass the array itself"
)


def evaluate(
    plan: Rewriting, consts: Sequence[Any], args: Sequence[Any], deltas: Sequence[Any]
) -> tuple[Any, list[Found]]:
    """(outputs, what each slot found); None stands for an output that is a table."""
    jaxpr = plan.jaxpr
    consts = [as_jax(c, v) for c, v in zip(consts, jaxpr.constvars, strict=True)]
    env: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    tables = {t: env[v] for v, t in plan._table_of.items() if v in env and isinstance(t, int)}

    def value(v: Any) -> Any:
        return as_jax(v.val, v) if isinstance(v, Literal) else env[v]

    found: list[Found] = []
    for eqn, run, slots, wide, dead in plan.steps:
        values = list(map(value, eqn.invars))
        with eqn.ctx.manager, precision.wide() if wide else contextlib.nullcontext():
            if run is None:
                outs = bind(eqn, values)
            else:
                outs, new = run(values, deltas[slots])
                found += new
        for v, x in zip(eqn.outvars, outs, strict=True):
            table = plan._table_of.get(v)
            env[v] = tables[table] if isinstance(table, int) else x
        for v in dead:
            env.pop(v, None)
    outputs = [None if isinstance(t, int) else value(v) for v, t in zip(jaxpr.outvars, plan.outputs, strict=True)]
    return outputs, found


def last_uses(jaxpr: Any) -> list[list[Any]]:
    """For each equation the variables that nothing behind it reads."""
    last: dict[Any, int] = {}
    for k, eqn in enumerate(jaxpr.eqns):
        last.update((v, k) for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal))
    for v in jaxpr.outvars:
        last.pop(v, None) if not isinstance(v, Literal) else None
    dead: list[list[Any]] = [[] for _ in jaxpr.eqns]
    for v, k in last.items():
        dead[k].append(v)
    return dead


def bind(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation as it is."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    subfuns, params = bound if isinstance(bound, tuple) else ((), bound)  # a dict alone in later versions
    outs = eqn.primitive.bind(*subfuns, *values, **params)
    return outs if eqn.primitive.multiple_results else [outs]


def as_jax(x: Any, v: Any) -> Any:
    """A constant of a jaxpr, in some versions an array of NumPy, as JAX's: jit and custom_vjp hand it on as it is."""
    if not isinstance(x, np.ndarray):
        return x
    with precision.wide():
        return jax.numpy.asarray(x, v.aval.dtype)


def is_wide(eqn: Any) -> bool:
    """Whether the core's 64-bit types are in it: JAX would narrow its numbers outside of the core's scope."""
    return any(getattr(v.aval, "dtype", np.dtype(bool)) in _WIDE for v in (*eqn.invars, *eqn.outvars))


_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


# ---------------------------------------------------------------------- equations that get a table
def _run_lookup(
    values: Any, deltas: Any, *, dtypes: list[Any], relayed: bool, held: bool, static: Any, axes: tuple[str, ...]
) -> tuple[Any, list[Found]]:
    weights, *integers = values
    integers = _as_arrays(integers, dtypes)
    if relayed:
        rows = lookup_p.bind(weights, *integers, static=static, axes=axes)
    else:
        rows = read(_held(weights) if held else weights, integers[0])
    return [attach(rows, deltas[0])], [(tuple(integers), None)]


def _as_arrays(integers: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Integers of a jaxpr, where a literal may be a Python number, as arrays."""
    return [
        x if isinstance(x, jax.Array) else put(np.asarray(x, d), None) for x, d in zip(integers, dtypes, strict=True)
    ]


def _run_hidden(values: Any, deltas: Any) -> tuple[Any, list[Found]]:
    return [lax.stop_gradient(values[0])], []


def _run_relayed(values: Any, deltas: Any) -> tuple[Any, list[Found]]:
    return [hidden_p.bind(values[0])], []


@dataclass(frozen=True)
class _Nested:
    """An equation with jaxprs of its own: ``run(values, deltas)`` gives (outputs, found), as `evaluate` does."""

    slots: list[Slot]
    outputs: Tables
    run: Callable[..., Any]
    dense: frozenset[int] = frozenset()


def _inline(eqn: Any, tables: Tables, roles: Roles) -> _Nested:
    jaxpr, consts = opened(eqn.params["call_jaxpr"])
    plan = Rewriting(jaxpr, tables, roles)
    run = partial(_evaluated, plan, consts)
    return _Nested(plan.slots, plan.outputs, run, frozenset(plan.dense))


def _evaluated(plan: Rewriting, consts: Sequence[Any], values: Any, deltas: Any) -> tuple[Any, list[Found]]:
    return evaluate(plan, consts, values, deltas)


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """(jaxpr, consts) of a jaxpr, closed or not."""
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, ())


def _jit(eqn: Any, tables: Tables, roles: Roles) -> _Nested:
    # shardings and donation, which change no value, are left to the compiler
    return _jitted(eqn.params["jaxpr"], tables, roles, eqn.params["inline"])


@lru_cache(KEPT)
def _jitted(jaxpr: Any, tables: Tables, roles: Roles, inline: bool) -> _Nested:
    plan = Rewriting(jaxpr.jaxpr, tables, roles)
    run = jax.jit(lambda values, deltas: evaluate(plan, jaxpr.consts, values, deltas), inline=inline)
    return _Nested(plan.slots, plan.outputs, run, frozenset(plan.dense))


def _checkpoint(eqn: Any, tables: Tables, roles: Roles) -> _Nested:
    return _rematerialised(eqn.params["jaxpr"], tables, roles, eqn.params["prevent_cse"], eqn.params["policy"])


@lru_cache(KEPT)
def _rematerialised(jaxpr: Any, tables: Tables, roles: Roles, prevent_cse: bool, policy: Any) -> _Nested:
    jaxpr, consts = opened(jaxpr)
    plan = Rewriting(jaxpr, tables, roles)
    run = jax.checkpoint(
        lambda values, deltas: evaluate(plan, consts, values, deltas), prevent_cse=prevent_cse, policy=policy
    )
    return _Nested(plan.slots, plan.outputs, run, frozenset(plan.dense))


def _cond(eqn: Any, tables: Tables, roles: Roles) -> _Nested:
    if tables[0] is not None:
        raise TypeError(_MISUSE.format("by cond"))
    return _switch(eqn.params["branches"], tables[1:], roles)


@lru_cache(KEPT)
def _switch(branches: tuple[Any, ...], tables: Tables, roles: Roles) -> _Nested:
    plans = [Rewriting(b.jaxpr, tables, roles) for b in branches]
    dense = _given_out(plans, range(len(branches[0].jaxpr.outvars)))
    if any(isinstance(t, int) for plan in plans for t in plan.outputs):
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

    return _Nested(slots, (None,) * len(plans[0].outputs), run, dense)


def _given_out(plans: Sequence[Rewriting], outputs: Any) -> frozenset[int]:
    """The tables whose weights are used as arrays in other ways than by products, or come out of a loop or branch."""
    out = {plan.outputs[k].table for plan in plans for k in outputs if isinstance(plan.outputs[k], Operand)}
    return frozenset(out.union(*(plan.dense for plan in plans)))


def _scan(eqn: Any, tables: Tables, roles: Roles) -> _Nested:
    p = eqn.params
    if any(t is not None for t in tables[p["num_consts"] :]):  # also of weights, which no slot follows there
        raise TypeError(_MISUSE.format("as what scan carries or scans over (close over it instead)"))
    how = {"reverse": p["reverse"], "length": p["length"], "unroll": p["unroll"]}
    return _looped(p["jaxpr"], tables, roles, p["num_consts"], p["num_carry"], tuple(how.items()))


@lru_cache(KEPT)
def _looped(jaxpr: Any, tables: Tables, roles: Roles, num_consts: int, num_carry: int, how: tuple[Any, ...]) -> _Nested:
    plan = Rewriting(jaxpr.jaxpr, tables, roles)
    if any(isinstance(t, int) for t in plan.outputs):
        raise TypeError(_MISUSE.format("as a result of the body of scan"))
    dense = _given_out([plan], range(len(plan.outputs)))

    def run(values: Any, deltas: Any) -> tuple[Any, list[Found]]:
        shared, carry, rows = values[:num_consts], values[num_consts:][:num_carry], values[num_consts + num_carry :]

        def body(carry: Any, x: Any) -> Any:
            outs, found = evaluate(plan, jaxpr.consts, [*shared, *carry, *x[0]], x[1])
            return outs[:num_carry], (outs[num_carry:], found)

        carry, (ys, found) = lax.scan(body, carry, (rows, deltas), **dict(how))
        return [*carry, *ys], found

    slots = [s.repeated(dict(how)["length"]) for s in plan.slots]
    return _Nested(slots, (None,) * len(plan.outputs), jax.jit(run), dense)


def _refuse(why: str) -> Callable[..., _Nested]:
    def rule(eqn: Any, tables: Tables, roles: Roles) -> _Nested:
        raise TypeError(_MISUSE.format(f"by {eqn.primitive.name} ({why})"))

    return rule


_OWN_GRADIENT = _refuse("a function with a derivative of its own; look the rows up before it, and pass them in")

#: Equations that hold others: weights as arrays are followed into them.
_NESTED = frozenset(("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2", "cond", "scan"))

_RULES: dict[str, Callable[[Any, Tables, Roles], _Nested]] = {
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
