"""Test ShardedTable and its checkpoints on threads and processes, against one process that has the whole table."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same, host

import islices
from islices import IndexedSlices, embedding_grad, optim
from islices.conformance.ranks import run_ranks
from islices.conformance.ranks.launch import absent
from islices.conformance.ranks.threads import thread_results
from islices.distributed import Alone, Group, RankError, read_sharded_header, shards
from islices.distributed.sharded import ShardedTable
from islices.distributed.shards import ENTRY, HEADER, load_sharded, save_sharded

Host = np.ndarray[Any, Any]
ROWS, DIM, CLIP, STEPS = 23, 3, 0.5, 4


def whole(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the ranks' shards of the table and its state, and check that all shards have the same step count."""
    steps = {part["step"].tolist()[0] for part in parts}
    assert len(steps) == 1
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "step"} | {
        "step": parts[0]["step"]
    }


def parts_of(table: ShardedTable, state: dict[str, Any]) -> dict[str, Host]:
    return {"weights": host(table.shard.weights)} | {key: host(x) for key, x in state.items()}


# ---------------------------------------------------------------------- steps
class Decay:
    """A schedule whose repr contains an address in memory, so that the reprs of two instances differ."""

    def __init__(self, start: float) -> None:
        self.start = start

    def __call__(self, taken: int) -> float:
        return self.start / (taken + 1)


#: name -> (optimizer, dtype, rows of the table)
CASES = {
    "schedule": (optim.adam(Decay(0.1)), "float32", ROWS),
    "every row": (optim.sgd(0.1, momentum=0.9, rows="all"), "float32", ROWS),
    "frozen": (optim.adamw(0.1, rows="all", frozen=[0, 7, 8, 22]), "float32", ROWS),
    "frozen mask": (optim.sgd(0.1, frozen=np.arange(ROWS) % 3 == 0), "float32", ROWS),
    "clipped": (optim.adagrad(Decay(0.1)), "float32", ROWS),
    "master": (optim.adam(0.1), "float16", ROWS),
    "fewer rows than ranks": (optim.adam(0.1, rows="all"), "float32", 3),
    "no rows": (optim.sgd(0.1, momentum=0.9), "float32", 0),
}


def start_of(name: str) -> Host:
    _, dtype, rows = CASES[name]
    return np.random.default_rng(3).normal(size=(rows, DIM)).astype(dtype)


def lookups_of(name: str, step: int, rank: int) -> tuple[Host, Host]:
    """Return (ids, upstream) of a rank in a step. Rank 1 has no ids in step 1, and no rank has ids in step 2 or for a
    table without rows."""
    _, dtype, rows = CASES[name]
    rng = np.random.default_rng([step, rank])
    n = 0 if rows == 0 or step == 2 or (rank, step) == (1, 1) else 9
    return rng.integers(0, max(1, rows), n), rng.normal(size=(n, DIM)).astype(dtype)


def sharded(group: Group, name: str) -> dict[str, Host]:
    optimizer = CASES[name][0]
    table = ShardedTable.from_full(start_of(name), group)
    state = table.init(optimizer, master=name == "master")
    for step in range(STEPS):
        ids, g = lookups_of(name, step, group.rank)
        batch = table.fetch(ids)
        assert table.lookup(ids).tobytes() == islices.lookup(batch.table, batch.ids).tobytes()
        grad = embedding_grad(g, batch.ids, batch.table.shape[0])
        mean, reduced = table.reduce(batch, grad, "mean"), table.reduce(batch, grad)
        if name == "clipped":
            reduced, _ = islices.clip_by_global_norm(reduced, CLIP, group=group)
        state = table.step(optimizer, reduced, state)
    return parts_of(table, state) | {"mean": islices.to_dense(mean)}


