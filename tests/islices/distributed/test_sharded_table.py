"""ShardedTable on real ranks, against one process that has the whole table. What the ranks run: sharded_programs.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sharded_programs as programs

import islices
from islices.conformance.ranks import run_ranks
from islices.conformance.ranks.launch import absent
from islices.distributed import Alone, Group, RankError
from islices.distributed.shard_files import ATTEMPTS, read_checkpoint
from islices.distributed.shard_header import HEADER, ShardedHeader, read_sharded_header
from islices.distributed.sharded import ShardedTable
from islices.distributed.shards import load_sharded, save_sharded

PROGRAMS = Path(programs.__file__)


def launch(engine: str, size: int, function: str, /, **keywords: Any) -> list[Any]:
    if reason := absent(engine):
        pytest.skip(reason)
    return run_ranks(engine, size, f"{PROGRAMS}:{function}", keywords).values


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def four(folder: str) -> list[Any]:
    """MPI and NumPy on 4 ranks; leaves a checkpoint of the exact training at its 50th step."""
    return launch("mpi", 4, "on_mpi", folder=folder)


@pytest.fixture(scope="module")
def two(four: list[Any], folder: str) -> list[Any]:
    return launch("mpi", 2, "mpi_pair", folder=folder)


@pytest.fixture(scope="module")
def exact() -> dict[str, Any]:
    return programs.train_alone(exact=True)


def whole(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The ranks' shards as one table; the step count is the same on all of them."""
    out = {}
    for name in parts[0]:
        each = [part[name] for part in parts]
        if name == "step":
            assert all(x.tolist() == each[0].tolist() for x in each)
        out[name] = each[0] if name == "step" else np.concatenate(each)
    return out


