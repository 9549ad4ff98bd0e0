"""What the ranks of tests/islices/distributed/test_sharded_table.py run, and the same in one process, with NumPy."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import islices
import islices.io
from islices import IndexedSlices, embedding_grad, optim
from islices.distributed import Alone, RankError, get_group
from islices.distributed.shard_header import read_sharded_header
from islices.distributed.sharded import ShardedTable
from islices.distributed.shards import load_sharded, save_sharded

Host = np.ndarray[Any, Any]
#: How many batches a step takes, on any number of ranks.
BATCHES = 4
STEPS, MIDDLE = 100, 50
TABLES = {"centre": optim.adam(0.02), "context": optim.adagrad(0.1)}


# ---------------------------------------------------------------------- words and their neighbours
WORDS, WIDTH, CENTRES, NEAR, FAR, PADDING = 2001, 8, 16, 4, 5, 0
SIGN = np.repeat([1.0, -1.0], [NEAR, FAR]).astype(np.float32)


def start() -> dict[str, Host]:
    """Return both tables; the padding's row is zeros."""
    rng = np.random.default_rng(7)
    tables = {name: rng.normal(0, 0.1, (WORDS, WIDTH)).astype(np.float32) for name in TABLES}
    for table in tables.values():
        table[PADDING] = 0
    return tables


def batches() -> Iterator[dict[str, Host]]:
    """Yield ids by Zipf's law, so that ranks share rows; some neighbours are padding."""
    rng = np.random.default_rng(8)
    weights = 1 / np.arange(1, WORDS)
    weights /= weights.sum()
    while True:
        ids = 1 + rng.choice(WORDS - 1, (CENTRES, 1 + NEAR + FAR), p=weights).astype(np.int32)
        ids[:, 1 : 1 + NEAR][rng.random((CENTRES, NEAR)) < 0.1] = PADDING
        yield {"centre": ids[:, 0], "context": ids[:, 1:], "sign": SIGN}


def upstream(centre: Host, context: Host, sign: Host, exact: bool) -> tuple[Host, Host]:
    """The gradient of sum(log(1 + exp(-sign * centre . context))) / 64 at the rows that were looked up. exact: in
    multiples of 2^-14, of which sums of 2^10 below 1 are exact in float32."""
    score = (centre[:, None] * context).sum(-1) * -sign
    slope = (-sign / (np.float32(1) + np.exp(-score)) / np.float32(64))[..., None]
    at_centre, at_context = (slope * context).sum(1), slope * centre[:, None]
    if exact:
        at_centre, at_context = (np.rint(g * np.float32(2**14)) / np.float32(2**14) for g in (at_centre, at_context))
    return at_centre, at_context


def batches_of_steps(first: int, last: int) -> Any:
    """Per step, its batches."""
    found = batches()
    steps = ([next(found) for _ in range(BATCHES)] for _ in range(last))
    return (step for number, step in enumerate(steps) if number >= first)


def joined(batches: list[dict[str, Host]]) -> dict[str, Host]:
    """One batch of several, with the sign of any."""
    return {name: np.concatenate([b[name] for b in batches]) for name in TABLES} | {"sign": batches[0]["sign"]}


def train_sharded(group: Any, folder: str | None = None, exact: bool = False, resume: bool = False) -> dict[str, Any]:
    """100 steps on sharded tables, each rank taking its share of the four batches as one; saved, or resumed, at 50."""
    full = start()
    if resume:
        loaded = {name: load_sharded(f"{folder}/{name}", group) for name in TABLES}
        tables = {name: table for name, (table, _) in loaded.items()}
        states: dict[str, Any] = {name: state for name, (_, state) in loaded.items()}
    else:
        tables = {name: ShardedTable.from_full(full[name], group, padding_idx=PADDING) for name in TABLES}
        states = {name: table.init(TABLES[name]) for name, table in tables.items()}
    share = BATCHES // group.size
    halfway = {}
    for number, step in enumerate(batches_of_steps(MIDDLE if resume else 0, STEPS), MIDDLE if resume else 0):
        batch = joined(step[group.rank * share : (group.rank + 1) * share])
        got = {name: table.fetch(batch[name]) for name, table in tables.items()}
        rows = [islices.lookup(got[name].table, got[name].ids) for name in TABLES]
        for name, g in zip(TABLES, upstream(*rows, batch["sign"], exact), strict=True):
            local = got[name].table
            grad = embedding_grad(g, got[name].ids, local.shape[0], padding_idx=local.padding_idx)
            states[name] = tables[name].step(TABLES[name], tables[name].reduce(got[name], grad), states[name])
        if number + 1 == MIDDLE and not resume:
            halfway = parts_of(tables, states)
            if folder is not None:
                for name, table in tables.items():
                    save_sharded(f"{folder}/{name}", table, states[name], metadata={"optimizer": repr(TABLES[name])})
    return {"end": parts_of(tables, states), "middle": halfway}