def alone(name: str, size: int) -> dict[str, Host]:
    """Train in one process. Each step coalesces the ranks' gradients, concatenates them in the order of ranks, and
    coalesces the result."""
    (optimizer, _, rows), table = CASES[name], start_of(name)
    state = optimizer.init(table, master=name == "master")
    for step in range(STEPS):
        each = [lookups_of(name, step, rank) for rank in range(size)]
        grad = islices.coalesce(islices.concat([islices.coalesce(embedding_grad(g, ids, rows)) for ids, g in each]))
        used = islices.clip_by_global_norm(grad, CLIP)[0] if name == "clipped" else grad
        table, state = optimizer.step(table, used, state)
    wide = islices.to_dense(grad)
    mean = (wide.astype(np.float32) / np.float32(size)).astype(wide.dtype)
    return {"weights": table, **state, "mean": mean}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_that_of_the_whole_table(name: str) -> None:
    assert_same(whole(thread_results(4, lambda group: sharded(group, name))), alone(name, 4))


@pytest.mark.outside
@pytest.mark.parametrize("engine", ["mpi", "torch"])
def test_processes_step_as_one(engine: str) -> None:
    if reason := absent(engine):
        pytest.skip(reason)
    found = run_ranks(engine, 4, f"{__file__}:sharded", {"name": "clipped"}).values
    assert_same(whole(found), alone("clipped", 4))


def like(framework: str, full: Host) -> Any:
    """Return the table `full` as the type that models of the framework use."""
    x = islices.get_backend(framework).asarray(full.copy())
    if framework == "torch":
        import torch

        return torch.nn.Parameter(x)
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.Variable(x)
    return x


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "mxnet"])
def test_a_framework_trains_as_numpy_in_one_process(framework: str, tmp_path: Path) -> None:
    if framework not in islices.list_backends():
        pytest.skip(f"{framework} is not installed")
    B, full, optimizer = islices.get_backend(framework), start_of("schedule"), optim.adam(0.25)
    ids = [np.random.default_rng(rank).integers(0, ROWS, 6).astype(np.int32) for rank in range(2)]

    total = sys.modules["tensorflow"].reduce_sum if framework == "tensorflow" else lambda x: x.sum()

    def loss(rows: Any, ids: Any) -> Any:
        found = islices.lookup(rows, ids)
        return total(found * found)

    def run(group: Group) -> dict[str, Host]:
        table = ShardedTable.from_full(like(framework, full), group, padding_idx=-1)
        state = table.init(optimizer)
        batch = table.fetch(B.asarray(ids[group.rank]))
        _, grad = islices.value_and_grad(loss)(batch.table, batch.ids)
        state = table.step(optimizer, table.reduce(batch, grad), state)
        save_sharded(tmp_path, table, state)
        again, state = load_sharded(tmp_path, group, like=like(framework, full[:1]))
        assert type(batch.ids) is type(B.asarray(ids[0]))
        assert type(again.shard.weights) is type(table.shard.weights) or framework == "torch"
        return parts_of(again, state)

    # TensorFlow's dispatcher may end a process in which two threads run a function for the first time (its PR 125641)
    B.reshape(B.asarray(ids[0]), (2, 3))
    each = [islices.coalesce(embedding_grad(full[i] + full[i], i, ROWS, padding_idx=-1)) for i in ids]
    weights, state = optimizer.step(full.copy(), islices.coalesce(islices.concat(each)), optimizer.init(full))
    assert_same(whole(thread_results(2, run)), {"weights": weights, **state})


def test_a_checkpoint_of_4_ranks_goes_on_with_3_and_with_1(tmp_path: Path) -> None:
    optimizer, full = optim.adam(0.1), start_of("schedule")

    def step(table: ShardedTable, state: Any) -> Any:
        batch = table.fetch(np.array([0, 22, 9]))
        grad = None if table.group.rank else np.ones(batch.table.shape, np.float32)
        return table.step(optimizer, table.reduce(batch, grad), state)

    def first(group: Group) -> dict[str, Host]:
        table = ShardedTable.from_full(full, group, padding_idx=9)
        state = step(table, table.init(optimizer))
        save_sharded(tmp_path, table, state, metadata={"epoch": "3"})
        return parts_of(table, step(table, state))

    def later(group: Group) -> dict[str, Host]:
        table, state = load_sharded(tmp_path, group)
        return parts_of(table, step(table, state))

    expected = whole(thread_results(4, first))
    header = read_sharded_header(tmp_path)
    assert (header.num_rows, header.row_shape, header.dtype, header.padding_idx) == (ROWS, (DIM,), "float32", 9)
    assert (header.steps, len(header.files), header.metadata) == (1, 4, {"epoch": "3"})
    for size in (3, 1):
        assert_same(whole(thread_results(size, later)), expected)