def assert_same_bits(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        assert (got[name].dtype, got[name].shape) == (x.dtype, x.shape), name
        differing = np.unique(np.nonzero(got[name] != x)[0])
        assert got[name].tobytes() == x.tobytes(), f"{name}: rows {differing} differ"


def assert_same_training(parts: list[Any], expected: dict[str, Any], at: str = "end") -> None:
    for name in programs.TABLES:
        assert_same_bits(whole([part[at][name] for part in parts]), expected[at][name])


# ---------------------------------------------------------------------- training
@pytest.mark.repeats
def test_100_steps_on_4_ranks_are_those_of_one_process_that_reduces_in_rank_order(four: list[Any]) -> None:
    expected = programs.train_alone(exact=False)
    assert_same_training([rank["trained"] for rank in four], expected)
    moved = expected["end"]["centre"]["weights"] != programs.start()["centre"]
    assert moved.any(1).sum() > 1000  # it did train


@pytest.mark.repeats
def test_exact_sums_make_any_number_of_ranks_one_process(
    four: list[Any], two: list[Any], exact: dict[str, Any]
) -> None:
    for parts in ([programs.train_sharded(Alone(), exact=True)], [r["exact"] for r in two], [r["exact"] for r in four]):
        assert_same_training(parts, exact)
        assert_same_training(parts, exact, "middle")


@pytest.mark.repeats
def test_a_checkpoint_of_4_ranks_goes_on_with_2_and_with_1(two: list[Any], folder: str, exact: dict[str, Any]) -> None:
    assert_same_training([rank["resumed"] for rank in two], exact)
    assert_same_training([programs.alone_again(folder)], exact)
    rows, row_shape, dtype, padding, _, steps, state, files, metadata, _ = two[0]["header"]
    assert (row_shape, dtype, padding, steps, len(files)) == ((8,), "float32", 0, programs.MIDDLE, 4)
    assert (rows, files[-1].stop) == (2001, 2001)
    assert state == {"m": ("float32", False), "v": ("float32", False)}
    assert metadata == {"optimizer": repr(programs.TABLES["centre"])}


@pytest.mark.parametrize("case", programs.CASES)
@pytest.mark.repeats
def test_every_optimizer_steps_as_on_the_whole_table(case: str, four: list[Any], alone: dict[str, Any]) -> None:
    assert_same_bits(whole([rank["optimized"][case] for rank in four]), alone[case])


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return programs.optimize_alone(4)


# ---------------------------------------------------------------------- lookups
@pytest.mark.repeats
def test_options_of_lookups_hold_on_fetched_rows(four: list[Any]) -> None:
    grads = []
    for rank, found in enumerate(rank["options"] for rank in four):
        full, ids, g = programs.option_inputs(rank)
        table = islices.Table(full, padding_idx=10, scale_by_freq=True)
        assert found["bags"].tobytes() == islices.lookup(table, ids, combiner="mean").tobytes()
        assert found["rows"].tolist() == np.unique(ids).tolist()
        assert found["dtypes"] == ("int32", (4, 5))
        assert found["rows"][found["padding"]] == 10
        assert found["shard padding"] == (1 if rank == 3 else None)  # its rows are 9 and 10
        grads.append(islices.coalesce(islices.embedding_grad(g, ids, 11, padding_idx=10, scale_by_freq=True)))
        assert found["bounds"].tolist() == [0, 3, 6, 9, 11]
    assert four[3]["options"]["repr"] == "ShardedTable((11, 2), float32, numpy, rows 9 to 10 on rank 3 of 4)"
    expected = islices.coalesce(islices.concat(grads))
    for key in ("reduced", "dense", "many ranks"):
        values, rows = zip(*(rank["options"][key] for rank in four), strict=True)
        starts = four[0]["options"]["bounds"]
        assert np.concatenate([r + starts[k] for k, r in enumerate(rows)]).tolist() == expected.indices.tolist()
        assert np.concatenate(values).tobytes() == expected.values.tobytes()


@pytest.mark.repeats
def test_a_fetch_moves_4_bytes_and_a_row_for_each_row_of_others(four: list[Any]) -> None:
    wanted = [np.unique(programs.option_inputs(rank)[1]) for rank in range(4)]
    agreement = 3 * 32 * 8  # a header of 32 numbers to each of the others
    for rank, found in enumerate(rank["options"] for rank in four):
        start, stop = found["bounds"][rank : rank + 2]
        own = [np.count_nonzero((start <= ids) & (ids < stop)) for ids in wanted]
        asks, asked = len(wanted[rank]) - own[rank], sum(own) - own[rank]
        assert found["fetched"] == (agreement + asks * 4 + asked * 8, agreement + asked * 4 + asks * 8, 3)


# ---------------------------------------------------------------------- errors
#: name -> (class on the rank that is wrong, None where all differ; what every message has)
ERRORS = {
    "ids out of range": ("IndexError", "ids: got 10 at position 1"),
    "ids of floats": ("TypeError", "ids: got"),
    "rows differ": (None, "num_rows: 8 on rank 0, 9 on ranks 1 to 3"),
    "no table": ("TypeError", "weights: got"),
    "padding differs": (None, "padding_idx: 0 on ranks 0, 2, 1 on ranks 1, 3"),
    "shard of other rows": ("ValueError", "got 10 rows; accepted on rank 3 of 4 are 2, those with 8 <= row < 10 of 10"),
    "shard of integers": ("TypeError", "weights: got"),
    "rows no number": ("TypeError", "num_rows: got"),
    "another table": (None, "table: no. "),
    "another batch": (None, "batch: 2 on rank 0, 1 on ranks 1 to 3"),
    "no batch": ("TypeError", "batch: got"),
    "op differs": (None, 'op: sum on rank 0, mean on ranks 1 to 3'),
    "grad of another dtype": ("TypeError", "grad: got float64"),
    "grad of another shape": ("ValueError", "grad: got dense_shape"),
    "optimizers differ": (None, "optimizer: sgd(lr=1.0"),
    "schedules differ": (None, "optimizer: adam(lr=1.0, beta1=0.9"),
    "frozen rows differ": (None, "frozen: 1 rows (digest af5570f5) on ranks 0, 2, 1 rows"),
    "donate": ("TypeError", "donate: got 2; accepted is a bool"),
    "step counts differ": (None, "steps taken: 1 on rank 0, 0 on ranks 1 to 3"),
    "state of another": ("ValueError", "state: got 'step'"),
    "one has no gradient": (None, "grad: none on rank 0, one on ranks 1 to 3"),
    "init of another shape": ("ValueError", "init: returned shape (3, 2)"),
    "init that raises": ("OSError", "no such start"),
    "disk that is full": ("OSError", "No space left on device"),
    "folder that cannot be": ("NotADirectoryError", "/dev/null/x"),
}  # fmt: skip
#: what every rank does alike
ALIKE = {
    "no optimizer": ("TypeError", "optimizer: got str 'adam'"),
    "raw duplicates": ("ValueError", "duplicates='raw'"),
    "frozen row of none": ("IndexError", "frozen: got 10 for a table of 10 rows"),
    "state not of the table": ("ValueError", "state['step']: got int"),
}


@pytest.mark.parametrize("case", ERRORS)
@pytest.mark.repeats
def test_what_is_wrong_on_one_rank_is_named_on_every_rank(case: str, four: list[Any]) -> None:
    wrong, words = ERRORS[case]
    found = [rank["errors"][case] for rank in four]
    assert all(words in message for _, message, _ in found), found
    if wrong is None:
        assert {kind for kind, *_ in found} == {"ValueError"}, found
        assert len({message for _, message, _ in found}) == 1, found
    else:
        assert [kind for kind, *_ in found] == ["RankError"] * 3 + [wrong], found
        assert all(f"rank 3 raised {wrong}" in message and ranks == (3,) for _, message, ranks in found[:3]), found


@pytest.mark.parametrize("case", ALIKE)
@pytest.mark.repeats
def test_what_is_wrong_on_every_rank(case: str, four: list[Any]) -> None:
    wrong, words = ALIKE[case]
    assert all(kind == wrong and words in message for kind, message, _ in (rank["errors"][case] for rank in four))


@pytest.mark.repeats
def test_every_error_is_looked_at(four: list[Any], folder: str) -> None:
    assert list((Path(folder) / "full").iterdir()) == []  # what the others had written is gone
    assert list((Path(folder) / "own").glob("*/*")) == []
    assert four[0]["errors"].keys() == ERRORS.keys() | ALIKE.keys() | {"folders of their own"}


@pytest.mark.repeats
def test_folders_that_are_not_the_same_one(four: list[Any]) -> None:
    found = [rank["errors"]["folders of their own"] for rank in four]
    assert [kind for kind, *_ in found] == ["FileNotFoundError"] + ["RankError"] * 3
    assert all(
        "-1-of-4.safetensors is not there: accepted is a folder that all ranks see" in words for _, words, _ in found
    )


@pytest.mark.repeats
def test_of_a_rank_that_dies_nothing_is_half_done(tmp_path: Path) -> None:
    if reason := absent("torch"):
        pytest.skip(reason)
    found = run_ranks("torch", 6, f"{PROGRAMS}:dying", {"folder": str(tmp_path)})
    survivors = [rank.value for rank in found.ranks[::2]]
    assert [rank.returncode for rank in found.ranks[1::2]] == [9, 9, 9]
    assert [value[0] for value in survivors] == ["fetch", "step", "save"], found
    for case, message, again, unchanged in survivors:
        assert unchanged, case
        assert message.startswith("torch.distributed (gloo)"), case
        assert "takes no more calls" in again, case
    table, state = load_sharded(tmp_path / "save", Alone())  # the one before: step 1
    assert state is not None
    assert state["step"].tolist() == [1]
    assert table.shard.weights.tobytes() == load_sharded(tmp_path / "step", Alone())[0].shard.weights.tobytes()


# ---------------------------------------------------------------------- frameworks
@pytest.mark.repeats
def test_torch_models_train_as_in_one_process(folder: str) -> None:
    found = launch("torch", 4, "torch_model", folder=folder)
    expected = found[0]["alone"]
    sharded = [rank["sharded"] for rank in found]
    for name in ("weights", "accumulator"):
        assert np.concatenate([rank[name] for rank in sharded]).tobytes() == expected[name].tobytes()
    for rank in sharded:
        assert_same_bits(rank["dense"], expected["dense"])
    assert [x for each in zip(*(rank["losses"] for rank in sharded), strict=True) for x in each] == expected["losses"]
    assert_same_bits(whole([_state(rank["framework"], "torch") for rank in found]), programs.frameworks_alone(4))


@pytest.mark.repeats
@pytest.mark.parametrize("engine", ["jax", pytest.param("tensorflow", marks=pytest.mark.soak)])
def test_frameworks_train_as_numpy_in_one_process(engine: str, folder: str) -> None:
    found = launch(engine, 2, "in_framework", engine=engine, folder=folder)
    assert_same_bits(whole([_state(rank, engine) for rank in found]), programs.frameworks_alone(2))


@pytest.mark.repeats
def test_mxnet_over_mpi_trains_as_numpy_in_one_process(two: list[Any]) -> None:
    assert_same_bits(whole([_state(rank["mxnet"], "mxnet") for rank in two]), programs.frameworks_alone(2))


def _state(found: dict[str, Any], engine: str) -> dict[str, Any]:
    assert found["kind"].startswith("jax" if engine == "jax" else engine)
    return {name: x for name, x in found.items() if name != "kind"}


# ---------------------------------------------------------------------- files
@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of 3 ranks by hand: what one process wrote, in three blocks of a file each."""
    table = ShardedTable.from_full(np.arange(8, dtype=np.float32).reshape(4, 2), Alone())
    save_sharded(tmp_path / "good", table, table.init(islices.optim.adam(0.1)), metadata={"epoch": "3"})
    return tmp_path / "good"


def shard_of(folder: Path) -> Path:
    return next(folder.glob("shard-*"))


def _manifest(folder: Path, **changes: Any) -> None:
    """The header with other entries, and the digest that goes with them."""
    import hashlib

    path = folder / HEADER
    text = json.dumps(json.loads(json.loads(path.read_text())["manifest"]) | changes)
    path.write_text(json.dumps({"manifest": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}))


DAMAGE = {
    "no header": (lambda f: (f / HEADER).unlink(), "it is not there: the folder holds no complete checkpoint"),
    "no folder": (lambda f: shutil.rmtree(f), "it is not there: the folder holds no complete checkpoint"),
    "no shard": (lambda f: shard_of(f).unlink(), "it is not there, though the checkpoint names it"),
    "short shard": (lambda f: shard_of(f).write_bytes(shard_of(f).read_bytes()[:-9]), "file not fully covered"),
    "empty shard": (lambda f: shard_of(f).write_bytes(b""), "its 4 rows are not all there"),
    "damaged data": (lambda f: _flip_at(shard_of(f), np.float32(7)), "damaged"),
    "foreign shard": (lambda f: islices.save(shard_of(f), [np.zeros(9)] * 9), "it is not the file that the checkpoint"),
    "damaged header": (lambda f: _replace(f / HEADER, "epoch", "epoxy"), "its SHA-256 is not what it states"),
    "no JSON": (lambda f: (f / HEADER).write_text("{"), "no valid JSON"),
    "no object": (lambda f: (f / HEADER).write_text("[]"), "damaged"),
    "no text": (lambda f: (f / HEADER).write_bytes(b"\xff"), "can't decode"),
    "newer version": (lambda f: _manifest(f, version=2), "version 2; this islices reads 1"),
    "more entries": (lambda f: _manifest(f, more=1), "other entries"),
    "negative rows": (lambda f: _manifest(f, rows=-4), "got rows -4"),
    "more rows": (lambda f: _manifest(f, rows=5), "its files have 4 rows; the table has 5"),
    "very many rows": (
        lambda f: _manifest(f, rows=10**15, files=[[shard_of(f).name, 0, 10**15, "00"]]),
        "its 1000000000000000 rows are not all there",
    ),
    "another path": (lambda f: _manifest(f, files=[["../" + shard_of(f).name, 0, 4, ""]]), "got the file '../shard"),
    "no files": (lambda f: _manifest(f, files=[]), "its files have 0 rows"),
    "wider rows": (lambda f: _manifest(f, row_shape=[1, 2]), "of rows (2,), not float32 (1, 2)"),
    "integers": (lambda f: _manifest(f, dtype="int32"), "no table"),
    "other state": (lambda f: _manifest(f, state={"m": ["float32", False]}), "does not hold the arrays"),
    "bad state": (lambda f: _manifest(f, state={"m": ["int8", False]}), "accepted is ['float32', per row]"),
    "padding": (lambda f: _manifest(f, padding_idx=4), "got padding_idx 4"),
    "steps": (lambda f: _manifest(f, steps=-1), "got steps -1"),
    "metadata": (lambda f: _manifest(f, metadata={"a": 1}), "no object of texts"),
}


def _replace(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("case", DAMAGE)
def test_a_checkpoint_that_is_not_whole_is_a_value_error(case: str, saved: Path) -> None:
    damage, words = DAMAGE[case]
    load_sharded(saved, Alone())
    damage(saved)
    with pytest.raises(ValueError) as found:
        load_sharded(saved, Alone())
    assert words in str(found.value)
    assert str(saved) in str(found.value)


class Gone(Group):
    """The other of two ranks has died."""

    engine = "a test"

    def _all_gather(self, data: Any, lengths: Any) -> Any:
        raise OSError("rank 1 has ended")

    _all_to_all = _all_gather

    def _what_failed(self, error: Exception) -> RankError:
        return RankError(str(error), ranks=(1,))


def test_a_rank_that_dies_is_no_damaged_checkpoint(saved: Path) -> None:
    with pytest.raises(RankError, match="rank 1 has ended"):
        load_sharded(saved, Gone(0, 2))


def test_saving_again_replaces_and_removes(saved: Path) -> None:
    before = shard_of(saved).name
    for name in ("mine.txt", "shard-0123456789abcdef-7-of-9.safetensors", ".islices-0123456789abcdef.tmp"):
        (saved / name).write_text("of a save that was never finished")
        os.utime(saved / name, (0, 0))
    table, state = load_sharded(saved, Alone())
    table.shard.weights[...] += 1
    save_sharded(saved, table, state)
    assert sorted(p.suffix for p in saved.iterdir()) == [".json", ".safetensors", ".txt"]
    again, _ = load_sharded(saved, Alone())
    assert again.shard.weights.tobytes() == table.shard.weights.tobytes()
    assert not (saved / before).exists()


def test_of_two_saves_at_once_one_is_there(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that should have ended saves while the one that follows it does."""
    from islices.distributed import shards

    tables = {
        name: ShardedTable.from_full(np.full((2, 1), float(value)), Alone()) for name, value in (("old", 1), ("new", 2))
    }
    write = shards.write_header

    def write_after_the_other(*arguments: Any) -> None:
        monkeypatch.setattr(shards, "write_header", write)
        save_sharded(saved, tables["old"])
        write(*arguments)

    monkeypatch.setattr(shards, "write_header", write_after_the_other)
    save_sharded(saved, tables["new"])
    assert load_sharded(saved, Alone())[0].shard.weights.tolist() == [[2.0], [2.0]]


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(saved: Path) -> None:
    seen: list[str] = []

    def read(saves: int, header: ShardedHeader) -> int:
        seen.append(header.sha256)
        if len(seen) <= saves:
            save_sharded(saved, ShardedTable.from_full(np.full((2, 1), float(len(seen))), Alone()))
        return sum((saved / piece.name).stat().st_size for piece in header.files)

    for saves, reads in ((0, 1), (1, 2), (ATTEMPTS - 1, ATTEMPTS)):
        seen.clear()
        header, size = read_checkpoint(Alone(), "a test", saved, partial(read, saves))
        assert size
        assert len(set(seen)) == len(seen) == reads
        assert header.sha256 == seen[-1]
    seen.clear()
    with pytest.raises(ValueError, match=f"{ATTEMPTS} times a save replaced the checkpoint"):
        read_checkpoint(Alone(), "a test", saved, partial(read, ATTEMPTS))
    shard_of(saved).unlink()  # the header stays: no second attempt
    with pytest.raises(ValueError, match="is not there, though the checkpoint names it"):
        load_sharded(saved, Alone())


@pytest.mark.repeats
def test_two_ranks_load_while_another_process_saves(tmp_path: Path) -> None:
    programs.save_once(str(tmp_path), 0.0)
    code = f"import runpy; runpy.run_path({str(PROGRAMS)!r})['save_always']({str(tmp_path)!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(PROGRAMS.parent)}
    ) as saver:
        try:
            first, second = launch("torch", 2, "load_often", folder=str(tmp_path), times=200)
        finally:
            saver.kill()
    assert first == second  # of one checkpoint
    assert len(set(first)) > 3  # the other process did save


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
    from islices.distributed import shard_files, shards

    monkeypatch.setattr(shard_files, "BLOCK", 1 << 15)  # 4096 rows of 8 bytes
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


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes_come_back_in_each_framework(dtype: str, backend: str, tmp_path: Path) -> None:
    B = islices.get_backend(backend)
    table = ShardedTable.create(
        5, (2, 2), lambda a, b: np.random.default_rng(0).normal(size=(b - a, 2, 2)), Alone(), dtype=dtype
    )
    state = table.init(islices.optim.adam(0.1))
    save_sharded(tmp_path, table, state)
    if (backend, dtype) == ("jax", "float64"):
        with pytest.raises(TypeError, match="jax_enable_x64"):
            load_sharded(tmp_path, Alone(), like=backend)
        return
    again, other = load_sharded(tmp_path, Alone(), like=backend)
    assert other is not None
    assert again.backend is B
    assert B.dtype(again.shard.weights) == dtype
    assert B.to_numpy(again.shard.weights).tobytes() == table.shard.weights.tobytes()
    assert B.dtype(other["m"]) == B.dtype(other["v"]) == ("float64" if dtype == "float64" else "float32")


