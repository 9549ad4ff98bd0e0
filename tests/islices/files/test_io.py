"""Test save and load with every kind of leaf from every framework, and with files of other programs. Test that writes
are atomic."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tracemalloc
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from suite_runs import run_code

import islices
from islices.conformance.properties.files import same
from islices.files import read_header, read_metadata
from islices.files.places import replacing
from islices.files.safetensors import Archive

safetensors = pytest.importorskip("safetensors")
safetensors_numpy = pytest.importorskip("safetensors.numpy")
ml_dtypes = pytest.importorskip("ml_dtypes")

FRAMEWORKS = [name for name in ("numpy", "torch", "tensorflow", "jax", "mxnet") if name in islices.list_backends()]
FLOATS = ("float16", "bfloat16", "float32", "float64")
OTHERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
#: framework -> dtypes that the framework or its adapter lacks for dense arrays
LACKING = {"mxnet": ("int16", "uint16", "uint32", "uint64")}


@pytest.fixture
def wide() -> Any:
    """Turn on JAX's 64-bit types, if JAX is installed."""
    if "jax" not in FRAMEWORKS:
        yield
        return
    with islices.get_backend("jax").wide_types():
        yield


def array(framework: str, x: Any, dtype: str) -> Any:
    host = np.asarray(x).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    backend = islices.get_backend(framework)
    if framework == "numpy":
        return host
    if dtype == "uint16":  # to adapters, a NumPy array of uint16 is bfloat16
        return backend.astype(backend.asarray(host.astype(np.int32)), "uint16")
    return backend.asarray(host)


def bits(x: Any) -> tuple[str, tuple[int | None, ...], bytes]:
    backend = islices.get_backend(x)
    return backend.dtype(x), backend.shape(x), backend.to_numpy(x).tobytes()


def parts(s: islices.IndexedSlices) -> tuple[Any, ...]:
    return bits(s.values), bits(s.indices), s.dense_shape, s.coalesced


ROWS = {
    "sorted": ([0, 2, 5], True),
    "unsorted": ([5, 0, 2], False),
    "duplicates": ([3, 3, 1, 3], False),
    "empty": ([], False),
}


def slices(framework: str, dtype: str) -> dict[str, islices.IndexedSlices]:
    """Return slices of each kind in ROWS, with int32 and int64 indices. The number of rows is known or unknown, and
    rows have 0 to 2 dimensions."""
    backend = islices.get_backend(framework)
    made = {}
    for index_type in ("int32", "int64"):
        for k, (name, (rows, coalesced)) in enumerate(ROWS.items()):
            row_shape = ((), (3,), (2, 2))[k % 3]
            values = np.arange(len(rows) * int(np.prod(row_shape))).reshape(len(rows), *row_shape) - 1.5
            indices = backend.asarray(np.array(rows, index_type))
            shape = (None if k % 2 else 6, *row_shape)
            made[f"{name}, {index_type}"] = islices.IndexedSlices(
                array(framework, values, dtype), indices, shape, coalesced=coalesced
            )
    return made


# ---------------------------------------------------------------------- round trips


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_dense_arrays_come_back(framework: str, tmp_path: Path, wide: None) -> None:
    rng = np.random.default_rng(3)
    tree = {
        f"{dtype} {shape}": array(framework, rng.integers(0, 2, shape), dtype)
        for dtype in (*FLOATS, *OTHERS)
        if dtype not in LACKING.get(framework, ())
        for shape in ((), (0,), (5,), (2, 3), (0, 3), (40, 50))
    }
    path = tmp_path / "dense.safetensors"
    islices.save(path, tree)
    back = islices.load(path, backend=framework)
    assert {name: bits(x) for name, x in back.items()} == {name: bits(x) for name, x in tree.items()}
    assert all(islices.get_backend(x).name == framework for x in back.values())


@pytest.mark.parametrize(
    ("of", "to"), [("numpy", "numpy"), *((a, b) for f in FRAMEWORKS[1:] for a, b in ((f, "numpy"), ("numpy", f)))]
)
def test_one_framework_saves_another_loads(of: str, to: str, tmp_path: Path, wide: None) -> None:
    tree = [*(s for dtype in FLOATS for s in slices(of, dtype).values()), array(of, [1.5, np.nan], "bfloat16")]
    path = tmp_path / "grads.safetensors"
    islices.save(path, tree)
    back = islices.load(path, backend=to)
    assert [parts(s) for s in back[:-1]] == [parts(s) for s in tree[:-1]]
    assert bits(back[-1]) == bits(tree[-1])
    assert {islices.get_backend(x).name for x in back} == {to}