# ---------------------------------------------------------------------- lookups
def option_inputs(rank: int) -> tuple[Host, Host, Host]:
    rng = np.random.default_rng(rank)
    full = np.random.default_rng(0).normal(size=(11, 2)).astype(np.float32)
    ids = rng.integers(0, 11, (4, 5))
    ids[:, -1] = 9  # row 9, the first row of rank 3, is the padding
    return full, ids, rng.normal(size=(4, 5, 2)).astype(np.float32)


def options(group: Group) -> dict[str, Any]:
    full, ids, g = option_inputs(group.rank)
    table = ShardedTable.from_full(full, group, padding_idx=-2, scale_by_freq=True)
    batch = table.fetch(ids.astype(np.int32))
    assert (batch.ids.dtype, batch.ids.shape, batch.indices.tolist()) == ("int32", (4, 5), np.unique(ids).tolist())
    assert table.shard.padding_idx == (0 if group.rank == 3 else None)
    assert table.bounds.tolist() == [0, 3, 6, 9, 11]
    bags = islices.lookup(batch.table, batch.ids, combiner="mean")
    whole = islices.Table(full, padding_idx=9, scale_by_freq=True)
    assert bags.tobytes() == islices.lookup(whole, ids, combiner="mean").tobytes()
    padding = batch.table.padding_idx
    grad = embedding_grad(g, batch.ids, batch.table.shape[0], padding_idx=padding, scale_by_freq=True)
    found = table.reduce(batch, grad), table.reduce(batch, islices.to_dense(grad))
    group.traffic.reset()
    table.fetch(ids)
    return {"reduced": [(s.values, s.indices + table.bounds[group.rank]) for s in found], "traffic": group.traffic,
            "repr": repr(table)}  # fmt: skip


def test_options_of_lookups_hold_on_fetched_rows() -> None:
    """Check that lookup options apply to fetched rows, and check the number of bytes sent and received. A rank sends 4
    bytes for each row that it needs
    from another rank, and receives the row."""
    found = thread_results(4, options)
    inputs = [option_inputs(rank) for rank in range(4)]
    each = [embedding_grad(g, ids, 11, padding_idx=9, scale_by_freq=True) for _, ids, g in inputs]
    expected = islices.coalesce(islices.concat(list(map(islices.coalesce, each))))
    for k in (0, 1):  # the sparse and the dense gradient
        values, rows = (np.concatenate([rank["reduced"][k][part] for rank in found]) for part in (0, 1))
        assert rows.tolist() == expected.indices.tolist()
        assert values.tobytes() == expected.values.tobytes()
    assert found[3]["repr"] == "ShardedTable((11, 2), float32, numpy, rows 9 to 10 on rank 3 of 4)"
    wanted, bounds = [np.unique(ids) for _, ids, _ in inputs], [0, 3, 6, 9, 11]
    for rank in range(4):
        own = [np.count_nonzero((bounds[rank] <= ids) & (ids < bounds[rank + 1])) for ids in wanted]
        requests, requested, traffic = len(wanted[rank]) - own[rank], sum(own) - own[rank], found[rank]["traffic"]
        agreement = 3 * 32 * 8  # a header of 32 numbers to each of the other ranks
        assert (traffic.sent, traffic.received) == (
            agreement + requests * 4 + requested * 8, agreement + requested * 4 + requests * 8
        )  # fmt: skip
        assert traffic.collectives == 3