# ---------------------------------------------------------------------- one rank
@pytest.mark.parametrize("mode", ["host", "framework"])
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_a_table_of_one_rank_is_a_table(backend: str, mode: str) -> None:
    B = islices.get_backend(backend)
    full = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    ids, g = np.array([[8, 1], [1, 0]], np.int32), np.random.default_rng(1).normal(size=(2, 2, 3)).astype(np.float32)
    optimizer = islices.optim.adam(0.1)
    plain, state = optimizer.step(full.copy(), islices.embedding_grad(g, ids, 9), optimizer.init(full))
    with islices.execution(mode):
        table = ShardedTable.from_full(B.asarray(full), Alone())
        own = table.init(optimizer)
        batch = table.fetch(B.asarray(ids))
        assert B.to_numpy(islices.lookup(batch.table, batch.ids)).tobytes() == full[ids].tobytes()
        grad = islices.to_native(islices.embedding_grad(B.asarray(g), batch.ids, 3))  # as a framework's own
        own = table.step(optimizer, table.reduce(batch, grad), own)
    assert B.to_numpy(table.shard.weights).tobytes() == plain.tobytes()
    assert B.to_numpy(own["v"]).tobytes() == state["v"].tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_in_the_other_order_of_bytes(dtype: str, tmp_path: Path) -> None:
    other = np.dtype(dtype).newbyteorder()
    full, ids = np.arange(8.0).reshape(4, 2), np.array([3, 1, 3]).astype(np.dtype(np.int64).newbyteorder())
    for table in (
        ShardedTable.from_full(full.astype(other), Alone()),
        ShardedTable.create(4, (2,), lambda start, stop: full[start:stop].astype(other), Alone()),
    ):
        assert table.lookup(ids).tolist() == full[ids].tolist()
        batch, optimizer = table.fetch(ids), islices.optim.sgd(1.0)
        grad = islices.embedding_grad(np.ones((3, 2), other), batch.ids.astype(ids.dtype), 2)
        table.step(optimizer, table.reduce(batch, grad), table.init(optimizer))
        save_sharded(tmp_path, table)
        for one in (table, load_sharded(tmp_path, Alone())[0]):
            assert one.shard.weights.tolist() == [[0.0, 1.0], [1.0, 2.0], [4.0, 5.0], [4.0, 5.0]]


