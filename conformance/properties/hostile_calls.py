"""The public calls that hostile input goes to: how good arguments are made, and which of them a call may change.

An entry makes arguments that fit together; `draw_call` then spoils one or two of them, or lets two share memory.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

import islices
from islices.backend import Backend
from islices.conformance.operations import own_calls_of
from islices.conformance.oracle_optim import OPTIMIZERS
from islices.conformance.properties.hostile_input import Draw, Watched
from islices.conformance.properties.hostile_junk import NUMBERS, SHAPES
from islices.distributed import Alone, ShardedTable, all_reduce
from islices.optim.record import RECORDS

__all__ = ["ENTRIES", "Call", "draw_call"]

Arguments = dict[str, Any]
COMBINERS = ("sum", "mean", "sqrtn", "max")


class Entry(NamedTuple):
    """A public call: ``run`` takes the arguments by name, ``make`` draws good ones."""

    run: Callable[..., Any]
    make: Callable[[Draw], Arguments]
    weight: int = 4
    #: arguments that change in place where the call succeeds
    targets: tuple[str, ...] = ()
    #: what this call may raise beyond the common errors
    raises: tuple[type[BaseException], ...] = ()
    #: words a message may name beside the arguments
    words: tuple[str, ...] = ()
    #: arguments that stay as they are
    fixed: tuple[str, ...] = ()


class Call(NamedTuple):
    """A call ready to be made."""

    name: str
    entry: Entry
    arguments: Arguments
    spoilt: tuple[str, ...]
    watched: list[Watched]
    aliased: bool
    mode: str


def function(name: str, make: Callable[[Draw], Arguments], **options: Any) -> tuple[str, Entry]:
    return name, Entry(getattr(islices, name), make, **options)


def limit(d: Draw) -> Any:
    """A number, or an array of it without dimensions (MXNet's: of one element)."""
    number = d.rng.choice((0.0, 0.5, 2.0, 1e9, float("inf")))
    shape = (1,) if d.backend.name == "mxnet" else ()
    return d.own(np.full(shape, number, "float32"), "limit") if d.rng.random() < 0.2 else number


def clipping(d: Draw, **tree: Any) -> Arguments:
    return {**tree, "max_norm": limit(d), "nonfinite": d.rng.choice(("propagate", "zero", "raise"))}


def bounds(d: Draw) -> Arguments:
    lo, hi = d.rng.choice((-1.0, 0.0)), limit(d)
    return {"x": d.tree(), "lo": lo, "hi": hi, "semantics": "islices"}


def over_ranks(d: Draw) -> Arguments:
    return {"group": d.rng.choice((None, Alone())), "replicated": False}


def lookup(d: Draw) -> Arguments:
    combiner = d.rng.choice((None, *COMBINERS))
    shape: tuple[int, ...] = (d.n, 2) if combiner else d.rng.choice(((d.n,), (d.n, 2), ()))
    out: Arguments = {"table": d.table(), "ids": d.ids(shape if d.rows else (0, 2)), "combiner": combiner}
    out |= {"padding_idx": None, "mask": None, "weights": None, "offsets": None, "include_last_offset": False}
    out |= {"invalid": d.rng.choice(("raise", "drop")), "max_norm": d.rng.choice((None, None, limit(d)))}
    if combiner and d.rng.random() < 0.5:
        out["ids"] = d.ids((d.n,))
        out["offsets"] = d.own(np.array(sorted({0, d.n // 2}) if d.n else [0], "int64"), "offsets")
        out["include_last_offset"] = d.n > 1 and d.rng.random() < 0.3
    shape = cast("tuple[int, ...]", d.backend.shape(out["ids"]))
    if combiner and combiner != "max" and d.rng.random() < 0.5:
        out["weights"] = d.dense(shape, label="weights")
    if d.rng.random() < 0.3:
        out["mask"] = np.ones(shape, bool)
    if len(shape) == 1 and out["offsets"] is None and d.rng.random() < 0.3:
        out["ids"] = pair(d, out["ids"])
    return out


def pair(d: Draw, values: Any) -> tuple[Any, Any]:
    """Ids as (values, lengths): rows that hold all of them, or leave some behind."""
    n = d.backend.shape(values)[0]
    assert n is not None
    lengths = np.array([n // 2, 0, n - n // 2 - (n > 0 and d.rng.random() < 0.5)], d.index_type)
    return values, d.own(lengths, "lengths")


def upstream(d: Draw) -> Arguments:
    shape: tuple[int, ...] = d.rng.choice(((d.n,), (d.n, 2)))
    ids = d.ids(shape if d.rows else (0, 2))
    shape = cast("tuple[int, ...]", d.backend.shape(ids))
    mask = np.ones(shape, bool) if d.rng.random() < 0.3 else None
    padding = d.rng.randrange(d.rows) if d.rows and d.rng.random() < 0.3 else None
    out = {
        "upstream": d.dense((*shape, *d.row_shape), label="upstream"), "ids": ids, "num_rows": d.rows,
        "padding_idx": padding, "mask": mask, "invalid": d.rng.choice(("raise", "drop")),
    }  # fmt: skip
    if len(shape) == 1 and d.rng.random() < 0.2:
        out["ids"] = pair(d, ids)
    return out


def batch_of(d: Draw, ids: Any) -> Any:
    return d.backend.shape(ids[1] if isinstance(ids, tuple) else ids)[0]


def tied(d: Draw) -> Arguments:
    """Samples of a table that may be an output layer, too."""
    out = upstream(d)
    product = None
    if d.rng.random() < 0.5 and len(d.row_shape) == 1:
        batch = batch_of(d, out["ids"])
        shape: tuple[Any, ...] = d.rng.choice(((batch,), (batch, 2), (batch, 0)))
        product = (d.dense((*shape, d.rows), label="g"), d.dense((*shape, *d.row_shape), label="x"))
    return {**out, "product": product}


def scatter(d: Draw) -> Arguments:
    table, x = d.table(), d.sparse()
    if d.rng.random() < 0.2 and d.n and d.rows >= d.n:  # a gradient that lies in the table it is added to
        weights = table.weights if isinstance(table, islices.Table) else table
        part = weights[: d.n]
        if d.backend.is_array(part):
            d.aliased = True
            x = islices.IndexedSlices(part, d.ids(), d.shape)
    return {"table": table, "x": x, "donate": d.rng.random() < 0.2}


def step(d: Draw) -> Arguments:
    """An optimizer's step, of one table or of several."""
    name, hyper = d.rng.choice(list(OPTIMIZERS.values()))
    rows = d.rng.choice(("touched", "touched", "all"))
    optimizer = getattr(islices.optim, name)(**hyper, rows=rows)
    several = d.rng.random() < 0.3
    tables = [d.table() for _ in range(2 if several else 1)]
    states = [optimizer.init(t) for t in tables]
    for state in states:
        d.watched += [d.read(f"state[{key!r}]", x) for key, x in state.items()]
    grads = [d.rng.choice((d.sparse, d.sparse, d.dense))() for _ in tables]
    arguments = {"table": tables, "grad": grads, "state": states} if several else {
        "table": tables[0], "grad": grads[0], "state": states[0]
    }  # fmt: skip
    return {"optimizer": optimizer, **arguments, "donate": d.rng.random() < 0.2, "apply": True}


def optimizer(d: Draw) -> Arguments:
    name, hyper = d.rng.choice(list(OPTIMIZERS.values()))
    options = {"rows": "touched", "semantics": "islices", "maximize": False, "frozen": None}
    number = d.rng.choice([k for k, x in hyper.items() if type(x) is float and k not in RECORDS[name].fixed])
    by_step = d.rng.choice((hyper[number], lambda step: hyper[number], np.array([hyper[number]])))
    return {"name": name, **hyper, number: by_step, **options}


def make_and_step(name: str, **options: Any) -> Any:
    """An optimizer of hostile hyperparameters; its first step is on something good."""
    made = getattr(islices.optim, name)(**options)
    table = np.ones((6, 3), np.float32)
    grad = islices.IndexedSlices(np.ones((2, 3), np.float32), np.array([1, 1]), (6, 3))
    return made.step(table, grad, made.init(table))


def unscale(d: Draw) -> Arguments:
    scale = islices.optim.LossScale(1024.0)
    tree = d.tree()
    return {"tree": tree, "state": scale.init(d.dense(label="like"))}


def differentiated(weighted_sum: Any, table: Any, ids: Any, weights: Any, argnums: Any) -> Any:
    def loss(table: Any, weights: Any) -> Any:
        rows = islices.lookup(table, ids)
        return weighted_sum(weights, weights) if argnums == 1 else weighted_sum(rows, rows)

    return islices.value_and_grad(loss, argnums)(table, weights)


def gradient_arguments(d: Draw) -> Arguments:
    d.dtype = "float32"
    own = getattr(own_calls_of(d.backend), "weighted_sum", lambda rows, weights: (rows * weights).sum())
    return {
        "weighted_sum": own, "table": islices.Table(d.dense(label="table")), "ids": d.ids(),
        "weights": d.dense((2, 3)), "argnums": d.rng.choice((0, 1, (0,))),
    }  # fmt: skip


def parts(d: Draw) -> Arguments:
    s = d.slices()
    flags = {"coalesced": False, "padded": False}
    return {"values": s.values, "indices": s.indices, "dense_shape": s.dense_shape, **flags}


def per_sample_of(method: str) -> Callable[..., Any]:
    def run(argument: Any, **options: Any) -> Any:
        g = islices.per_sample(**options)
        return getattr(g, method)(*([] if argument is None else [argument]))

    return run


def with_argument(argument: Any) -> Callable[[Draw], Arguments]:
    return lambda d: {"argument": argument, **tied(d)}


def replace(s: Any, values: Any, indices: Any) -> Any:
    return s.replace(values=values, indices=indices) if isinstance(s, islices.IndexedSlices) else None


def operators(x: Any, c: Any) -> Any:
    if isinstance(x, islices.IndexedSlices):  # else they are not ours
        return x + c, x - c, x * c, -x
    return None


def samples(d: Draw) -> Arguments:
    of_table = tied(d)
    return clipping(d, **of_table, dense=d.dense((batch_of(d, of_table["ids"]), 2)))


def loss_scale(d: Draw) -> Arguments:
    return {"initial": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3}


def entered(manager: Callable[..., Any]) -> Callable[..., Any]:
    def run(**options: Any) -> None:
        with manager(**options):
            pass

    return run


def threads(n: Any) -> None:
    before = islices.get_num_threads()
    islices.set_num_threads(n)
    islices.set_num_threads(before)


def saved(tree: Any, metadata: Any, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        islices.save(os.path.join(folder, f"a{suffix}"), tree, metadata=metadata)


def loaded(tree: Any, suffix: str, backend: Any, foreign: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        islices.save(path := os.path.join(folder, f"a{suffix}"), tree)
        return islices.load(path, backend=backend, foreign=foreign)


def file_arguments(d: Draw, **others: Any) -> Arguments:
    return {"tree": d.tree(), "suffix": ".safetensors", **others}


def sharded(shard_weights: Any, num_rows: Any, padding_idx: Any, ids: Any, grad: Any, op: Any) -> Any:
    """A table of one rank: what it makes of its ids and of a gradient of all its rows."""
    table = ShardedTable(shard_weights, num_rows, Alone(), padding_idx=padding_idx)
    batch = table.fetch(ids)
    return table.lookup(ids), batch.ids, table.reduce(batch, grad, op)


def shard_arguments(d: Draw) -> Arguments:
    padding = d.rng.choice((None, 0)) if d.rows else None
    ids = d.own(
        np.arange(d.rows, dtype=d.index_type), "ids"
    )  # all of them: the batch is the table, and so is the gradient
    return {
        "shard_weights": d.dense(label="shard_weights"), "num_rows": d.rows, "padding_idx": padding, "ids": ids,
        "grad": d.rng.choice((d.slices, d.dense))(), "op": d.rng.choice(("sum", "mean")),
    }  # fmt: skip


def compared(**arguments: Any) -> str:
    return str(islices.diff(**arguments))


def told(d: Draw) -> Arguments:
    """What a caller may tell of two sides."""
    given = {"max_norm": 1.0, "padding_idx": 0, "batch_size": 2, "tokens": 6}
    return {"names": ("a", "b"), **{name: d.rng.choice((None, value)) for name, value in given.items()}}


def two_sides(d: Draw) -> Arguments:
    return {"a": d.tree(), "b": d.tree(), "before": d.rng.choice((None, None, d.tree())), **told(d)}


def followed(gradients_a: Any, gradients_b: Any, **arguments: Any) -> str:
    return str(islices.parity([{"gradients": gradients_a}], [{"gradients": gradients_b}], **arguments))


def two_steps(d: Draw) -> Arguments:
    return {"gradients_a": d.tree(), "gradients_b": d.tree(), **told(d)}


def rows(d: Draw) -> Any:
    if d.rng.random() < 0.5:
        return [d.rng.randrange(d.rows)] if d.rows else []
    return d.rng.choice((lambda: d.ids(label="rows"), lambda: np.ones(d.rows, bool)))()


ENTRIES: dict[str, Entry] = dict([
    ("IndexedSlices", Entry(islices.IndexedSlices, parts, weight=12)),
    ("replace", Entry(replace,
                      lambda d: {"s": d.slices(), "values": d.dense((d.n, *d.row_shape)), "indices": d.ids()},
                      )),
    ("Table", Entry(islices.Table, lambda d: {"weights": d.dense(), "padding_idx": None, "scale_by_freq": False})),
    function("from_native", lambda d: {"x": d.native(d.slices()), "dense_shape": None}, weight=8),
    function("to_native", lambda d: {"s": d.slices()}),
    function("from_dense", lambda d: {"x": d.dense(), "indices": d.rng.choice((None, d.ids(label="indices")))}),
    function("convert", lambda d: {"x": d.tree(), "backend": d.backend.name}, raises=(ModuleNotFoundError,)),
    function("get_backend", lambda d: {"name_or_array": d.rng.choice((d.backend.name, d.dense(), d.sparse()))},
             raises=(ModuleNotFoundError,), words=("backend",)),
    function("to_dense", lambda d: {"x": d.tree()}, weight=8),
    function("coalesce", lambda d: {"x": d.tree()}, weight=8),
    function("scale", lambda d: {"x": d.tree(), "c": d.rng.choice((0.5, 2, -1.0))}, weight=6),
    ("add", Entry(lambda xs: islices.add(*xs) if isinstance(xs, (list, tuple)) else islices.add(xs),
                  lambda d: {"xs": [d.gradient() for _ in range(d.rng.randrange(1, 4))]}, weight=8)),
    ("operators", Entry(operators,
                        lambda d: {"x": d.slices(), "c": d.rng.choice((d.slices, d.dense))()},
                        words=("operand", "supported", "xs"))),
    function("concat", lambda d: {"xs": [d.sparse() for _ in range(d.rng.randrange(1, 4))]}, weight=6),
    function("keep_rows", lambda d: {"x": d.tree(), "rows": rows(d)}, weight=6),
    function("drop_rows", lambda d: {"x": d.tree(), "rows": rows(d)}, weight=6),
    function("norm", lambda d: {"x": d.gradient(), "ord": d.rng.choice((1, 2, 3, 0.5, float("inf")))}, weight=6),
    function("global_norm", lambda d: {"tree": d.tree(), "ord": d.rng.choice((2, 3)), **over_ranks(d)}, weight=6,
             raises=(RuntimeError,)),
    function("clip_by_value", bounds, weight=6),
    function("clip_by_norm", lambda d: clipping(d, x=d.tree(), semantics="islices"), weight=6),
    ("clip_by_norm along axes", Entry(islices.clip_by_norm, lambda d: clipping(d, x=d.gradient(), axes=d.rng.choice(
        (0, 1, [0], [1], (-1,), []))), weight=6)),
    function("clip_by_block_rms", lambda d: {"x": d.tree(), "threshold": limit(d), "semantics": "islices"}, weight=6),
    ("adaptive_grad_clip", Entry(islices.adaptive_grad_clip, lambda d: {
        "x": d.gradient(), "params": d.table(), "clipping": limit(d), "eps": 1e-3, "axes": d.rng.choice((None, 0, 1))},
        weight=6)),
    function("clip_by_row_norm", lambda d: clipping(d, x=d.tree()), weight=6),
    function("clip_by_global_norm", lambda d: clipping(d, tree=d.tree(), semantics="islices", **over_ranks(d)),
             weight=8, raises=(RuntimeError,)),
    function("drop_padding", lambda d: {"x": d.tree(), "padding_idx": 0 if d.rows else None}),
    function("scale_by_frequency", lambda d: {"x": d.sparse()}),
    function("embedding_grad", lambda d: {**upstream(d), "scale_by_freq": d.rng.random() < 0.3}, weight=8),
    function("lookup", lookup, weight=12, words=("ids", "bags")),
    function("renorm_rows", lambda d: clipping(d, table=d.table(), ids=d.ids()), weight=6, targets=("table",)),
    *(function(f"scatter_{op}", scatter, weight=6, targets=("table",))
      for op in ("add", "sub", "update", "min", "max", "mul", "div")),
    function("per_sample", tied, weight=8),
    ("per_sample.clip", Entry(per_sample_of("clip"), with_argument(1.0), words=("max_norm",))),
    ("per_sample.slices", Entry(per_sample_of("slices"), with_argument(0), words=("b",))),
    ("per_sample.to_dense", Entry(per_sample_of("to_dense"), with_argument(None), words=("shape",))),
    ("per_sample.norms", Entry(per_sample_of("norms"), with_argument(None))),
    ("clip_per_sample", Entry(
        lambda dense, max_norm, nonfinite, **g: islices.clip_per_sample(
            [islices.per_sample(**g), dense], max_norm, nonfinite=nonfinite),
        samples, words=("tree",))),
    ("optimizer", Entry(make_and_step, optimizer, weight=8, words=("lr", "table"), fixed=("name",))),
    ("step", Entry(lambda optimizer, **options: optimizer.step(**options), step, weight=30,
                   targets=("table", "state"), fixed=("optimizer",))),
    ("init", Entry(lambda table, master: islices.optim.adam(0.1).init(table, master=master),
                   lambda d: {"table": d.table(), "master": False})),
    ("LossScale", Entry(islices.optim.LossScale, loss_scale, weight=2)),
    ("LossScale.unscale", Entry(lambda tree, state: islices.optim.LossScale().unscale(tree, state), unscale)),
    ("LossScale.update", Entry(lambda state, finite: islices.optim.LossScale().update(state, finite),
                               lambda d: {"state": unscale(d)["state"], "finite": True}, weight=2,
                               targets=("state",), words=("apply",))),
    ("value_and_grad", Entry(differentiated, gradient_arguments, weight=3, words=("fn", "argument", "args"),
                             fixed=("weighted_sum", "weights"))),
    ("save", Entry(saved, lambda d: file_arguments(d, metadata={"step": "1"}), fixed=("suffix",))),
    ("load", Entry(loaded, lambda d: file_arguments(d, backend=d.backend.name, foreign=False),
                   fixed=("suffix", "tree"), raises=(ModuleNotFoundError,), words=("name_or_array",))),
    ("diff", Entry(compared, two_sides, weight=2)),  # these two take a thousand times as long as the others
    ("parity", Entry(followed, two_steps, weight=1, words=("a", "b", "gradients"))),
    function("capture", lambda d: {"model": d.dense()}, weight=1),
    ("execution", Entry(entered(islices.execution), lambda d: {"mode": "framework"}, weight=1)),
    ("use_kernels", Entry(entered(islices.use_kernels), lambda d: {"on": False}, weight=1)),
    ("set_num_threads", Entry(threads, lambda d: {"n": 2}, weight=1)),
    ("all_reduce", Entry(lambda x, op, strategy, link: all_reduce(x, op, Alone(), strategy=strategy, link=link),
                         lambda d: {"x": d.tree(), "op": d.rng.choice(("sum", "mean")), "strategy": "auto",
                                    "link": None}, weight=8)),
    ("ShardedTable", Entry(sharded, shard_arguments, weight=8, words=("weights", "batch"))),
])  # fmt: skip

NAMES_OF_ENTRIES = [name for name, entry in ENTRIES.items() for _ in range(entry.weight)]
#: Arguments spoilt in their own way.
BY_NAME: dict[str, Sequence[Any]] = {"dense_shape": SHAPES, "num_rows": NUMBERS, "ord": NUMBERS}


def draw_call(
    rng: random.Random, backend: Backend, others: Sequence[Backend], framework_share: float, *, wide: bool
) -> Call:
    """A call, all of whose arguments are made for it alone; wide: the framework has its 64-bit types switched on."""
    name = rng.choice(NAMES_OF_ENTRIES)
    mode = "framework" if rng.random() < framework_share and not backend.host_only else "host"
    entry, d = ENTRIES[name], Draw(rng, backend, others, wide=wide)
    arguments = entry.make(d)
    names = [n for n in arguments if n not in entry.fixed]
    spoilt = tuple(rng.sample(names, min(len(names), rng.choice((0, 1, 1, 1, 1, 2)))))
    for n in spoilt:
        arguments[n] = rng.choice(BY_NAME[n]) if n in BY_NAME and rng.random() < 0.8 else d.spoil(arguments[n])
    if name == "optimizer":  # a function of the user's is a schedule, whose errors are the user's own
        arguments = {n: None if n in spoilt and callable(x) else x for n, x in arguments.items()}
    return Call(name, entry, arguments, spoilt, d.watched, d.aliased, mode)