# ---------------------------------------------------------------------- errors
def errors(group: Group, folder: str) -> dict[str, tuple[str, str]]:
    """Return a dict from cases to (class, message) of this rank's error. In some cases, one rank has a wrong argument.
    In the others, all ranks raise the same error."""
    full = np.arange(20, dtype=np.float32).reshape(10, 2)
    table, twin = ShardedTable.from_full(full, group), ShardedTable.from_full(full, group)
    rank, last = group.rank, group.rank == group.size - 1
    sgd, adam = optim.sgd(1.0), optim.adam(1.0)
    state = table.init(adam)
    batch = table.fetch(np.array([0, 9]))
    grad = IndexedSlices(np.ones((1, 2), np.float32), np.array([1]), (2, 2))
    reduced = table.reduce(batch, grad)
    shard = full[table.bounds[rank] : table.bounds[rank + 1]]
    behind = {**state, "step": state["step"] + (rank == 0)}
    wide = IndexedSlices(np.ones((1, 2)), np.array([1]), (2, 2))

    def zeros(start: int, stop: int) -> Host:
        if last:
            raise OSError("no such start")
        return np.zeros((stop - start, 2), np.float32)

    calls = {
        "ids": lambda: table.fetch(np.array([0, 10 if last else 9])),
        "shard": lambda: ShardedTable(full if last else shard, 10, group),
        "another table": lambda: (table if rank else twin).fetch(np.array([1])),
        "grad": lambda: table.reduce(batch, wide if last else grad),
        "schedules": lambda: table.step(optim.adam(Decay(2.0 if rank else 1.0)), reduced, state),
        "frozen rows": lambda: table.step(optim.adam(1.0, frozen=[rank % 2]), reduced, state),
        "steps": lambda: table.step(adam, reduced, behind),
        "state": lambda: table.step(adam, reduced, table.init(sgd) if last else state),
        "no gradient": lambda: table.step(adam, reduced if rank else None, state),
        "raw": lambda: table.init(optim.adam(1.0, semantics="keras", rows="all", duplicates="raw")),
        "init": lambda: ShardedTable.create(10, (2,), zeros, group),
        "folders": lambda: save_sharded(f"{folder}/own/{rank}", table),
        "disk": lambda: save_sharded("/dev/null/x" if last else f"{folder}/full", table, state),
    }  # fmt: skip
    found = {}
    for name, call in calls.items():
        with pytest.raises((OSError, ValueError, TypeError, IndexError, RankError)) as caught:
            call()
        found[name] = type(caught.value).__name__, str(caught.value)
    assert table.shard.weights.tobytes() == shard.tobytes()
    kept = {key: x.tobytes() for key, x in state.items()}
    assert table.reduce(batch, None) is None
    assert {key: x.tobytes() for key, x in table.step(adam, None, state).items()} == kept
    table.step(sgd, table.reduce(batch, grad if last else None), table.init(sgd))  # the table can still be used
    assert table.lookup(np.array([9])).tolist() == [[17.0, 18.0]]
    return found


#: name -> (class on the rank with the wrong argument, or None if all ranks raise ValueError; text of every message)
ERRORS = {
    "ids": ("IndexError", "ids: got 10 at position 1"),
    "shard": ("ValueError", "got 10 rows; accepted on rank 3 of 4 are 2, those with 8 <= row < 10 of 10"),
    "another table": (None, "table: no. "),
    "grad": ("TypeError", "grad: got float64"),
    "schedules": (None, "optimizer: adam(lr=1.0, beta1=0.9"),
    "frozen rows": (None, "frozen: 1 rows (digest af5570f5) on ranks 0, 2, 1 rows"),
    "steps": (None, "steps taken: 1 on rank 0, 0 on ranks 1 to 3"),
    "state": ("ValueError", "state: got 'step'"),
    "no gradient": (None, "grad: none on rank 0, one on ranks 1 to 3"),
    "raw": (None, "duplicates='raw'"),
    "init": ("OSError", "no such start"),
    "folders": ("FileNotFoundError", "-1-of-4.safetensors is not there: accepted is a folder that all ranks see"),
    "disk": ("NotADirectoryError", "/dev/null/x"),
}