def parts_of(tables: dict[str, ShardedTable], states: dict[str, Any]) -> dict[str, dict[str, Host]]:
    return {
        name: {"weights": table.shard.weights.copy()} | {key: x.copy() for key, x in states[name].items()}
        for name, table in tables.items()
    }


def train_alone(exact: bool) -> dict[str, Any]:
    """The same in one process that knows nothing of ranks: four batches a step, each coalesced, concatenated in their
    order, coalesced; exact: one batch of all four."""
    tables = start()
    states = {name: TABLES[name].init(table) for name, table in tables.items()}
    middle = {}
    for number, step in enumerate(batches_of_steps(0, STEPS)):
        grads: dict[str, list[IndexedSlices]] = {name: [] for name in TABLES}
        for batch in [joined(step)] if exact else step:
            rows = [islices.lookup(tables[name], batch[name]) for name in TABLES]
            for name, g in zip(TABLES, upstream(*rows, batch["sign"], exact), strict=True):
                grads[name].append(
                    islices.coalesce(embedding_grad(g, batch[name], tables[name].shape[0], padding_idx=PADDING))
                )
        for name, optimizer in TABLES.items():
            grad = islices.coalesce(islices.concat(grads[name]))
            tables[name], states[name] = optimizer.step(tables[name], grad, states[name])
        if number + 1 == MIDDLE:
            middle = {n: {"weights": tables[n].copy()} | {k: x.copy() for k, x in states[n].items()} for n in TABLES}
    end = {name: {"weights": tables[name], **states[name]} for name in TABLES}
    return {"end": end, "middle": middle}


# ---------------------------------------------------------------------- every optimizer
class Decay:
    """A schedule whose name in messages has its place in memory, which is another one on every rank."""

    def __init__(self, start: float) -> None:
        self.start = start

    def __call__(self, taken: int) -> float:
        return self.start / (taken + 1)


ROWS, DIM, CLIP = 23, 3, 0.5
OPTIMIZERS = {
    "sgd": lambda **o: optim.sgd(0.1, momentum=0.9, **o),
    "adagrad": lambda **o: optim.adagrad(0.1, **o),
    "rowwise_adagrad": lambda **o: optim.rowwise_adagrad(0.1, **o),
    "rmsprop": lambda **o: optim.rmsprop(0.1, centered=True, **o),
    "adam": lambda **o: optim.adam(Decay(0.1), **o),
    "adamw": lambda **o: optim.adamw(0.1, **o),
    "ftrl": lambda **o: optim.ftrl(0.1, l1=0.01, **o),
}
#: name -> (optimizer, dtype, rows of the table, master)
CASES = {
    f"{name}-{rows}": (make(rows=rows), "float32", ROWS, False)
    for name, make in OPTIMIZERS.items() for rows in ("touched", "all")
} | {
    "frozen": (optim.adamw(0.1, rows="all", frozen=[0, 7, 8, 22]), "float32", ROWS, False),
    "frozen-mask": (optim.sgd(0.1, frozen=np.arange(ROWS) % 3 == 0), "float32", ROWS, False),
    "clipped": (OPTIMIZERS["adagrad"](), "float32", ROWS, False),
    "float64": (OPTIMIZERS["adam"](), "float64", ROWS, False),
    "float16": (OPTIMIZERS["adagrad"](), "float16", ROWS, False),
    "bfloat16-master": (OPTIMIZERS["adam"](), "bfloat16", ROWS, True),
    "fewer-rows-than-ranks": (OPTIMIZERS["adam"](rows="all"), "float32", 3, False),
    "no-rows": (OPTIMIZERS["sgd"](), "float32", 0, False),
}  # fmt: skip


