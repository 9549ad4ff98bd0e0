"""Call every public function on loopback arrays, and print the types in the results as JSON: mode -> function ->
types."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import loopback
import numpy as np

import islices
from islices import optim
from islices.core.row_operators import OPERATORS
from islices.distributed import Alone, ShardedTable, all_reduce
from islices.optim.record import RECORDS

B = islices.get_backend("loopback")


def array(*numbers: Any, dtype: Any = np.float32) -> loopback.LoopbackArray:
    return B.asarray(np.array(numbers, dtype))


def table() -> loopback.LoopbackArray:
    return array([1, 2], [3, 4], [5, 6], [7, 8])


def slices(**options: Any) -> islices.IndexedSlices:
    return islices.IndexedSlices(array([3, 0], [0, 8], [3, 0]), array(1, 2, 1, dtype=np.int64), (4, 2), **options)


def tree() -> dict[str, Any]:
    """Return a tree with each kind of gradient: slices, the framework's sparse type, dense, and None."""
    return {"slices": slices(), "own": islices.to_native(slices()), "dense": [table(), None]}


def samples() -> islices.embedding.per_sample.PerSample:
    ids = array([1, 2], [1, 1], dtype=np.int32)
    return islices.per_sample(B.asarray(np.ones((2, 2, 3), np.float32)), ids, 4)


def steps() -> list[Any]:
    rules = [getattr(optim, name) for name in RECORDS]
    return [
        rule(0.1).step(weights, gradient, rule(0.1).init(weights))
        for rule in rules
        for gradient in (slices(), islices.to_native(slices()))
        for weights in (table(),)
    ]


def bags() -> list[Any]:
    ids, starts = array(1, 0, 2, dtype=np.int64), array(0, 2, dtype=np.int64)
    return [
        islices.lookup(islices.Table(table(), padding_idx=0), ids, combiner=combiner, offsets=starts)
        for combiner in ("sum", "mean", "sqrtn", "max")
    ]


def padded_gradient() -> islices.IndexedSlices:
    ids = array([1, 0], [3, 3], dtype=np.int32)
    mask = B.asarray(np.array([[True, True], [False, True]]))
    upstream = B.asarray(np.ones((2, 2, 3), np.float32))
    return islices.embedding_grad(upstream, ids, 4, padding_idx=0, mask=mask, scale_by_freq=True)


def through_a_file() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        islices.save(path := os.path.join(folder, "tree.safetensors"), tree())
        return islices.load(path, backend="loopback")


def compared() -> Any:
    """Check that `diff` reports a difference between two trees of loopback arrays, and return such a tree."""
    found = islices.diff(tree(), islices.scale(tree(), 0.5))
    assert not found.equal
    assert str(found)
    return tree()


def sharded() -> list[Any]:
    """Return the results of ShardedTable's methods on a single rank."""
    rows = ShardedTable.from_full(table(), Alone(), padding_idx=0)
    batch = rows.fetch(array(1, 2, 1, dtype=np.int64))
    gradient = rows.reduce(batch, islices.IndexedSlices(array([1, 1]), array(1, dtype=np.int64), (2, 2)))
    optimizer = optim.adagrad(0.1)
    state = rows.step(optimizer, gradient, rows.init(optimizer))
    return [rows.lookup(batch.ids), batch.ids, batch.table.weights, gradient, state, rows.shard.weights]


CALLS: dict[str, Callable[[], Any]] = {
    "IndexedSlices": lambda: [slices() + slices() - slices() * 2, -slices(), slices().replace(values=slices().values)],
    "PerSample": lambda: [samples().norms(), samples().clip(1.0), samples().sum(), samples().to_dense()],
    "Table": lambda: islices.Table(table()).weights,
    "add": lambda: [islices.add(slices(), table()), islices.add(slices(), slices()), slices() + table()],
    "ShardedTable": sharded,
    "all_reduce": lambda: all_reduce(tree(), "mean", Alone()),
    "clip_by_global_norm": lambda: islices.clip_by_global_norm(tree(), 1.0),
    "clip_by_norm": lambda: [islices.clip_by_norm(tree(), 1.0), islices.clip_by_norm(tree(), 1.0, axes=0)],
    "adaptive_grad_clip": lambda: islices.norms.adaptive_grad_clip(slices(), islices.to_dense(slices()), 0.1),
    "clip_by_block_rms": lambda: islices.norms.clip_by_block_rms(tree(), 0.1),
    "clip_by_row_norm": lambda: islices.clip_by_row_norm(tree(), 1.0),
    "clip_by_value": lambda: islices.clip_by_value(tree(), -1, 1),
    "clip_per_sample": lambda: islices.clip_per_sample([samples(), B.asarray(np.ones((2, 3), np.float32))], 1.0),
    "coalesce": lambda: islices.coalesce(tree()),
    "concat": lambda: islices.concat([slices(), slices()]),
    "convert": lambda: islices.convert(islices.convert(tree(), "numpy"), "loopback"),
    "diff": compared,
    "drop_padding": lambda: islices.drop_padding(tree(), -1),
    "drop_rows": lambda: islices.drop_rows(tree(), [1]),
    "embedding_grad": padded_gradient,
    "from_dense": lambda: islices.from_dense(table()),
    "from_native": lambda: islices.from_native(islices.to_native(slices())),
    "global_norm": lambda: islices.global_norm(tree()),
    "keep_rows": lambda: islices.keep_rows(tree(), B.asarray(np.array([True, False, True, False]))),
    "load": through_a_file,
    "lookup": lambda: [islices.lookup(table(), array([1, 2], [0, 0], dtype=np.int64)), bags()],
    "norm": lambda: [islices.norm(leaf, ord) for leaf in (slices(), table()) for ord in (1, 2, float("inf"))],
    "optim": steps,
    "per_sample": lambda: samples().slices(0),
    "renorm_rows": lambda: islices.renorm_rows(table(), array(1, 1, dtype=np.int64), 1.0),
    "save": through_a_file,
    "scale": lambda: islices.scale(tree(), 0.5),
    "scale_by_frequency": lambda: islices.scale_by_frequency(slices()),
    "to_dense": lambda: islices.to_dense(tree()),
    "to_native": lambda: islices.to_native(slices()),
    "scatter": lambda: [islices.scatter(table(), slices(), op) for op in OPERATORS],
}


def kinds(x: Any) -> Iterator[str]:
    """Yield the names of the types in a result."""
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (list, tuple)):
        for item in x:
            yield from kinds(item)
    elif isinstance(x, islices.IndexedSlices):
        yield from kinds([x.values, x.indices])
    elif isinstance(x, islices.embedding.per_sample.PerSample):
        yield from kinds(x.sum())
    elif B.is_native(x):
        yield type(x).__name__
        yield from kinds(B.from_native(x)[:2])
    elif x is not None:
        yield type(x).__name__


def outcome(mode: str) -> dict[str, list[str]]:
    with islices.config.execution(mode):
        return {name: sorted(set(kinds(call()))) for name, call in CALLS.items()}


print(json.dumps({mode: outcome(mode) for mode in ("host", "framework")}))