def test_what_is_wrong_on_one_rank_is_named_on_every_rank(tmp_path: Path) -> None:
    found = thread_results(4, lambda group: errors(group, str(tmp_path)))
    assert list(tmp_path.glob("full/*")) == list(tmp_path.glob("own/*/*")) == []  # no rank left a file
    for case, (wrong, words) in ERRORS.items():
        kinds, messages = zip(*(rank[case] for rank in found), strict=True)
        assert all(words in message for message in messages), (case, messages)
        if wrong is None:
            assert set(kinds) == {"ValueError"}, (case, messages)
            assert len(set(messages)) == 1, messages
        else:
            assert sorted(kinds) == sorted(["RankError"] * 3 + [wrong]), (case, messages)
            failed = kinds.index(wrong)
            assert all(f"rank {failed} raised {wrong}" in m for k, m in enumerate(messages) if k != failed), messages


@pytest.mark.parametrize(("case", "message"), [("step", 1), ("save", 2)])
def test_of_a_rank_that_leaves_nothing_is_half_done(case: str, message: int, tmp_path: Path) -> None:
    """Check that a rank that leaves causes no partial change. The rank leaves a step before its first message, or a
    save before it reports its file as written."""

    def run(group: Group) -> Any:
        table = ShardedTable.from_full(np.arange(12.0).reshape(6, 2), group)
        optimizer = optim.adam(0.1)
        batch, state = table.fetch(np.array([1, 4])), table.init(optimizer)
        reduced = table.reduce(batch, np.ones(batch.table.shape))
        save_sharded(tmp_path, table, state)
        table.shard.weights[...] *= 2.0
        before = parts_of(table, {k: x.copy() for k, x in state.items()} | {"weights": table.shard.weights.copy()})
        if group.rank == 1:
            _leave_at_message(group, message)
        calls = {
            "step": lambda: table.step(optimizer, reduced, state),
            "save": lambda: save_sharded(tmp_path, table, state),
        }
        with pytest.raises(RankError if group.rank == 0 else threading.ThreadError):
            calls[case]()
        if group.rank == 0:
            assert_same(parts_of(table, state), before)
            with pytest.raises(RankError, match="takes no more calls since: start the ranks anew"):
                table.fetch(np.array([1]))

    thread_results(2, run, timeout=0.5)
    table, _ = load_sharded(tmp_path, Alone())  # the previous checkpoint
    assert table.shard.weights.ravel().tolist() == list(range(12))


def _leave_at_message(group: Any, number: int) -> None:
    send, count = group._all_gather, [0]

    def sent(data: Any, lengths: Any) -> Any:
        count[0] += 1
        if count[0] == number:
            raise threading.ThreadError("this rank has ended")
        return send(data, lengths)

    group._all_gather = sent


# ---------------------------------------------------------------------- files
@pytest.fixture
def saved(tmp_path: Path) -> Path:
    table = ShardedTable.from_full(np.arange(8, dtype=np.float32).reshape(4, 2), Alone())
    save_sharded(tmp_path / "good", table, table.init(islices.optim.adam(0.1)), metadata={"epoch": "3"})
    return tmp_path / "good"


def shard_of(folder: Path) -> Path:
    return next(folder.glob("shard-*"))


def _header(folder: Path, **changes: Any) -> None:
    """Change entries of the checkpoint's header, and update the digest of the header."""
    path = folder / HEADER
    found = json.loads(islices.files.read_metadata(path)[ENTRY])
    islices.save(path, None, metadata={ENTRY: json.dumps(found | changes)})


