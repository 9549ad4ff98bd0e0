"""List the public calls that get hostile input, and draw good arguments for each.

`GOOD` maps the name of a parameter to a function that draws a good argument. If arguments must fit together, the call's
entry in `ENTRIES` draws these arguments. All other parameters have their defaults. Then `calls` spoils at most two
arguments.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import islices
from islices import config
from islices.backend import Backend
from islices.conformance.composite_operations import own_calls_of
from islices.conformance.oracle_optim import OPTIMIZERS
from islices.conformance.properties.hostile_input import Draw, WatchedArray
from islices.conformance.properties.hostile_junk import NUMBERS, SHAPES, shown
from islices.distributed import Alone, all_reduce
from islices.optim.record import RECORDS

Arguments = dict[str, Any]


class Attacked(NamedTuple):
    """The entry of a public call. ``run`` makes the call, and accepts the arguments by name. ``make`` draws the
    arguments that do not come from `GOOD`. ``weight`` is the relative frequency of the call."""

    run: Callable[..., Any]
    make: Callable[[Draw], Arguments] = lambda d: {}
    #: the arguments that a successful call may change in place
    targets: tuple[str, ...] = ()
    #: words that a message may use instead of the name of an argument
    words: tuple[str, ...] = ()
    #: arguments that `calls` never spoils
    fixed: tuple[str, ...] = ()
    weight: int = 4


class HostileCall(NamedTuple):
    """A public call with all its arguments. ``aliased`` is True if two arguments share memory."""

    name: str
    entry: Attacked
    arguments: Arguments
    spoilt: tuple[str, ...]
    watched: list[WatchedArray]
    aliased: bool
    backend: Backend
    mode: str = "host"
    wide: bool = False

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Set the call's execution mode within the context, and turn the framework's 64-bit types on if ``wide``."""
        with self.backend.wide_types() if self.wide else contextlib.nullcontext(), config.execution(self.mode):
            yield

    def __repr__(self) -> str:
        wide = ", 64-bit types" if self.wide else ""
        lines = [f"{self.name} on {self.backend.name}, {self.mode}{wide}; spoilt: {', '.join(self.spoilt)}"]
        return "\n  ".join([*lines, *(f"{name} = {shown(value)}" for name, value in self.arguments.items())])


# ---------------------------------------------------------------------- good arguments
def limit(d: Draw) -> Any:
    """Draw a limit: a number or a 0-d array. For MXNet, the array has the shape (1,)."""
    number = d.one(0.5, 0.0, 2.0, 1e9, float("inf"))
    shape = (1,) if d.backend.name == "mxnet" else ()
    return d.own(np.full(shape, number, "float32"), "limit") if d.rarely() else number


def rows(d: Draw) -> Any:
    return d.made(lambda: d.ids(label="rows"), lambda: np.ones(d.rows, bool), lambda: [0] if d.rows else [])


def one_of(*options: Any) -> Callable[[Draw], Any]:
    return lambda d: d.one(*options)


#: name of a parameter -> a function that draws a good argument
GOOD: dict[str, Callable[[Draw], Any]] = {
    "x": Draw.tree, "tree": Draw.tree, "s": Draw.slices, "table": Draw.table, "params": Draw.table, "ids": Draw.ids,
    "weights": Draw.dense, "values": lambda d: d.dense((d.n, *d.row_shape)), "indices": Draw.ids,
    "dense_shape": lambda d: (d.rows, *d.row_shape), "rows": rows, "num_rows": lambda d: d.rows,
    "xs": lambda d: [d.gradient() for _ in range(d.one(1, 2, 3))], "c": one_of(2, 0.5, -1.0),
    "ord": one_of(2, 1, 3, 0.5, float("inf")), "axes": one_of(None, None, 0, 1, [0], (-1,), []),
    "lo": one_of(-1.0, 0.0), "hi": limit, "max_norm": limit, "threshold": limit, "clipping": limit,
    "nonfinite": one_of("propagate", "zero", "raise"), "group": one_of(None, Alone()),
    "backend": lambda d: d.backend.name, "donate": lambda d: d.rarely(),
    "name_or_array": lambda d: d.made(lambda: d.backend.name, d.dense, d.sparse), "op": one_of("sum", "mean"),
    "invalid": one_of("raise", "drop"), "fn": lambda d: lambda x: x, "k": one_of(0, 1, 2),
}  # fmt: skip