def test_every_bit_of_a_float_is_kept(tmp_path: Path) -> None:
    """Check that files keep NaN payloads, signs of zeros and subnormal numbers in every float type."""
    every = np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(5)
    tree = [every.view(np.float16), every.view(ml_dtypes.bfloat16), *(
        rng.integers(0, 1 << 8, 4096, np.uint8).view(dtype) for dtype in (np.float32, np.float64)
    )]  # fmt: skip
    path = tmp_path / "bits.safetensors"
    islices.save(path, tree)
    assert same(tree, islices.load(path))


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "numpy"])
def test_native_gradients_are_saved(framework: str, tmp_path: Path) -> None:
    s = slices(framework, "float32")["sorted, int32"]
    native = islices.to_native(s)
    path = tmp_path / "native.safetensors"
    islices.save(path, {"table": native})
    back = islices.load(path)["table"]
    assert parts(back) == parts(islices.from_native(native))


Point = namedtuple("Point", "x y")


def test_structures_come_back(tmp_path: Path) -> None:
    x = np.arange(3.0)
    table = islices.Table(np.ones((4, 2), np.float32), padding_idx=-1, scale_by_freq=True)
    tree = {"b": [x, (x, None), {}], "a": {0: x, -7: [], "0": ()}, "table": table, "": {"": x}, "point": Point(x, None)}
    path = tmp_path / "tree.safetensors"
    islices.save(path, tree)
    back = islices.load(path)
    assert same({**tree, "point": (x, None)}, back)
    assert (back["table"].padding_idx, type(back["point"])) == (3, tuple)


LEAVES = st.builds(
    lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
    st.sampled_from((*OTHERS, "float16", "float32", "float64")),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 9),
)
KEYS = st.text(st.characters(), max_size=8) | st.sampled_from(
    ["a.b", "a", "b", "values", "../x", "__metadata__", "é/."]
)
TREES = st.recursive(
    LEAVES | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS | st.integers(-3, 3), inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES)
def test_any_tree_with_any_names_comes_back(tmp_path: Path, tree: Any) -> None:
    path = tmp_path / "any.safetensors"
    islices.save(path, tree)
    assert same(tree, islices.load(path))


def test_names_that_would_collide_do_not(tmp_path: Path) -> None:
    s = islices.IndexedSlices(np.ones((1, 2)), np.array([0]), (3, 2))
    names = ["a", "a.values", "a.values~2", "islices.json", "__metadata__", "..", "x" * 70_000, "nul\0", "\ud800"]
    tree = {name: np.full(2, k, np.float32) for k, name in enumerate(names[1:])} | {"a": s, "a/b": {"..": s}}
    path = tmp_path / "names.safetensors"
    islices.save(path, tree)
    assert same(tree, islices.load(path))
    stored = read_header(path).arrays
    assert len(stored) == 12
    assert not any(name.startswith("/") or "/." in name or "\0" in name or len(name) > 300 for name in stored)


# ---------------------------------------------------------------------- types that a framework lacks
def test_jax_without_x64_says_so(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    assert not jax.config.jax_enable_x64
    path = tmp_path / "wide.safetensors"
    islices.save(path, [np.zeros(3)])
    with pytest.raises(TypeError, match=r"float64.*jax_enable_x64"):
        islices.load(path, backend="jax")
    s = islices.IndexedSlices(np.ones((1, 1), np.float32), np.array([2**31]), (2**32, 1))
    islices.save(path, s)
    with pytest.raises(IndexError, match="2147483648 at position 0"):
        islices.load(path, backend="jax")
    islices.save(path, islices.IndexedSlices(s.values, np.array([2**31 - 1]), (2**32, 1)))
    back = islices.load(path, backend="jax")
    assert (back.indices.dtype, int(back.indices[0])) == (np.int32, 2**31 - 1)


# ---------------------------------------------------------------------- errors
def traced_by_jax(path: Path) -> None:
    jax = pytest.importorskip("jax")
    jax.jit(lambda x: islices.save(path, {"g": x}))(np.float32(1))


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "a number": (lambda p: islices.save(p, {"lr": [0.1]}), TypeError, r"tree\['lr'\]\[0\]: got float 0.1"),
    "complex": (lambda p: islices.save(p, [np.zeros(2, complex)]), TypeError, r"tree\[0\].*complex128.*accepted"),
    "a key": (lambda p: islices.save(p, {"a": {(1, 2): None}}), TypeError, r"tree\['a'\]: got the key \(1, 2\)"),
    "a cycle": (lambda p: islices.save(p, cycle()), ValueError, "more than 100 levels, or one within itself"),
    "a traced array": (traced_by_jax, TypeError, r"tree\['g'\].*traced"),
    "invalid slices": (lambda p: islices.save(p, [unchecked([0, 9])]), IndexError, r"tree\[0\]: indices: got 9 at"),
    "another suffix": (lambda p: islices.save("x.pt", None), ValueError, "path: got 'x.pt'.*in .safetensors"),
    "a reserved name": (lambda p: islices.save(p, None, metadata={"islices.x": ""}), ValueError, "reserved"),
    "a backend": (lambda p: islices.load(p, backend="caffe"), ValueError, "no backend is named 'caffe'"),
}  # fmt: skip