def start_of(name: str) -> Host:
    _, dtype, rows, _ = CASES[name]
    return _cast(np.random.default_rng(3).normal(size=(rows, DIM)), dtype)


def lookups_of(name: str, step: int, rank: int) -> tuple[Host, Host]:
    """(ids, upstream); rank 1 has none in step 1, and nobody has any in step 2."""
    _, dtype, rows, _ = CASES[name]
    rng = np.random.default_rng([step, rank])
    n = 0 if rows == 0 or step == 2 or (rank, step) == (1, 1) else 9
    ids = rng.integers(0, max(1, rows), n)
    return ids, _cast(rng.normal(size=(n, DIM)), dtype)


def _cast(x: Host, dtype: str) -> Host:
    if dtype == "bfloat16":
        import ml_dtypes

        return x.astype(ml_dtypes.bfloat16)
    return x.astype(dtype)


def optimize_sharded(group: Any) -> dict[str, Any]:
    """4 steps of each case: the shard and its state, and the last mean gradient."""
    out = {}
    for name, (optimizer, _, _, master) in CASES.items():
        table = ShardedTable.from_full(start_of(name), group)
        state = table.init(optimizer, master=master)
        for step in range(4):
            ids, g = lookups_of(name, step, group.rank)
            batch = table.fetch(ids)
            assert table.lookup(ids).tobytes() == islices.lookup(batch.table, batch.ids).tobytes()
            grad = embedding_grad(g, batch.ids, batch.table.shape[0])
            mean = table.reduce(batch, grad, "mean")
            reduced = table.reduce(batch, grad)
            if name == "clipped":
                reduced, _ = islices.clip_by_global_norm(reduced, CLIP, group=group)
            state = table.step(optimizer, reduced, state)
        out[name] = {"weights": table.shard.weights, **state, "mean": islices.to_dense(mean)}
    return out


def optimize_alone(ranks: int) -> dict[str, Any]:
    out = {}
    for name, (optimizer, _, rows, master) in CASES.items():
        table = start_of(name)
        state = optimizer.init(table, master=master)
        for step in range(4):
            grads = []
            for rank in range(ranks):
                ids, g = lookups_of(name, step, rank)
                grads.append(islices.coalesce(embedding_grad(g, ids, rows)))
            grad = islices.coalesce(islices.concat(grads))
            step_by = islices.clip_by_global_norm(grad, CLIP)[0] if name == "clipped" else grad
            table, state = optimizer.step(table, step_by, state)
        wide = islices.to_dense(grad)
        narrow = wide.dtype.itemsize == 2
        mean = ((wide.astype(np.float32) if narrow else wide) / ranks).astype(wide.dtype)  # NumPy's division
        out[name] = {"weights": table, **state, "mean": mean}
    return out


# ---------------------------------------------------------------------- options of lookups, and what moves
def options(group: Any) -> dict[str, Any]:
    """Bags, padding and frequencies on the fetched rows; the bytes of one step."""
    full, ids, g = option_inputs(group.rank)
    table = ShardedTable.from_full(full, group, padding_idx=-1, scale_by_freq=True)
    batch = table.fetch(ids.astype(np.int32))
    bags = islices.lookup(batch.table, batch.ids, combiner="mean")
    grad = embedding_grad(g, batch.ids, batch.table.shape[0], padding_idx=batch.table.padding_idx, scale_by_freq=True)
    reduced = table.reduce(batch, grad)
    dense = table.reduce(batch, islices.to_dense(grad))  # names the rows of zeros too, but not the padding's
    group.traffic.reset()
    table.fetch(ids)
    fetched = group.traffic.sent, group.traffic.received, group.traffic.collectives
    return {
        "bags": bags, "reduced": (reduced.values, reduced.indices), "dense": (dense.values, dense.indices),
        "dtypes": (batch.ids.dtype.name, batch.ids.shape), "rows": batch.indices, "padding": batch.table.padding_idx,
        "shard padding": table.shard.padding_idx, "bounds": table.bounds, "fetched": fetched, "repr": repr(table),
        "many ranks": _as_among_many(table, ids, g),
    }  # fmt: skip