def of_ids(d: Draw, shape: tuple[int, ...]) -> Arguments:
    """Draw ids of the given shape, and a mask or None. 1-D ids may also be a pair (values, lengths)."""
    ids = d.ids(shape if d.rows else (0, *shape[1:]))
    size = d.backend.shape(ids)
    out: Arguments = {"ids": ids, "mask": np.ones([n or 0 for n in size], bool) if d.rarely() else None}
    if len(size) == 1 and d.rarely():
        n = size[0] or 0
        out["ids"] = ids, d.own(np.array([n // 2, 0, n - n // 2 - (n > 0 and d.rarely())], d.index_type), "lengths")
    return out


def lookup(d: Draw) -> Arguments:
    combiner = d.one(None, "sum", "mean", "sqrtn", "max")
    flat = d.rarely(50)
    out = of_ids(d, (d.n,) if flat else (d.n, 2))
    out |= {"combiner": combiner, "weights": None}
    if flat and combiner and not isinstance(out["ids"], tuple):
        out["offsets"] = d.own(np.array([0, d.n // 2] if d.n > 1 else [0], "int64"), "offsets")
    if combiner and combiner != "max" and not isinstance(out["ids"], tuple) and d.rarely(50):
        out["weights"] = d.dense(d.backend.shape(out["ids"]), label="weights")  # type: ignore[arg-type]
    return out


def upstream(d: Draw) -> Arguments:
    out = of_ids(d, d.one((d.n,), (d.n, 2)))
    ids = out["ids"][0] if isinstance(out["ids"], tuple) else out["ids"]
    return {**out, "upstream": d.dense((*d.backend.shape(ids), *d.row_shape), label="upstream")}  # type: ignore[arg-type]


def tied(d: Draw) -> Arguments:
    """Draw the arguments of `per_sample`, in some cases for a table that is also the output layer."""
    out = upstream(d)
    if len(d.row_shape) == 1 and d.rarely(50):
        shape = (batch_of(d, out["ids"]), *d.one((), (2,), (0,)))
        out["product"] = d.dense((*shape, d.rows), label="g"), d.dense((*shape, *d.row_shape), label="x")
    return out


def batch_of(d: Draw, ids: Any) -> Any:
    return d.backend.shape(ids[1] if isinstance(ids, tuple) else ids)[0]


def scatter(d: Draw) -> Arguments:
    """Draw the arguments of scatter. The slices may share memory with the table."""
    table, x = d.table(), d.sparse()
    part = (table.weights if isinstance(table, islices.Table) else table)[: d.n] if d.n and d.rows >= d.n else None
    if d.backend.is_array(part) and d.rarely():
        d.aliased, x = True, islices.IndexedSlices(part, d.ids(), (d.rows, *d.row_shape))
    return {"table": table, "x": x, "op": d.one("add", "sub", "update", "min", "max", "mul", "div")}


def step(d: Draw) -> Arguments:
    """Draw the arguments of an optimizer's step on one or two tables."""
    name, hyper = d.one(*OPTIMIZERS.values())
    optimizer = getattr(islices.optim, name)(**hyper, rows=d.one("touched", "touched", "all"))
    tables = [d.table() for _ in range(d.one(1, 1, 2))]
    states = [optimizer.init(t) for t in tables]
    for key, x in [item for state in states for item in state.items()]:
        d.watch(f"state[{key!r}]", x)
    grads = [d.made(d.sparse, d.sparse, d.dense) for _ in tables]
    several = len(tables) > 1
    return {
        "optimizer": optimizer, "table": tables if several else tables[0], "grad": grads if several else grads[0],
        "state": states if several else states[0], "apply": True,
    }  # fmt: skip


def optimizer(d: Draw) -> Arguments:
    name, hyper = d.one(*OPTIMIZERS.values())
    number = d.one(*(k for k, x in hyper.items() if type(x) is float and k not in RECORDS[name].fixed))
    by_step = d.one(hyper[number], lambda step: hyper[number], np.array([hyper[number]]))
    options = {"rows": "touched", "semantics": "islices", "maximize": False, "frozen": None}
    return {"name": name, **hyper, number: by_step, **options}


def gradient_arguments(d: Draw) -> Arguments:
    d.dtype = "float32"
    own = getattr(own_calls_of(d.backend), "weighted_sum", lambda rows, weights: (rows * weights).sum())
    return {
        "weighted_sum": own, "table": islices.Table(d.dense(label="table")), "weights": d.dense((2, 3)),
        "argnums": d.one(0, 1, (0,)),
    }  # fmt: skip


# ---------------------------------------------------------------------- calls that are no function of islices
def first_step(name: str, **options: Any) -> Any:
    """Make an optimizer with hyperparameters that may be hostile, and return the result of a step with good
    arguments."""
    made = getattr(islices.optim, name)(**options)
    table = np.ones((6, 3), np.float32)
    return made.step(table, islices.IndexedSlices(table[:2], np.array([1, 1]), (6, 3)), made.init(table))


def differentiated(weighted_sum: Any, table: Any, ids: Any, weights: Any, argnums: Any) -> Any:
    def loss(table: Any, weights: Any) -> Any:
        x = weights if argnums == 1 else islices.lookup(table, ids)
        return weighted_sum(x, x)

    return islices.value_and_grad(loss, argnums)(table, weights)


def of_samples(method: str, argument: Any = None, *words: str) -> Attacked:
    """Return the `Attacked` entry of a method of `PerSample`. `argument` is the method's argument, or None if it has
    none."""

    def run(argument: Any, **samples: Any) -> Any:
        return getattr(islices.per_sample(**samples), method)(*([] if argument is None else [argument]))

    return Attacked(run, lambda d: {"argument": argument, **complete(islices.per_sample, tied(d), d)}, words=words)


def clipped_samples(max_norm: Any, nonfinite: Any, dense: Any, **samples: Any) -> Any:
    return islices.clip_per_sample([islices.per_sample(**samples), dense], max_norm, nonfinite=nonfinite)


def samples_and_dense(d: Draw) -> Arguments:
    out = complete(islices.per_sample, tied(d), d)
    return {**out, "dense": d.dense((batch_of(d, out["ids"]), 2))}


def complete(run: Callable[..., Any], made: Arguments, d: Draw) -> Arguments:
    """Return the drawn arguments of a call, with good arguments or defaults for all other parameters of `run`."""
    out = dict(made)
    for name, parameter in inspect.signature(run).parameters.items():
        if name not in out and parameter.kind is not parameter.VAR_KEYWORD:
            out[name] = GOOD[name](d) if name in GOOD else parameter.default
    return out


FUNCTIONS = [n for n in islices.__all__ if n[0].islower() and callable(getattr(islices, n))]
#: Functions without arguments, and functions that another entry of `ENTRIES` covers or that cannot be tested this way.
LEFT_OUT = {
    "get_num_threads", "list_backends", "not_implemented", "save", "load", "value_and_grad", "diff", "parity",
    "capture", "execution", "use_kernels", "set_num_threads",
}  # fmt: skip

ENTRIES: dict[str, Attacked] = {
    **{name: Attacked(getattr(islices, name)) for name in FUNCTIONS if name not in LEFT_OUT},
    "IndexedSlices": Attacked(islices.IndexedSlices, fixed=("validate",), weight=12),
    "Table": Attacked(islices.Table),
    "from_native": Attacked(islices.from_native, lambda d: {"x": d.native()}, fixed=("validate",), weight=8),
    "get_backend": Attacked(islices.get_backend, words=("backend",)),
    "add": Attacked(lambda xs: islices.add(*xs) if isinstance(xs, (list, tuple)) else islices.add(xs), weight=8),
    "concat": Attacked(islices.concat, lambda d: {"xs": [d.sparse() for _ in range(d.one(1, 2, 3))]}),
    "norm": Attacked(islices.norm, lambda d: {"x": d.gradient()}, weight=6),
    "adaptive_grad_clip": Attacked(islices.norms.adaptive_grad_clip, lambda d: {"x": d.gradient()}),
    "drop_padding": Attacked(islices.drop_padding, lambda d: {"padding_idx": 0 if d.rows else None}),
    "scale_by_frequency": Attacked(islices.scale_by_frequency, lambda d: {"x": d.sparse()}),
    "embedding_grad": Attacked(islices.embedding_grad, upstream, weight=8),
    "lookup": Attacked(islices.lookup, lookup, words=("ids", "bags"), weight=12),
    "renorm_rows": Attacked(islices.renorm_rows, targets=("table",)),
    "scatter": Attacked(islices.scatter, scatter, targets=("table",), weight=42),
    "per_sample": Attacked(islices.per_sample, tied, weight=8),
    "per_sample.clip": of_samples("clip", 1.0, "max_norm"),
    "clip_per_sample": Attacked(clipped_samples, samples_and_dense, words=("tree",)),
    "optimizer": Attacked(first_step, optimizer, words=("lr", "table"), fixed=("name",), weight=8),
    "step": Attacked(lambda optimizer, table, grad, state, donate, apply: optimizer.step(
        table, grad, state, donate=donate, apply=apply),
        step, targets=("table", "state"), fixed=("optimizer",), weight=30),
    "init": Attacked(lambda table, master: islices.optim.adam(0.1).init(table, master=master),
                  lambda d: {"master": False}),
    "value_and_grad": Attacked(differentiated, gradient_arguments, words=("fn", "argument", "args"),
                            fixed=("weighted_sum", "weights"), weight=3),
    "all_reduce": Attacked(all_reduce, lambda d: {"group": Alone()}, fixed=("group",)),
}  # fmt: skip

#: name of a parameter -> bad arguments specific to it
BY_NAME: dict[str, Sequence[Any]] = {"dense_shape": SHAPES, "num_rows": NUMBERS, "ord": NUMBERS}


@st.composite
def calls(draw: Any, backend: Backend, others: Sequence[Backend]) -> HostileCall:
    """Draw a call with zero, one or two spoilt arguments. About one call in twenty runs in mode framework,
    unless the backend has only mode host."""
    name = draw(st.sampled_from([name for name, entry in ENTRIES.items() for _ in range(entry.weight)]))
    entry, d = ENTRIES[name], Draw(draw, backend, others)
    mode = "framework" if not backend.host_only and d.rarely(5) else "host"
    call = HostileCall(name, entry, {}, (), d.watched, False, backend, mode, d.dtype == "float64" or d.rarely())
    with call.environment():
        arguments = complete(entry.run, entry.make(d), d)
        names = [n for n in arguments if n not in entry.fixed]
        spoilt = {d.one(*names) for _ in range(d.one(1, 0, 1, 1, 1, 2))} if names else set()
        for n in sorted(spoilt):
            arguments[n] = d.one(*BY_NAME[n]) if n in BY_NAME and d.rarely(80) else d.spoil(arguments[n])
            if (name == "optimizer" or n == "fn") and callable(arguments[n]):  # its errors would be the user's
                arguments[n] = None
    return call._replace(arguments=arguments, spoilt=tuple(sorted(spoilt)), aliased=d.aliased)