DAMAGE = {
    "no header": (lambda f: (f / HEADER).unlink(), "it is not there: the folder holds no complete checkpoint"),
    "no shard": (lambda f: shard_of(f).unlink(), "it is not there, though the checkpoint names it"),
    "damaged data": (lambda f: _flip_at(shard_of(f), np.float32(7)), "damaged"),
    "damaged header": (lambda f: _flip_at(f / HEADER, np.frombuffer(b"epoch", np.uint8)), "were changed"),
    "another file": (lambda f: islices.save(f / HEADER, None), "the header is no valid JSON"),
    "another entry": (lambda f: _header(f, more=1), "it is no header of save_sharded"),
    "very many rows": (
        lambda f: _header(f, num_rows=10**15, files=[[shard_of(f).name, 0, 10**15, "00"]]),
        "its 1000000000000000 rows are not all there",
    ),
    "very wide rows": (lambda f: _header(f, row_shape=[2**62] * 20), "its 4 rows are not all there"),
    "another path": (lambda f: _header(f, files=[["../" + shard_of(f).name, 0, 4, ""]]), "got files "),
    "other state": (lambda f: _header(f, state={"m": ["float32", False]}), "does not hold the arrays"),
    **{
        f"{name} {value}": (lambda f, name=name, value=value: _header(f, **{name: value}), f"got {name} ")
        for name, value in (
            ("num_rows", -1), ("row_shape", [2.0]), ("dtype", "int32"), ("padding_idx", 4), ("scale_by_freq", 1),
            ("steps", 2**31), ("state", {"m": ["float64", False]}), ("files", []), ("metadata", {"a": 1}),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_a_checkpoint_that_is_not_whole_is_a_value_error(case: str, saved: Path) -> None:
    damage, words = DAMAGE[case]
    load_sharded(saved, Alone())
    damage(saved)
    with pytest.raises(ValueError) as found:
        load_sharded(saved, Alone())
    assert words in str(found.value)
    assert str(saved) in str(found.value)


def test_saving_again_replaces_and_removes(saved: Path) -> None:
    before = shard_of(saved).name
    for name in ("mine.txt", "shard-0123456789abcdef-7-of-9.safetensors", ".islices-0123456789abcdef.tmp"):
        (saved / name).write_text("of a save that was never finished")
        os.utime(saved / name, (0, 0))
    table, state = load_sharded(saved, Alone())
    table.shard.weights[...] += 1
    save_sharded(saved, table, state)
    assert sorted(p.suffix for p in saved.iterdir()) == [".safetensors", ".safetensors", ".txt"]
    again, _ = load_sharded(saved, Alone())
    assert again.shard.weights.tobytes() == table.shard.weights.tobytes()
    assert not (saved / before).exists()


def test_a_save_that_fails_leaves_the_old_checkpoint(saved: Path) -> None:
    table, state = load_sharded(saved, Alone())
    files = {p.name: p.read_bytes() for p in saved.iterdir()}
    assert state is not None
    with pytest.raises(ValueError, match="UTF-8 can hold"):
        save_sharded(saved, table, state, metadata={"bad": "\ud800"})
    for error, wrong in (
        (ValueError, {"m": state["m"][:2]}),
        (TypeError, {"m": state["m"].astype(np.float16)}),
        (TypeError, {"step": np.zeros(1, np.int64)}),
        (ValueError, {"step": np.array([-1], np.int32)}),
    ):
        with pytest.raises(error, match=rf"state\['{next(iter(wrong))}'\]"):
            save_sharded(saved, table, {**state, **wrong})
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == files


def test_a_rank_reads_the_blocks_that_its_rows_lie_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "BLOCK", 1 << 15)  # 4096 rows of 8 bytes
    full = np.arange(40_000, dtype=np.float32).reshape(20_000, 2)
    save_sharded(tmp_path, ShardedTable.from_full(full, Alone()))
    header = read_sharded_header(tmp_path)
    _flip_at(shard_of(tmp_path), full[10_000])  # in the block of the rows 8192 to 12287
    for start, stop in ((0, 8192), (12_288, 20_000), (20, 21), (15_000, 15_001), (8192, 8192)):
        rows = shards._read_rows(str(tmp_path), header, start, stop)["weights"]
        assert rows.tobytes() == full[start:stop].tobytes()
    for start, stop in ((0, 8193), (12_287, 12_288)):
        with pytest.raises(ValueError, match="damaged"):
            shards._read_rows(str(tmp_path), header, start, stop)


def _flip_at(path: Path, row: Any) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(row.tobytes())] ^= 1
    path.write_bytes(data)