def _as_among_many(table: ShardedTable, ids: Host, g: Host) -> Any:
    """The same gradient where counts no longer travel with the agreement."""
    from islices.distributed import routes

    within, routes.WITHIN = routes.WITHIN, 1
    batch = table.fetch(ids)
    local = batch.table
    grad = embedding_grad(g, batch.ids, local.shape[0], padding_idx=local.padding_idx, scale_by_freq=True)
    reduced = table.reduce(batch, grad)
    routes.WITHIN = within
    return reduced.values, reduced.indices


def option_inputs(rank: int) -> tuple[Host, Host, Host]:
    rng = np.random.default_rng(rank)
    full = np.random.default_rng(0).normal(size=(11, 2)).astype(np.float32)
    ids = rng.integers(0, 11, (4, 5))
    ids[:, -1] = 10  # the padding
    return full, ids, rng.normal(size=(4, 5, 2)).astype(np.float32)


# ---------------------------------------------------------------------- errors
def errors(group: Any, folder: str) -> dict[str, tuple[str, str, tuple[int, ...]]]:
    """What each rank raises where one of them, or all together, are wrong: (class, message, ranks); and that the table
    has kept its bits, and can still be used."""
    full = np.arange(20, dtype=np.float32).reshape(10, 2)
    table = ShardedTable.from_full(full, group)
    twin = ShardedTable.from_full(full, group)
    rank, last = group.rank, group.size - 1
    sgd, adam = optim.sgd(1.0), optim.adam(1.0)
    state = table.init(adam)
    batch = table.fetch(np.array([0, 9]))
    older = table.fetch(np.array([rank]))
    grad = IndexedSlices(np.ones((1, 2), np.float32), np.array([1]), (2, 2))
    reduced = table.reduce(batch, grad)
    wide = IndexedSlices(np.ones((1, 2)), np.array([1]), (2, 2))
    longer = IndexedSlices(np.ones((1, 2), np.float32), np.array([1]), (3, 2))
    behind = {**state, "step": state["step"] + (rank == 0)}
    full_shard = full[table.bounds[rank] : table.bounds[rank + 1]]
    calls = {
        "ids out of range": lambda: table.fetch(np.array([0, 10 if rank == last else 9])),
        "ids of floats": lambda: table.lookup(np.ones(2) if rank == last else np.array([1])),
        "rows differ": lambda: ShardedTable(full[:2], 9 if rank else 8, group),
        "no table": lambda: ShardedTable.from_full([1.0] if rank == last else full, group),
        "padding differs": lambda: ShardedTable.from_full(full, group, padding_idx=rank % 2),
        "shard of other rows": lambda: ShardedTable(full_shard if rank < last else full, 10, group),
        "shard of integers": lambda: ShardedTable(full_shard.astype(int) if rank == last else full_shard, 10, group),
        "rows no number": lambda: ShardedTable(full_shard, "10" if rank == last else 10, group),
        "another table": lambda: (table if rank else twin).fetch(np.array([1])),
        "another batch": lambda: table.reduce(batch if rank else older, None),
        "no batch": lambda: table.reduce(batch if rank < last else 3, None),
        "op differs": lambda: table.reduce(batch, grad, "mean" if rank else "sum"),
        "grad of another dtype": lambda: table.reduce(batch, wide if rank == last else grad),
        "grad of another shape": lambda: table.reduce(batch, longer if rank == last else grad),
        "optimizers differ": lambda: table.step(adam if rank else sgd, reduced, state if rank else table.init(sgd)),
        "schedules differ": lambda: table.step(optim.adam(Decay(2.0 if rank else 1.0)), reduced, state),
        "frozen rows differ": lambda: table.step(optim.adam(1.0, frozen=[rank % 2]), reduced, state),
        "donate": lambda: table.step(adam, reduced, state, donate=2 if rank == last else True),  # type: ignore[arg-type]
        "no optimizer": lambda: table.step("adam", reduced, state),
        "step counts differ": lambda: table.step(adam, reduced, behind),
        "state of another": lambda: table.step(adam, reduced, table.init(sgd) if rank == last else state),
        "one has no gradient": lambda: table.step(adam, reduced if rank else None, state),
        "raw duplicates": lambda: table.init(optim.adam(1.0, semantics="keras", rows="all", duplicates="raw")),
        "frozen row of none": lambda: table.init(optim.sgd(1.0, frozen=[10])),
        "init of another shape": lambda: ShardedTable.create(10, (2,), _longer if rank == last else _zeros, group),
        "init that raises": lambda: ShardedTable.create(10, (2,), _raising if rank == last else _zeros, group),
        "folders of their own": lambda: save_sharded(f"{folder}/own/{rank}", table),
        "folder that cannot be": lambda: save_sharded("/dev/null/x" if rank == last else "/tmp", table, state),
        "disk that is full": lambda: _save_on_full_disk(folder, table, rank == last),
        "state not of the table": lambda: save_sharded("/dev/null/x", table, {"step": 1}),
    }  # fmt: skip
    found = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            found[name] = type(error).__name__, str(error), getattr(error, "ranks", ())
        else:
            found[name] = "none", "", ()
    assert table.shard.weights.tobytes() == full_shard.tobytes()
    assert table.reduce(batch, None) is None
    kept = {key: x.tobytes() for key, x in state.items()}
    state = table.step(adam, None, state)  # takes none
    assert {key: x.tobytes() for key, x in state.items()} == kept
    some = table.reduce(batch, grad if rank == last else None)
    table.step(sgd, some, table.init(sgd))
    assert np.concatenate([table.lookup(np.arange(10))])[9].tolist() == [17.0, 18.0]
    return found