def test_the_rows_of_a_created_table_are_those_of_their_numbers() -> None:
    def init(start: int, stop: int) -> np.ndarray[Any, Any]:
        return np.broadcast_to(np.arange(start, stop, dtype=np.float64)[:, None], (stop - start, 2))

    for like in ("numpy", np.zeros(1), "torch"):
        table = ShardedTable.create(5, (2,), init, Alone(), dtype="float32", like=like, padding_idx=0)
        islices.scatter_add(table.shard, islices.embedding_grad(table.lookup(np.array([3])), np.array([3]), 5))
        assert table.lookup(np.array([4, 3])).tolist() == [[4.0, 4.0], [6.0, 6.0]]


def _ones(start: int, stop: int) -> np.ndarray[Any, Any]:
    return np.ones(stop - start)


BAD_STARTS = {
    "init": (lambda: ShardedTable.create(3, (2,), 0.0, Alone()), TypeError, "init: got"),
    "integers": (lambda: ShardedTable.create(3, (), np.arange, Alone()), TypeError, "init: returned int64"),
    "bits": (lambda: ShardedTable.create(1, (), lambda a, b: np.zeros(1, np.uint16), Alone()), TypeError, "uint16"),
    "row_shape": (lambda: ShardedTable.create(3, 2, np.arange, Alone()), TypeError, "row_shape: got int 2"),
    "negative row": (lambda: ShardedTable.create(3, (-2,), np.arange, Alone()), ValueError, "-2"),
    "rows": (lambda: ShardedTable.create(-3, (2,), np.arange, Alone()), ValueError, "num_rows: got -3"),
    "dtype": (lambda: ShardedTable.create(3, (), _ones, Alone(), dtype="int8"), ValueError, "dtype: got 'int8'"),
    "jax": (
        lambda: ShardedTable.create(3, (), _ones, Alone(), like="jax"), TypeError, "jax_enable_x64",
    ),
    "padding": (lambda: ShardedTable(np.ones((3, 1)), 3, Alone(), padding_idx=3), IndexError, "padding_idx: got 3"),
    "flag": (lambda: ShardedTable(np.ones((3, 1)), 3, Alone(), scale_by_freq=2), TypeError, "scale_by_freq: got 2"),
    "group": (lambda: ShardedTable(np.ones((3, 1)), 3, object()), TypeError, "group: got"),
    "weights": (lambda: ShardedTable([1.0], 1, Alone()), TypeError, "weights: got list"),
    "folder": (lambda: read_sharded_header(3), TypeError, "folder: got int 3"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_STARTS)
def test_bad_arguments_are_named(case: str) -> None:
    call, kind, words = BAD_STARTS[case]
    with pytest.raises(kind) as found:
        call()
    assert words in str(found.value)
