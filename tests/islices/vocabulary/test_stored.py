"""renumber_file: what is written is what renumber makes in memory, whatever the formats and chunks; damage, atomicity,
memory that follows the chunk, folders of sharded tables."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices, Table, optim
from islices.conformance.properties.files import same
from islices.distributed import (
    Alone,
    ShardedTable,
    load_sharded,
    read_sharded_header,
    save_sharded,
    shard_files,
    shard_header,
)
from islices.io import read_header, read_metadata
from islices.vocabulary import RowMap, grow, normal, renumber, renumber_file, uniform

pytest.importorskip("safetensors")
ml_dtypes = pytest.importorskip("ml_dtypes")

ROWS = 40
MAPPINGS: dict[str, Any] = {
    "shuffled": np.random.default_rng(0).permutation(ROWS),
    "mixed": [-1, 3, 0, -1, 39, 7, 8, 9, -1],
    "dropped": {0: 2, 7: 0, 39: 1},
    "all new": [-1, 0, -1],
}
ADAM = optim.adam(0.1)


def model(dtype: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    table = Table(rng.normal(size=(ROWS, 3)).astype(dtype), padding_idx=0)
    state = ADAM.init(table, master=dtype != np.float32)
    state["m"][:] = rng.normal(size=(ROWS, 3))
    slices = IndexedSlices(np.ones((4, 3), dtype), np.array([0, 3, 7, 39]), (ROWS, 3), coalesced=True)
    return {"words": table, "adam": state, "grad": [slices, None], "head": np.ones((3, 2)), "flag": np.array(True)}


def in_memory(tree: dict[str, Any], mapping: Any, fill: Any) -> dict[str, Any]:
    words, state = renumber(tree["words"], mapping, tree["adam"], fill=fill, state_fill=ADAM)
    return {**tree, "words": words, "adam": state, "grad": [renumber(tree["grad"][0], mapping), None]}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("suffixes", [(".npz", ".npz"), (".safetensors", ".safetensors"), (".npz", ".safetensors")])
def test_as_in_memory(tmp_path: Path, suffixes: tuple[str, str], mapping: str, dtype: str) -> None:
    tree = model(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype).type)
    source, target = (tmp_path / f"{name}{suffix}" for name, suffix in zip(("a", "b"), suffixes, strict=True))
    islices.save(source, tree, metadata={"step": "3"})
    before = source.read_bytes()
    for fill, chunk in ((0.5, 1), ("mean", 100), (normal(1.0, seed=2), 1 << 20), (uniform(1.0, seed=2), 7)):
        m = MAPPINGS[mapping]
        found = renumber_file(
            source, target, m, tables=["words", "grad.0"], states="adam.*", fill=fill, state_fill=ADAM, chunk=chunk
        )
        expected = in_memory(tree, m, fill)
        assert same(islices.load(target), expected), (fill, chunk)
        assert read_metadata(target) == {"step": "3"}
        assert found.rows == expected["words"].shape[0]
    assert source.read_bytes() == before
    islices.save(tmp_path / f"c{suffixes[1]}", expected, metadata={"step": "3"})
    assert target.read_bytes() == (tmp_path / f"c{suffixes[1]}").read_bytes()


def test_growing_a_file_in_its_place(tmp_path: Path) -> None:
    table, path = np.arange(6.0).reshape(3, 2), tmp_path / "x.npz"
    islices.save(path, table)
    found = renumber_file(path, path, None, rows=5, fill="mean")
    assert (islices.load(path) == grow(table, 5, fill="mean")).all()
    assert found.old_ids.tolist() == [0, 1, 2, -1, -1]
    assert os.listdir(tmp_path) == ["x.npz"]


def test_files_of_others(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    held = {"emb.weight": np.arange(6, dtype=np.float32).reshape(3, 2), "head.weight": np.ones((2, 3), np.float32)}
    save_file(held, tmp_path / "a.safetensors", {"format": "pt"})
    renumber_file(tmp_path / "a.safetensors", tmp_path / "b.safetensors", [2, 0], tables="emb.*", foreign=True)
    made = load_file(tmp_path / "b.safetensors")
    assert made["emb.weight"].tolist() == [[4, 5], [0, 1]]
    assert made["head.weight"].tolist() == held["head.weight"].tolist()
    assert read_header(tmp_path / "b.safetensors").metadata == {"format": "pt"}
    np.savez(tmp_path / "a.npz", held["emb.weight"])
    renumber_file(tmp_path / "a.npz", tmp_path / "b.npz", [2, 0], foreign=True)
    assert np.load(tmp_path / "b.npz")["arr_0"].tolist() == [[4, 5], [0, 1]]
    np.savez_compressed(tmp_path / "c.npz", x=held["emb.weight"], y=held["head.weight"])
    with pytest.raises(ValueError, match="'x' is compressed"):
        renumber_file(tmp_path / "c.npz", tmp_path / "d.npz", [2, 0], tables="x", foreign=True)
    np.savez(tmp_path / "c.npz", x=held["emb.weight"], y=held["head.weight"].T.copy().T)
    renumber_file(tmp_path / "c.npz", tmp_path / "d.npz", [2, 0], tables="x", foreign=True)
    assert np.load(tmp_path / "d.npz")["y"].tolist() == held["head.weight"].tolist()


# ---------------------------------------------------------------------- what goes wrong
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ValueError, "states: got None, and 'adam.m', 'adam.v' have as many rows"),
    ({"tables": "w"}, ValueError, "tables: got 'w', which no leaf is named; accepted are 'words'"),
    ({"states": "s"}, ValueError, "states: got 's'"),
    ({"tables": ["words", "head"], "states": []}, ValueError, r"'head' has shape \(3, 2\)"),
    ({"states": "adam.*", "mapping": [0, 40]}, IndexError, "old_ids: got 40 at position 1"),
    ({"states": "adam.*", "mapping": [1]}, ValueError, "drops row 0, the table's padding"),
    ({"states": "adam.*", "mapping": None, "rows": 41}, TypeError, "state_fill: got None"),
    ({"states": "adam.*", "mapping": None, "rows": 3}, ValueError, "rows: got 3 for a table of 40"),
    ({"mapping": None}, TypeError, "mapping: accepted is either one, or None and rows="),
    ({"chunk": 0}, ValueError, "chunk: got 0"),
    ({"source": "none.npz"}, FileNotFoundError, "none.npz"),
    ({"target": "b.pt"}, ValueError, "names that end in"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_what_is_refused_writes_nothing(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    tree = model()
    del tree["grad"]
    islices.save(tmp_path / "a.npz", tree)
    given = {"source": "a.npz", "target": "b.npz", "mapping": [0, 1], **options}
    places = [tmp_path / given.pop(name) for name in ("source", "target")]
    with pytest.raises(error, match=message):
        renumber_file(*places, given.pop("mapping"), **given)
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("damaged", ["words", "head"])
def test_damage_is_seen_and_the_old_file_stays(tmp_path: Path, suffix: str, damaged: str) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    marked = np.full((8, 2), 1.2345678901234e100)
    islices.save(source, {"words": Table(marked if damaged == "words" else marked * 2), "head": marked})
    islices.save(target, None)
    there, data = target.read_bytes(), bytearray(source.read_bytes())
    data[data.index(marked[0, 0].tobytes())] ^= 1
    source.write_bytes(data)
    with pytest.raises(ValueError, match=rf"a{suffix}: .*damaged.*{damaged}|{damaged}.* are damaged"):
        renumber_file(source, target, [1, 0], tables="words", states=[])
    assert target.read_bytes() == there
    assert sorted(os.listdir(tmp_path)) == [f"a{suffix}", f"b{suffix}"]


def test_a_damaged_master_is_seen(tmp_path: Path) -> None:
    source, optimizer = tmp_path / "a.npz", optim.sgd(0.1)
    table = np.full((4, 2), 1.5, np.float16)
    islices.save(source, {"t": Table(table), "s": optimizer.init(table, master=True)})
    data = bytearray(source.read_bytes())
    data[data.index(np.float32(1.5).tobytes() * 8)] ^= 1
    source.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        renumber_file(source, tmp_path / "b.npz", None, rows=5, tables="t", states="s.*", state_fill=optimizer)
    assert os.listdir(tmp_path) == ["a.npz"]


# ---------------------------------------------------------------------- folders
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_folders_of_shards(tmp_path: Path, suffix: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "BLOCK", 64)  # several blocks a file
    start = np.random.default_rng(3).normal(size=(ROWS, 3)).astype(dtype)
    table, optimizer = ShardedTable.from_full(start, Alone(), padding_idx=4), optim.rowwise_adagrad(0.1)
    state = table.init(optimizer, master=dtype == np.float16)
    state["accumulator"][:] = np.arange(ROWS)
    save_sharded(tmp_path / "a", table, state, suffix=suffix, metadata={"epoch": "7"})
    m = [4, -1, 39, *range(10, 30), -1]
    for fill in (0.25, "mean", normal(1.0, seed=5)):
        renumber_file(tmp_path / "a", tmp_path / "b", m, fill=fill, state_fill=optimizer, chunk=50)
        made, after = load_sharded(tmp_path / "b", Alone())
        expected, state_expected = renumber(Table(start, padding_idx=4), m, state, fill=fill, state_fill=optimizer)
        assert same({"t": made.shard, "s": after}, {"t": expected, "s": state_expected})
        assert made.padding_idx == 0
    assert read_sharded_header(tmp_path / "b").metadata == {"epoch": "7"}
    assert len(os.listdir(tmp_path / "b")) == 2
    renumber_file(tmp_path / "b", tmp_path / "b", None, rows=30, fill=1.0, state_fill=0)
    assert load_sharded(tmp_path / "b", Alone())[0].shape == (30, 3)
    with pytest.raises(ValueError, match="one table with its state"):
        renumber_file(tmp_path / "a", tmp_path / "b", m, tables="x")
    before = sorted(os.listdir(tmp_path / "b"))
    name = next(name for name in os.listdir(tmp_path / "a") if name.startswith("shard"))
    data = (tmp_path / "a" / name).read_bytes()
    (tmp_path / "a" / name).write_bytes(data.replace(start[9].tobytes(), start[8].tobytes()))
    with pytest.raises(ValueError, match="damaged"):
        renumber_file(tmp_path / "a", tmp_path / "b", m, fill=0, state_fill=0)
    assert sorted(os.listdir(tmp_path / "b")) == before


def test_folders_of_several_ranks(tmp_path: Path) -> None:
    """A folder as three ranks write it, put together of three."""
    start = np.arange(30.0).reshape(10, 3)
    save_sharded(tmp_path / "a", ShardedTable.from_full(start, Alone()))
    header = read_sharded_header(tmp_path / "a")
    files = []
    for rank, (first, stop) in enumerate([(0, 4), (4, 7), (7, 10)]):
        name = header.files[0].name.replace("-0-of-1", f"-{rank}-of-3")
        tree = {"weights": [start[first:stop]]}
        islices.save(tmp_path / "a" / name, tree, metadata={"rows": f"{first}:{stop}"})
        files.append([name, first, stop, shard_files.digest(str(tmp_path / "a" / name))])
    content = {
        "rows": 10, "row_shape": [3], "dtype": "float64", "padding_idx": None, "scale_by_freq": False, "steps": None,
        "state": {}, "metadata": {}, "files": files,
    }  # fmt: skip
    shard_header.write_header(str(tmp_path / "a"), content)
    m = RowMap([9, 0, -1, 5, 4, 3, -1, -1], 10)
    for fill in ("mean", uniform(1.0, seed=1)):
        renumber_file(tmp_path / "a", tmp_path / "b", m, fill=fill, chunk=30)
        assert [piece.stop for piece in read_sharded_header(tmp_path / "b").files] == [3, 6, 8]
        assert (load_sharded(tmp_path / "b", Alone())[0].shard.weights == renumber(start, m, fill=fill)).all()


# ---------------------------------------------------------------------- memory
@pytest.mark.outside
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_memory_follows_the_chunk(tmp_path: Path, suffix: str) -> None:
    """200 MB of table and state, in some 40 MB beyond what the library itself takes."""
    program = """
        import resource, sys
        import numpy as np
        from islices.vocabulary import renumber_file, normal, RowMap
        mapping = np.random.default_rng(0).permutation(400_000)
        mapping[::1000] = -1
        renumber_file(sys.argv[2], sys.argv[2], None, rows=9, fill=0.5, state_fill=0, states="v")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        renumber_file(sys.argv[1], sys.argv[1], mapping, fill="mean", state_fill=0, states="v", chunk=1 << 20)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    large, small = tmp_path / f"large{suffix}", tmp_path / f"small{suffix}"
    for path, rows in ((large, 400_000), (small, 8)):
        islices.save(path, {"t": Table(np.zeros((rows, 64), np.float32)), "v": np.zeros((rows, 64), np.float32)})
    assert os.stat(large).st_size > 200e6
    args = [sys.executable, "-c", textwrap.dedent(program), str(large), str(small)]
    done = subprocess.run(args, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40_000, done.stdout