def _save_on_full_disk(folder: str, table: ShardedTable, full: bool) -> None:
    """A checkpoint that one rank has no room for."""
    from islices.distributed import shards

    class Full:
        def save(self, *args: Any, **kwargs: Any) -> None:
            raise OSError(28, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(islices.io, name)

    try:
        shards.io = Full() if full else islices.io
        save_sharded(f"{folder}/full", table)
    finally:
        shards.io = islices.io


def _zeros(start: int, stop: int) -> Host:
    return np.zeros((stop - start, 2), np.float32)


def _longer(start: int, stop: int) -> Host:
    return _zeros(start, stop + 1)


def _raising(start: int, stop: int) -> Host:
    raise OSError("no such start")


def on_mpi(group: Any, folder: str) -> dict[str, Any]:
    """Everything that runs on MPI with NumPy, in one launch."""
    return {
        "trained": train_sharded(group), "exact": train_sharded(group, folder, exact=True),
        "optimized": optimize_sharded(group), "options": options(group), "errors": errors(group, folder),
    }  # fmt: skip


# ---------------------------------------------------------------------- faults
def digest(table: ShardedTable, state: dict[str, Any]) -> bytes:
    """The bits of a shard and its state."""
    arrays = [table.shard.weights, *state.values()]
    return b"".join(table.backend.to_numpy(x).tobytes() for x in arrays)


def dying(group: Any, folder: str) -> Any:
    """Pairs of ranks, each pair a group of its own, of which the second dies: between fetch and step, in a step, and
    while a checkpoint is written over another."""
    import torch.distributed as dist

    pairs = [dist.new_group([2 * k, 2 * k + 1]) for k in range(group.size // 2)]
    case, pair = ("fetch", "step", "save")[group.rank // 2], get_group(pairs[group.rank // 2])
    import torch

    table = ShardedTable.from_full(torch.arange(12.0).reshape(6, 2), pair)
    optimizer = optim.adam(0.1)
    state = table.init(optimizer)
    batch = table.fetch(np.array([0, 5, pair.rank]))
    ones = torch.ones(batch.table.shape)
    state = table.step(optimizer, table.reduce(batch, ones), state)
    save_sharded(f"{folder}/{case}", table, state)
    before = digest(table, state)
    batch = table.fetch(np.array([1, 4]))
    if pair.rank == 1 and case == "fetch":
        os._exit(9)
    try:
        reduced = table.reduce(batch, torch.ones(batch.table.shape))
        if pair.rank == 1:
            # "step": as its one message begins; "save": once its file is written, as it says so
            _die_at_message(pair, 1 if case == "step" else 2)
        if case == "save":
            table.shard.weights.mul_(2.0)
            before = digest(table, state)
            save_sharded(f"{folder}/{case}", table, state)
        else:
            state = table.step(optimizer, reduced, state)
    except RankError as error:
        again = ""
        try:
            table.fetch(np.array([1]))
        except RankError as second:
            again = str(second)
        return case, str(error), again, digest(table, state) == before
    return case, "", "", digest(table, state) == before


def save_once(folder: str, value: float) -> None:
    """A checkpoint of a table of one number."""
    save_sharded(folder, ShardedTable.from_full(np.full((64, 2), value), Alone()))


def save_always(folder: str) -> None:
    """Save new checkpoints until the process is killed; a pause lets a load on a busy machine end between two."""
    for k in itertools.count():
        save_once(folder, float(k))
        time.sleep(0.05)


def load_often(group: Any, folder: str, times: int) -> list[float]:
    """The number that each load finds in all rows."""
    found = []
    for _ in range(times):
        rows = load_sharded(folder, group)[0].shard.weights
        assert (rows == rows[0, 0]).all()
        found.append(float(rows[0, 0]))
    return found


def _die_at_message(group: Any, number: int) -> None:
    """This process ends where it would send its number-th message."""
    send, count = group._all_gather, [0]

    def sent(data: Any, lengths: Any) -> Any:
        count[0] += 1
        if count[0] == number:
            os._exit(9)
        return send(data, lengths)

    group._all_gather = sent


# ---------------------------------------------------------------------- frameworks
def start_like(engine: str, full: Host) -> Any:
    """The table in a framework's arrays, those that a model would have."""
    islices.get_backend(engine)  # mxnet is imported with what it needs of NumPy
    if engine == "torch":
        import torch

        return torch.nn.Parameter(torch.from_numpy(full.copy()))
    if engine == "tensorflow":
        import tensorflow as tf

        return tf.Variable(full)
    if engine == "mxnet":
        import mxnet

        return mxnet.nd.array(full)
    if engine == "jax":
        import jax.numpy as jnp

        return jnp.asarray(full)
    return full.copy()


def in_framework(group: Any, engine: str, folder: str) -> dict[str, Any]:
    """Three steps of adam with value_and_grad of the framework's own functions, a checkpoint, and its way back."""
    full, _, _ = option_inputs(0)
    table = ShardedTable.from_full(start_like(engine, full), group, padding_idx=-1)
    B, optimizer = table.backend, optim.adam(0.25)
    state = table.init(optimizer)

    def loss(rows: Any, ids: Any) -> Any:
        found = islices.lookup(rows, ids)
        return (found * found).sum() if engine != "tensorflow" else _tf_sum(found * found)

    for step in range(3):
        ids = B.asarray(framework_ids(step, group.rank), table.shard.weights)
        batch = table.fetch(ids)
        grad = None
        if engine != "mxnet" or len(batch.indices):  # MXNet computes nothing of arrays without elements
            _, grad = islices.value_and_grad(loss)(batch.table, batch.ids)
        state = table.step(optimizer, table.reduce(batch, grad), state)
    save_sharded(f"{folder}/{engine}", table, state)
    again, other = load_sharded(f"{folder}/{engine}", group, like=start_like(engine, full[:1]))
    assert digest(again, other) == digest(table, state)
    assert type(again.shard.weights) is type(table.shard.weights) or engine == "torch"  # a tensor for a Parameter
    return {"weights": np.array(B.to_numpy(table.shard.weights)), "kind": type(batch.ids).__module__.split(".")[0]} | {
        key: np.array(B.to_numpy(x)) for key, x in state.items()
    }


def _tf_sum(x: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_sum(x)


def framework_ids(step: int, rank: int) -> Host:
    return np.random.default_rng([step, rank, 5]).integers(0, 11, 6 if (step, rank) != (1, 1) else 0).astype(np.int32)


def frameworks_alone(ranks: int) -> dict[str, Host]:
    """The same steps in one process of NumPy: the gradient of x x is x + x."""
    full, _, _ = option_inputs(0)
    optimizer = optim.adam(0.25)
    state = optimizer.init(full)
    for step in range(3):
        grads = []
        for rank in range(ranks):
            ids = framework_ids(step, rank)
            grads.append(islices.coalesce(embedding_grad(full[ids] + full[ids], ids, 11, padding_idx=-1)))
        full, state = optimizer.step(full, islices.coalesce(islices.concat(grads)), state)
    return {"weights": full, **state}


def mpi_pair(group: Any, folder: str) -> dict[str, Any]:
    """On two ranks: MXNet, the exact training from the start and from the checkpoint of four."""
    return {
        "mxnet": in_framework(group, "mxnet", folder), "exact": train_sharded(group, exact=True),
        "resumed": train_sharded(group, folder, exact=True, resume=True), "header": _header(folder),
    }  # fmt: skip


def _header(folder: str) -> Any:
    return tuple(read_sharded_header(f"{folder}/centre"))


# ---------------------------------------------------------------------- a torch model
def torch_model(group: Any, folder: str) -> dict[str, Any]:
    """100 steps of a model with a sharded table and two dense layers, whose gradients are all-reduced; rank 0 does the
    same in one process thereafter."""
    sharded = _train_torch(group, ranks=range(group.rank, group.rank + 1), of=group.size)
    out = {"sharded": sharded, "framework": in_framework(group, "torch", folder)}
    return out | ({"alone": _train_torch(None, ranks=range(group.size), of=group.size)} if group.rank == 0 else {})


def _train_torch(group: Any, ranks: range, of: int) -> dict[str, Any]:
    import torch

    from islices.distributed import all_reduce

    rng = np.random.default_rng(11)
    full = torch.from_numpy(rng.normal(size=(200, 8)).astype(np.float32))
    dense = {
        "hidden": torch.from_numpy(rng.normal(size=(8, 16)).astype(np.float32)),
        "out": torch.from_numpy(rng.normal(size=(16, 4)).astype(np.float32)),
    }
    of_table, of_dense = optim.adagrad(0.1), optim.adam(0.01)
    table: Any = (
        islices.Table(full, padding_idx=0) if group is None else ShardedTable.from_full(full, group, padding_idx=0)
    )
    state = of_table.init(table) if group is None else table.init(of_table)
    states = of_dense.init(dense)

    def loss(rows: Any, dense: Any, ids: Any, target: Any) -> Any:
        bags = islices.lookup(rows, ids, combiner="mean")
        return torch.nn.functional.cross_entropy(torch.tanh(bags @ dense["hidden"]) @ dense["out"], target)

    losses = []
    for step in range(STEPS):
        sparse, other = [], []
        for rank in ranks:
            draw = np.random.default_rng([step, rank])
            ids, target = (
                torch.from_numpy(draw.integers(0, high, shape)) for high, shape in ((200, (8, 5)), (4, (8,)))
            )
            batch = table.fetch(ids) if group is not None else None
            read = (table, ids) if batch is None else (batch.table, batch.ids)
            value, (g, h) = islices.value_and_grad(loss, argnums=(0, 1))(read[0], dense, read[1], target)
            losses.append(float(value))
            sparse.append(g)
            other.append(h)
        if group is not None:
            reduced = table.reduce(batch, sparse[0], "mean")
            mean = all_reduce(other[0], "mean", group)
            state = table.step(of_table, reduced, state)
        else:
            whole = islices.coalesce(islices.concat([islices.coalesce(g) for g in sparse]))
            reduced = whole.replace(values=whole.values / of)
            mean = {}
            for name in dense:
                total = other[0][name]
                for h in other[1:]:
                    total = total + h[name]
                mean[name] = total / of
            table, state = of_table.step(table, reduced, state)
        dense, states = of_dense.step(dense, mean, states)
    weights = table.weights if group is None else table.shard.weights
    return {
        "weights": weights.numpy(), "accumulator": state["accumulator"].numpy(), "losses": losses,
        "dense": {name: x.numpy() for name, x in dense.items()},
    }  # fmt: skip


def alone_again(folder: str) -> dict[str, Any]:
    """One rank goes on from the checkpoint of four."""
    return train_sharded(Alone(), folder, exact=True, resume=True)