def cycle() -> list[Any]:
    x: list[Any] = []
    x.append(x)
    return x


def unchecked(indices: list[int]) -> islices.IndexedSlices:
    rows = np.array(indices)
    return islices.IndexedSlices(np.ones((len(rows), 1)), rows, (5, 1), coalesced=True, validate=False)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_no_file(name: str, tmp_path: Path) -> None:
    call, kind, text = REFUSED[name]
    path = tmp_path / "old.safetensors"
    path.write_bytes(b"as it was")
    with pytest.raises(kind, match=text):
        call(path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {path.name: b"as it was"}


def test_what_a_killed_save_left_is_removed_by_a_later_one(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(SystemExit), replacing(str(path)) as beside:  # yields a temporary name for this target
        raise SystemExit
    old, young = (Path(beside[: -len(end)] + end) for end in ("0.tmp", "1.tmp"))
    for left in (old, young, tmp_path / ".islices-0123456789abcdef.tmp"):  # the last file belongs to another target
        left.touch()
        os.utime(left, (0, 0) if left != young else None)
    islices.save(path, None)
    assert not old.exists()
    assert len(list(tmp_path.glob(".islices-*.tmp"))) == 2


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="the system has no names for open files")
def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    islices.save(path, {"before": np.zeros(3)})
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        islices.save(path, {"after": np.ones(50)})
        archive = Archive(str(path), file, size)
        (array,) = archive.arrays.values()
        assert (array.name, archive.read(array).tolist()) == ("before", [0.0] * 3)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        islices.load(tmp_path / "missing.safetensors")
    with pytest.raises(FileNotFoundError, match=r"x\.safetensors") as error:
        islices.save(tmp_path / "nowhere" / "x.safetensors", None)
    assert "tmp'" not in str(error.value)
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="no regular file"):
        islices.load(pipe)  # without waiting for a writer
    with pytest.raises(ValueError, match="no regular file"):
        islices.save(pipe, None)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_without_safetensors_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    islices.save(tmp_path / "x.safetensors", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.setitem(sys.modules, name, None)  # as if the package were not installed
    for call in (lambda p: islices.save(p, None), islices.load):
        with pytest.raises(ModuleNotFoundError, match=r'pip install "islices\[io\]"'):
            call(tmp_path / "x.safetensors")


# ---------------------------------------------------------------------- exchange with other programs
def test_others_read_our_files(tmp_path: Path) -> None:
    s = islices.IndexedSlices(np.ones((2, 3), np.float32), np.array([4, 1], np.int32), (6, 3))
    half = np.array([1.5], ml_dtypes.bfloat16)
    path = tmp_path / "x.safetensors"
    islices.save(path, {"encoder": {"weight": s}, "half": half, "steps": [np.int64(3)]}, metadata={"format": "pt"})
    read = safetensors_numpy.load_file(path)
    with safetensors.safe_open(path, "numpy") as file:
        texts = file.metadata()
    assert texts.pop("format") == "pt"
    assert read["half"].tolist() == [1.5]
    assert sorted(read) == ["encoder.weight.indices", "encoder.weight.values", "half", "steps.0"]
    assert (read["encoder.weight.indices"].tolist(), read["encoder.weight.indices"].dtype) == ([4, 1], np.int32)
    assert same(read["encoder.weight.values"], s.values)
    manifest = json.loads(texts["islices.json"])  # in the format of docs/files.md
    assert hashlib.sha256(texts["islices.json"].encode()).hexdigest() == texts["islices.sha256"]
    digests = {held["name"]: held["sha256"] for held in manifest["arrays"]}
    assert digests == {name: hashlib.sha256(x.tobytes()).hexdigest() for name, x in read.items()}
    assert manifest["tree"]["dict"][0][1]["dict"][0][1]["slices"]["dense_shape"] == [6, 3]


@pytest.mark.parametrize("framework", FRAMEWORKS[:2])
def test_files_of_others_load_where_that_is_asked_for(framework: str, tmp_path: Path, wide: None) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {"layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3), "on": np.array([True])}
    safetensors_numpy.save_file(arrays, path, {"format": "pt"})
    for call in (islices.load, read_header, read_metadata):
        with pytest.raises(ValueError, match=r"x\..*islices.save.*load\(path, foreign=True\)"):
            call(path)
    back = islices.load(path, backend=framework, foreign=True)
    assert {name: bits(x) for name, x in back.items()} == {name: bits(x) for name, x in arrays.items()}
    header = read_header(path, foreign=True)
    assert (header.own, header.arrays["n"]) == (False, ("int64", ()))
    assert header.metadata == {"format": "pt"}


def test_asking_for_others_files_changes_nothing_for_ours(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tree = {"g": slices("numpy", "float32")["duplicates, int64"]}
    islices.save(path, tree)
    assert same(tree, islices.load(path, foreign=True))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"islices.json", b"islicez.json"))
    with pytest.raises(ValueError, match=r"x\.|manifest|\.npy"):
        islices.load(path, foreign=True)
    path.write_bytes(data)
    with safetensors.safe_open(path, "numpy") as file:
        texts = file.metadata()
    safetensors_numpy.save_file({**safetensors_numpy.load_file(path), "more": np.ones(1)}, path, texts)
    with pytest.raises(ValueError, match="x\\."):  # the manifest does not describe the array
        islices.load(path)


# ---------------------------------------------------------------------- headers
def test_the_header_is_read_without_the_data(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    big = np.full(1 << 16, 7, np.uint8)
    remarks = {"step": "12", "é\n": "日本語", "format": "pt"}
    islices.save(path, {"w": big, "b": np.array([1.5], ml_dtypes.bfloat16)}, metadata=remarks)
    path.write_bytes(path.read_bytes().replace(bytes([7]) * 9, bytes([7] * 8 + [8]), 1))
    header = read_header(path)
    assert header == (remarks, {"w": ("uint8", (1 << 16,)), "b": ("bfloat16", (1,))}, True)
    assert read_metadata(path) == remarks
    with pytest.raises(ValueError, match=r"x\.safetensors: .*'w' are damaged"):
        islices.load(path)


# ---------------------------------------------------------------------- writing
def test_permissions_are_those_of_open(tmp_path: Path) -> None:
    path, plain = tmp_path / "x.safetensors", tmp_path / "plain"
    before = os.umask(0o027)
    try:
        islices.save(path, None)
        plain.touch()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode) == 0o640
    path.chmod(0o604)
    islices.save(path, np.ones(2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    link = tmp_path / "link.safetensors"
    link.symlink_to(path.name)
    islices.save(link, np.ones(3))
    assert link.is_symlink()
    assert islices.load(path).shape == (3,)


FULL = """
    import resource, sys, numpy as np, islices
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # the system ends a write in its middle
    try:
        islices.save(sys.argv[1], [np.ones(1000), np.ones(1 << 20)])
    except OSError as error:
        print("OSError", sys.argv[1] in str(error) or error.errno)
"""


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    islices.save(path, np.arange(3))
    assert run_code(FULL, path).startswith("OSError")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert islices.load(path).tolist() == [0, 1, 2]


# ---------------------------------------------------------------------- memory
def peak(call: Any) -> tuple[Any, int]:
    tracemalloc.start()
    try:
        result = call()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_follows_the_stored_rows(tmp_path: Path) -> None:
    values = np.ones((1 << 14, 64), np.float32)  # 4 MiB of a table of 238 GiB
    s = islices.IndexedSlices(values, np.arange(1 << 14) * 60_000, (10**9, 64))
    path = tmp_path / "x.safetensors"
    islices.save(path, None)  # imports are not counted
    islices.load(path)
    _, saving = peak(lambda: islices.save(path, s))
    back, loading = peak(lambda: islices.load(path))
    stored = values.nbytes + s.indices.nbytes
    assert parts(back) == parts(s)
    assert path.stat().st_size < stored + 4096
    assert saving < 2 << 20
    assert loading < stored + (2 << 20)
