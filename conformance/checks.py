"""Check properties that no golden vector covers, such as round trips through framework types, gradients of framework
layers for a real text, and memory use.

A check is a function that gets a backend and raises an error if the backend is wrong. By default, a check runs in modes
host and framework. With ``traced=True``, a check runs only in mode traced; with ``host=True``, a check runs only in
mode host.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import islices
from islices.backend import Backend
from islices.conformance import corpus, oracle
from islices.conformance.composite_operations import UnsupportedError, gradients, own_calls_of
from islices.conformance.data import Array, Slices
from islices.conformance.execute import difference, read, to_backend, to_numpy
from islices.conformance.makers import FLOATS, INDEX_TYPES, ROW_SHAPES, duplicates, slices
from islices.conformance.peak_memory import peak_growth
from islices.norms.clip_formulas import BY_GLOBAL_NORM


class Check(NamedTuple):
    id: str
    clause: str
    run: Callable[[Backend], None]
    wide: bool = False
    full: bool = False
    traced: bool = False
    host: bool = False

    @property
    def modes(self) -> tuple[str, ...]:
        return ("traced",) if self.traced else ("host",) if self.host else ("host", "framework")

    @property
    def group(self) -> str:
        return self.id.partition("/")[0]


CHECKS: list[Check] = []


Checker = Callable[..., None]


def check(
    id: str,
    clause: str,
    *,
    wide: bool = False,
    full: bool = False,
    traced: bool = False,
    host: bool = False,
    **fixed: Any,
) -> Callable[[Checker], Checker]:
    """Return a decorator that registers a function as a check.

    ``wide`` switches on the framework's 64-bit types during the check. ``full`` limits the check to the full profile.
    ``traced`` limits the check to traced mode, in which the check itself must compile the code. ``host`` limits the
    check to mode host. The check gets the backend and the keyword arguments ``fixed``.
    """

    def register(fn: Checker) -> Checker:
        CHECKS.append(Check(id, clause, functools.partial(fn, **fixed), wide, full, traced, host))
        return fn

    return register


def same(got: Any, expected: Any, subject: str) -> None:
    problem = difference(read(got), expected, path=subject)
    assert not problem, problem


# ---------------------------------------------------------------------- conversion
class SampleGradients(NamedTuple):
    table: Any
    bias: Any


def native_and_slices(backend: Backend) -> tuple[Any, Slices]:
    """Return (a sparse gradient of the framework's type with coalesced rows, the same gradient as plain data)."""
    plain = oracle.coalesce(duplicates("native"))
    return islices.to_native(to_backend(backend, plain)), plain


def round_trip(backend: Backend, *, dtype: str, index_type: str, row_shape: tuple[int, ...], layout: str) -> None:
    plain = slices(layout, dtype, index_type, row_shape, "round trip")
    if dtype not in backend.native_float_dtypes:
        raise UnsupportedError(f"the {backend.native_name} has no {dtype}")
    s = to_backend(backend, plain)
    native = islices.to_native(s)
    assert backend.is_native(native) or not backend.native_name, f"to_native gave {type(native)}"
    back = islices.from_native(native)
    assert back.dense_shape == plain.dense_shape, f"dense_shape: got {back.dense_shape}"
    same(islices.to_dense(back), oracle.to_dense(plain), "to_dense(from_native(to_native(s)))")
    same(islices.to_dense(native), oracle.to_dense(plain), "to_dense(to_native(s))")
    again = islices.to_native(islices.coalesce(s))
    expected = oracle.coalesce(plain)
    got = islices.from_native(again)
    same(islices.coalesce(got).values, expected.values, "coalesced values")
    assert read(islices.coalesce(got).indices).data == expected.indices.data, "coalesced indices"


#: The pairs (dtype, index type) of round trips in the quick profile. Each float type occurs in one pair. In this
#: profile, layouts of at most one slice use only float32.
TRIPS = {("float16", "int64"), ("bfloat16", "int32"), ("float32", "int64"), ("float64", "int32")}

for _dtype, _index_type, _row_shape in itertools.product(FLOATS, INDEX_TYPES, ROW_SHAPES):
    for _layout in ("empty", "one", "unsorted-duplicates"):
        check(
            f"conversion/round-trip/{_layout}/{_dtype}/{_index_type}/rank{len(_row_shape)}", "1",
            wide="64" in _dtype + _index_type,
            full=len(_row_shape) != 1
            or (_dtype, _index_type) not in TRIPS
            or (_dtype != "float32" and _layout != "unsorted-duplicates"),
            dtype=_dtype, index_type=_index_type, row_shape=_row_shape, layout=_layout,
        )(round_trip)  # fmt: skip


#: operation on one gradient -> the other arguments of the call
OPERATIONS: dict[str, tuple[Any, ...]] = {
    "coalesce": (), "scale": (0.3,), "add": (), "keep_rows": ([0, 3],), "drop_rows": ([0, 3],), "drop_padding": (4,),
    "clip_by_value": (-1, 1), "clip_by_norm": (1.5,), "clip_by_row_norm": (1.5,),
}  # fmt: skip


def called(module: Any, name: str, x: Any) -> Any:
    """Apply an operation of `module` (islices or the oracle) to x. "add" adds x to itself."""
    return getattr(module, name)(x, *([x] if name == "add" else OPERATIONS[name]))


def type_in_type_out(backend: Backend, *, name: str) -> None:
    native, plain = native_and_slices(backend)
    expected = oracle.to_dense(called(oracle, name, plain))
    out = called(islices, name, native)
    assert type(out) is type(native), f"got {type(out)}, gave {type(native)}"
    same(islices.to_dense(out), expected, f"to_dense({name}(native))")
    s = to_backend(backend, plain)
    assert type(called(islices, name, s)) is islices.IndexedSlices, "IndexedSlices in, IndexedSlices out"
    if name == "add":
        return
    ordered = collections.OrderedDict(z=native, a=None)
    tree = [native, None, (s, native), {"k": [native]}, SampleGradients(native, None), ordered]
    result = called(islices, name, tree)
    assert [type(x) for x in result] == [type(x) for x in tree], "container types"
    assert type(result[4]) is SampleGradients, "named tuples stay"
    assert list(result[5]) == ["z", "a"], "dict order stays"
    assert result[1] is None, "None stays"
    assert type(result[4].table) is type(native), "native leaf of a named tuple"
    same(islices.to_dense(result[3]["k"][0]), expected, "a nested leaf")


for _name in OPERATIONS:
    check(f"conversion/type-in-type-out/{_name}", "1", wide=True, name=_name)(type_in_type_out)


@check("conversion/unchanged-is-the-same-object", "10", wide=True)
def unchanged_is_same(backend: Backend) -> None:
    native, _ = native_and_slices(backend)
    dense = to_backend(backend, Array("float32", (2,), [0.5, 0.5]))
    given: list[Any] = [native, None, {"d": dense}]
    tree, _ = islices.clip_by_global_norm(given, 1e6)
    assert tree[0] is native, "an unclipped native gradient"
    assert tree[2]["d"] is dense, "an unclipped dense gradient"
    assert islices.clip_by_norm(native, 1e6) is native, "clip_by_norm"


@check("conversion/inputs-are-not-changed", "1", wide=True)
def inputs_unchanged(backend: Backend) -> None:
    plain = duplicates("untouched")
    s = to_backend(backend, plain)
    for name in OPERATIONS:
        called(islices, name, s)
    islices.to_dense(s)
    islices.norm(s)
    same(s, plain, "the slices after every operation")


def convert_round_trip(backend: Backend, *, dtype: str) -> None:
    plain = duplicates("convert", dtype)
    s = to_backend(backend, plain)
    if dtype == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401
        except ImportError as error:
            raise UnsupportedError("NumPy has no bfloat16 without ml_dtypes") from error
    there = islices.convert({"s": s, "d": s.values, "n": None}, "numpy")
    assert there["s"].backend.name == "numpy", "convert to numpy"
    same(there["s"], plain, "convert to numpy")
    back = islices.convert(there, backend.name)
    assert back["s"].backend is backend, "convert back"
    same(back["s"], plain, "convert back")
    same(back["d"], plain.values, "convert a dense leaf")
    assert back["n"] is None, "None stays"


for _dtype in FLOATS:
    check(f"conversion/convert/{_dtype}", "1", wide=True, dtype=_dtype)(convert_round_trip)


@check("conversion/rows-unknown", "1", wide=True)
def rows_unknown(backend: Backend) -> None:
    plain = duplicates("unknown")
    s = to_backend(backend, Slices(plain.values, plain.indices, (None, 3)))
    same(islices.coalesce(s).values, oracle.coalesce(plain).values, "coalesce without known rows")
    same(islices.norm(s), oracle.norm(plain), "norm without known rows")
    joined = islices.add(s, to_backend(backend, plain))
    assert joined.dense_shape == plain.dense_shape, "an unknown number of rows joins a known one"


@check("conversion/invalid-native", "2", wide=True, full=True)
def invalid_native(backend: Backend) -> None:
    """Check that coalesce raises the expected error for each sparse object that `invalid_gradients` builds."""
    if not backend.native_name:
        raise UnsupportedError(f"{backend.name} has no sparse type")
    for label, (make, expected) in own_calls_of(backend).invalid_gradients().items():
        got: Exception | None = None
        try:
            islices.coalesce(make())
        except Exception as error:
            got = error
        assert type(got).__name__ == expected, f"{label}: expected {expected}, got {got!r}"


# ---------------------------------------------------------------------- a real text
@functools.lru_cache(maxsize=1)
def real_text() -> tuple[Array, int, Array]:
    ids, vocabulary = corpus.batch(24, 32)
    return ids, vocabulary, corpus.upstream(ids, 8)


def captured(backend: Backend, *, stage: str) -> None:
    """Check the gradient of an embedding for a real text. `stage` selects what is checked, for example the result
    of coalesce. The module of `own_calls_of` computes the gradient; if it has no `embedding_gradient`, islices does."""
    ids, vocabulary, up = real_text()
    own = own_calls_of(backend)
    if hasattr(own, "embedding_gradient"):
        gradient = own.embedding_gradient(to_numpy(ids), to_numpy(up), vocabulary, corpus.PADDING)
    else:  # for example NumPy, which has neither layers nor autodiff
        gradient = islices.embedding_grad(to_numpy(up), to_numpy(ids), vocabulary)
    expected = oracle.coalesce(oracle.embedding_grad(up, ids, vocabulary, padding_idx=corpus.PADDING))
    s = islices.drop_padding(islices.coalesce(islices.from_native(gradient)), corpus.PADDING)
    assert s.dense_shape == (vocabulary, 8), f"dense_shape: got {s.dense_shape}"
    if stage == "coalesce":
        same(s.values, expected.values, "the coalesced gradient")
        assert read(s.indices).data == expected.indices.data, "its rows"
    elif stage == "to_dense":
        same(islices.to_dense(s), oracle.to_dense(expected), "the dense gradient")
    elif stage == "native":
        out, _ = islices.clip_by_global_norm([gradient], 1e9)
        assert type(out[0]) is type(gradient), "type in, type out"
    else:
        (clipped,), norm = islices.clip_by_global_norm([s], 1.0)
        (want,), want_norm = oracle.clip_by_global_norm([expected], 1.0)
        same(norm, want_norm, "the global norm")
        same(islices.to_dense(clipped), oracle.to_dense(want), "the clipped dense gradient")


for _stage in ("coalesce", "to_dense", "clip", "native"):
    check(f"captured/real-text/{_stage}", "12", stage=_stage)(captured)


# ---------------------------------------------------------------------- memory
TABLE_ROWS, WIDTH, STORED = 1_000_000_000, 64, 100_000
#: The allowed growth of peak memory, as a multiple of the size of the stored values. Norms need float64 temporaries,
#: and frameworks copy arrays and keep memory pools.
MEMORY_FACTOR = 16


def memory(backend: Backend, *, operation: str) -> None:
    """Check that an operation on 100,000 slices of a table of 1e9 x 64 needs at most `MEMORY_FACTOR` times the memory
    of the values. The dense table would need 256 GB."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, TABLE_ROWS, STORED).astype(np.int32)
    ids[::3] = ids[0]
    values = rng.standard_normal((STORED, WIDTH), np.float32)
    s = islices.IndexedSlices(backend.asarray(values), backend.asarray(ids), (TABLE_ROWS, WIDTH))
    if operation == "coalesce":
        out, grown = peak_growth(lambda: islices.coalesce(s))
        assert read(out.indices).data == np.unique(ids).tolist(), "the distinct rows"
    elif operation == "norm":
        out, grown = peak_growth(lambda: float(backend.to_numpy(islices.norm(s)).reshape(())))
        assert out > 0, "a norm"
    else:
        (clipped, _), grown = peak_growth(lambda: islices.clip_by_global_norm([s], 1.0))
        assert abs(float(backend.to_numpy(islices.norm(clipped[0])).reshape(())) - 1) < 1e-5, "the clipped norm"
    assert grown <= MEMORY_FACTOR * values.nbytes, f"peak memory grew by {grown / values.nbytes:.1f} times the slices"


@check("embedding/memory-1e7-rows", "12")
def step_memory(backend: Backend) -> None:
    """Check that the gradient of a lookup in a table of 1e7 x 4 (160 MB) allocates no table-sized array."""
    own = own_calls_of(backend)
    weights = backend.asarray(np.zeros((10_000_000, 4), np.float32))
    ids = backend.asarray(np.random.default_rng(0).integers(0, 10_000_000, 1000).astype(np.int32))
    upstream = backend.asarray(np.ones((1000, 4), np.float32))

    def step(ids: Any, weights: Any) -> Any:
        return gradients(lambda t: own.weighted_sum(islices.lookup(t, ids), upstream), islices.Table(weights))[0]

    # the first call also loads code, so it is not measured
    step(backend.asarray(np.zeros(1000, np.int32)), backend.asarray(np.zeros((1, 4), np.float32)))
    gradient, grown = peak_growth(lambda: step(ids, weights))
    assert read(gradient.values).shape == (1000, 4), "the slices"
    assert grown <= 40_000_000, f"peak memory grew by {grown / 1e6:.0f} MB, a quarter of the table or more"


for _operation in ("coalesce", "norm", "clip"):
    check(f"coalesce/memory-1e9-rows/{_operation}", "5", operation=_operation)(memory)


# ---------------------------------------------------------------------- tables that change in place
@check("updates/in-place", "15")
def in_place(backend: Backend) -> None:
    """Check the result of scatter. If `Backend.in_place` returns True for the table, the table must change too."""
    table = to_backend(backend, Array("float32", (3, 1), [1.0, 2.0, 3.0]))
    update = to_backend(backend, Slices(Array("float32", (1, 1), [7.0]), Array("int32", (1,), [1]), (3, 1)))
    changed = backend.in_place(table)
    result = islices.scatter(table, update, op="update")
    same(result, Array("float32", (3, 1), [1.0, 7.0, 3.0]), "the result")
    if changed:
        same(table, Array("float32", (3, 1), [1.0, 7.0, 3.0]), "in_place is True, but the table")


# ---------------------------------------------------------------------- few or far rows
@check("gradients/by_norm-clipped/0-d", "10")
def clipped_number(backend: Backend) -> None:
    """Check that the gradient of clip_by_norm is 0 for a 0-d array whose number is above the limit."""
    own = own_calls_of(backend)
    x, one = (to_backend(backend, Array("float32", (), [v])) for v in (3.0, 1.0))
    for axes in (None, ()):
        with backend.scope():  # MXNet's operations accept 0-d arrays only here
            (got,) = gradients(lambda v, axes=axes: own.weighted_sum(islices.clip_by_norm(v, 2.0, axes=axes), one), x)
        same(got, Array("float32", (), [0.0]), f"axes={axes}")


@check("padding/drop_padding/above-2^32", "12", wide=True)
def far_padding(backend: Backend) -> None:
    """Check that drop_padding compares all 64 bits of an index: the padding index 2^32 + 5 does not remove row 5."""
    values, ids = Array("float32", (2, 1), [1.0, 2.0]), Array("int64", (2,), [5, 2**32 + 5])
    left = islices.drop_padding(to_backend(backend, Slices(values, ids, (2**33, 1))), 2**32 + 5)
    kept = islices.coalesce(left)
    same(kept.values, Array("float32", (1, 1), [1.0]), "the values")
    same(kept.indices, Array("int64", (1,), [5]), "the indices")


# ---------------------------------------------------------------------- ids that compiled code cannot refuse
@check("embedding/absent/beyond-the-table", "19", traced=True)
def ids_beyond_the_table(backend: Backend) -> None:
    """Check that a compiled lookup reads zeros for an id outside the table, and that a bag leaves out such an id.
    Compiled code may instead raise the IndexError of eager code."""
    rows = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    ids = np.array([[0, 7, 2], [-1, 4, 9]], np.int32)
    expected = ""
    try:
        islices.lookup(backend.asarray(rows), backend.asarray(ids))
    except IndexError as error:
        expected = str(error)
    assert expected, "eager code: accepted is an IndexError"

    def looked_up(table: Any, ids: Any) -> Any:
        return islices.lookup(table, ids), islices.lookup(table, ids, combiner="mean")

    nothing = [0.0, 0.0]
    for kernels in (True, False):
        refused, each, means = expected, None, None
        try:
            with islices.config.use_kernels(kernels):
                each, means = backend.trace(looked_up)(backend.asarray(rows), backend.asarray(ids))
        except IndexError as error:
            refused = str(error)
        assert refused == expected
        if each is None:
            continue
        same(each, Array("float32", (2, 3, 2), [*rows[0], *nothing, *rows[2], *nothing, *nothing, *nothing]), "lookup")
        same(means, Array("float32", (2, 2), [3.0, 4.0, *nothing]), "the means")


@check("padding/no-rows", "13")
def no_rows(backend: Backend) -> None:
    """Check that an empty list of row numbers makes drop_rows remove nothing, and keep_rows remove everything."""
    plain = Slices(Array("float32", (2, 1), [1.0, 2.0]), Array("int32", (2,), [0, 3]), (4, 1))
    s = to_backend(backend, plain)
    same(islices.to_dense(islices.drop_rows(s, [])), oracle.to_dense(plain), "drop_rows")
    same(islices.to_dense(islices.keep_rows(s, [])), Array("float32", (4, 1), [0.0] * 4), "keep_rows")


@check("padding/left-out-slots-are-zeros", "2", traced=True)
def left_out_slots(backend: Backend) -> None:
    """Check that compiled drop_rows either removes a dropped slot, or gives the slot the sentinel index and zeros."""
    ids = np.array([1, 3, 1], np.int32)
    values = np.array([[3.0], [4.0], [5.0]], np.float32)

    def dropped(values: Any, ids: Any) -> Any:
        kept = islices.drop_rows(islices.IndexedSlices(values, ids, (4, 1)), [3])
        return kept.values, kept.indices

    found, places = (backend.to_numpy(x) for x in backend.trace(dropped)(backend.asarray(values), backend.asarray(ids)))
    held = found.reshape(-1)[places != 4].tolist(), found.reshape(-1)[places == 4].tolist()
    assert held in (([3.0, 5.0], []), ([3.0, 5.0], [0.0])), f"values {found.tolist()} at {places.tolist()}"


@check("norms/empty-slots", "2", traced=True)
def empty_slots(backend: Backend) -> None:
    """Check that compiled norms and clips of coalesced slices ignore the values of an empty slot."""
    given = backend.asarray(np.array([[3.0], [4.0], [9.0]], np.float32)), backend.asarray(np.array([0, 1, 4], np.int32))

    def norms(values: Any, ids: Any) -> Any:
        s = islices.IndexedSlices(values, ids, (4, 1), coalesced=True, padded=True)
        raw = islices.clip_by_global_norm([s], 1.0, semantics="tensorflow")[1]
        return islices.norm(s), raw, islices.norm(islices.clip_by_norm(s, 2.5, axes=[0]))

    found = [float(backend.to_numpy(x)) for x in backend.trace(norms)(*given)]
    assert found == [5, 5, 2.5], f"the norms are {found}"


@check("norms/long-rows", "7", full=True)
def long_rows(backend: Backend) -> None:
    """Check the norms of rows that do not fit into one of the pieces into which adapters divide arrays."""
    x = backend.asarray(np.array([[1.0], [2.0]], np.float32).repeat(160_000, axis=1))
    found = backend.to_numpy(islices.row_norms(x)).tolist()
    assert found == [400.0, 800.0], f"the norms are {found}"


def raised(call: Callable[[], Any]) -> str:
    """Return the type and the message of the error that a call raises. If the call raises no error, return a text that
    contains its result."""
    try:
        return f"no error, but {call()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@check("errors/traced-rows", "13", traced=True)
def traced_rows(backend: Backend) -> None:
    """Check that compiled keep_rows raises TypeError for float row numbers, and ValueError for a mask that is shorter
    than the table."""
    table = backend.asarray(np.ones((3, 1), np.float32))
    keep = backend.trace(lambda rows: islices.keep_rows(table, rows))
    for rows, expected in ((np.ones(3, np.float32), "TypeError"), (np.ones(2, np.bool_), "ValueError")):
        found = raised(functools.partial(keep, backend.asarray(rows)))
        assert found.startswith(expected), found
        assert "rows: got" in found, found


@check("errors/padding-becomes-a-row", "2")
def padding_becomes_a_row(backend: Backend) -> None:
    """Check that increasing the number of rows of padded slices raises ValueError. The old number of rows is the index
    of empty slots, and would become the index of a row."""
    plain = Slices(Array("float32", (2, 1), [1.0, 2.0]), Array("int32", (2,), [0, 3]), (3, 1), padded=True)
    s = to_backend(backend, plain)
    for change in (s.replace, functools.partial(islices.from_native, s)):
        found = raised(functools.partial(change, dense_shape=(5, 1)))
        assert found.startswith("ValueError: dense_shape: got 5 rows"), found


# ---------------------------------------------------------------------- clips by other frameworks' formulas
@check("clipping/presets-below-the-limit", "11", host=True)
def presets_below_the_limit(backend: Backend) -> None:
    """Check that clip_by_global_norm with each value of `semantics` leaves a gradient unchanged if its norm is below
    the limit. The norm and the limit are powers of two."""
    plain = Slices(Array("float32", (1, 2), [1.0, 0.0]), Array("int32", (1,), [2]), (4, 2))
    names: Any = BY_GLOBAL_NORM
    for semantics in names:
        (clipped,), norm = islices.clip_by_global_norm([to_backend(backend, plain)], 4.0, semantics=semantics)
        same(clipped, plain, semantics)
        same(norm, Array("float32", (), [1.0]), f"the norm of {semantics}")
