"""Test calls whose arguments share memory. If a call would change an element that another argument also contains, it
raises before it writes. The exception is `scatter` with slices whose values are the table itself.

Calls accept adjacent or interleaved arrays in one buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices, optim
from islices.core.sharing import check_apart, share_memory

BACKENDS = islices.list_backends()
ROWS, WIDTH = 6, 2
START = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
HOST = islices.get_backend("numpy")


def table_of(name: str) -> Any:
    """Return START as a table of the framework: a tf.Variable for TensorFlow, otherwise an array."""
    x = islices.convert(START.copy(), name)
    if name == "tensorflow":
        import tensorflow as tf

        return tf.Variable(x)
    return x


def gradient_of(name: str) -> IndexedSlices:
    s = IndexedSlices(np.ones((3, WIDTH), np.float32), np.array([1, 4, 1], np.int32), (ROWS, WIDTH))
    return islices.convert(s, name)


def bytes_of(x: Any) -> bytes:
    B = islices.get_backend(x)
    return B.to_numpy(x).tobytes()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", ["tables", "a table as a state", "a state", "a gradient"])
def test_one_array_in_two_places(name: str, kind: str) -> None:
    optimizer = optim.adam(0.1)
    tables = {"enc": table_of(name), "dec": table_of(name)}
    grads: dict[str, Any] = {key: gradient_of(name) for key in tables}
    states = {key: optimizer.init(x) for key, x in tables.items()}
    if kind == "tables":
        tables["dec"] = tables["enc"]
    elif kind == "a table as a state":
        states["enc"] = {**states["enc"], "m": tables["dec"]}
    elif kind == "a state":
        states["enc"] = {**states["enc"], "v": states["enc"]["m"]}
    elif name == "tensorflow":
        pytest.skip("a variable is no gradient")
    else:
        grads["dec"] = tables["enc"]
    before = [bytes_of(x) for x in tables.values()]
    held = [bytes_of(x) for state in states.values() for x in state.values()]
    with pytest.raises(ValueError, match=r"got memory of leaf [01]: (table|state)"):
        optimizer.step(tables, grads, states, donate=True)
    assert [bytes_of(x) for x in tables.values()] == before
    assert [bytes_of(x) for state in states.values() for x in state.values()] == held


def test_inside_a_tf_function_too() -> None:
    tf = pytest.importorskip("tensorflow")
    optimizer, table, grad = optim.sgd(0.5), table_of("tensorflow"), gradient_of("tensorflow")
    states = [optimizer.init(table), optimizer.init(table)]

    @tf.function
    def step() -> None:
        optimizer.step([table, table], [grad, grad], states)

    with pytest.raises(ValueError, match="leaf 1: table: got memory of leaf 0: table"):
        step()
    assert bytes_of(table) == START.tobytes()


def buffers() -> list[tuple[str, Callable[[np.ndarray], Any]]]:
    found: list[tuple[str, Callable[[np.ndarray], Any]]] = [("numpy", lambda x: x)]
    if "torch" in BACKENDS:
        import torch

        found.append(("torch", torch.from_numpy))
    return found


@pytest.mark.parametrize(("name", "of"), buffers())
def test_parts_of_one_buffer(name: str, of: Callable[[np.ndarray], Any]) -> None:
    """Check that tables in one buffer may be adjacent parts or different columns, but that parts which overlap
    raise."""
    optimizer, n = optim.sgd(0.5), ROWS * WIDTH
    flat = of(np.zeros(3 * n, np.float32))
    wide = of(np.zeros((ROWS, 2 * WIDTH), np.float32))
    grads = [gradient_of(name)] * 3
    side_by_side = [flat[k * n : (k + 1) * n].reshape(ROWS, WIDTH) for k in range(3)]
    columns = [wide[:, :WIDTH], wide[:, WIDTH:], of(np.zeros((ROWS, WIDTH), np.float32))]
    moved = np.zeros((ROWS, WIDTH), np.float32)
    moved[[1, 4]] = [[-1.0], [-0.5]]
    for tables, steps in ((side_by_side, 1), (side_by_side[::-1], 2), (columns, 1)):
        optimizer.step(tables, grads, [optimizer.init(x) for x in tables])
        for x in tables:
            np.testing.assert_array_equal(np.asarray(x), steps * moved)
    before = bytes_of(flat)
    overlapping = [flat[:n].reshape(ROWS, WIDTH), flat[n - 1 : 2 * n - 1].reshape(ROWS, WIDTH), side_by_side[2]]
    with pytest.raises(ValueError, match="leaf 1: table: got memory of leaf 0: table"):
        optimizer.step(overlapping, grads, [optimizer.init(x) for x in overlapping])
    with pytest.raises(ValueError, match="leaf 1: grad: got memory of leaf 0: table"):
        optimizer.step(side_by_side[:2], [grads[0], overlapping[1]], [optimizer.init(x) for x in side_by_side[:2]])
    views = {**optim.adam(0.1).init(side_by_side[0]), "m": side_by_side[1], "v": overlapping[1]}
    with pytest.raises(ValueError, match=r"state\['v'\]: got memory of (table|state\['m'\])"):
        optim.adam(0.1).step(side_by_side[0], grads[0], views)
    assert bytes_of(flat) == before


def test_parameters_of_torch_that_share_memory() -> None:
    torch = pytest.importorskip("torch")
    from islices.backends.torch.optim import SGD

    first = torch.nn.Parameter(torch.ones(ROWS, WIDTH))
    second = torch.nn.Parameter(first.detach())  # tied by memory; torch raises if one Parameter is in two groups
    for p in (first, second):
        p.grad = torch.ones(ROWS, WIDTH)
    with pytest.raises(ValueError, match=r"param_groups\[1\].*got memory of param_groups\[0\]"):
        SGD([{"params": [first]}, {"params": [second]}], lr=0.5).step()
    assert (first == 1).all()
    with pytest.raises(ValueError, match="more than one parameter group"):
        SGD([{"params": [first]}, {"params": [first]}], lr=0.5)
    SGD([first], lr=0.5).step()
    assert (first == 0.5).all()


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "tensorflow"])
def test_scatters_of_a_tables_own_rows(name: str) -> None:
    """Check that a scatter whose slices have the changed table as values uses the numbers from before the call."""
    scatter = islices.scatter
    ids = islices.convert(np.array([1, 0, 2, 1, 5, 4], np.int32), name)
    table = table_of(name)
    changed = scatter(table, IndexedSlices(table, ids, (ROWS, WIDTH)), donate=True)
    expected = scatter(START.copy(), IndexedSlices(START.copy(), np.array([1, 0, 2, 1, 5, 4]), (ROWS, WIDTH)))
    assert bytes_of(changed) == expected.tobytes()


def test_random_views_of_one_buffer() -> None:
    """Compare the shared-memory check of islices with np.shares_memory."""
    rng = np.random.default_rng(0)
    buffer = np.zeros(64, np.float32)

    def view() -> np.ndarray:
        start, step, count = rng.integers(0, 40), rng.choice([-3, -2, -1, 1, 2, 3, 5]), rng.integers(0, 6)
        reach = start + step * max(0, count - 1)
        x = buffer[start : start + 1] if not 0 <= reach < 64 else buffer[[start]][:0]
        if 0 <= reach < 64 and count:
            x = np.lib.stride_tricks.as_strided(buffer[start:], (count,), (4 * step,))
        return x

    refused = 0
    for _ in range(500):
        views = [view() for _ in range(rng.integers(2, 6))]
        written = rng.random(len(views)) < 0.6
        shared = [
            (i, j)
            for i in range(len(views))
            for j in range(i)
            if (written[i] or written[j]) and np.shares_memory(views[i], views[j])
        ]
        for i, j in shared:
            assert share_memory(HOST, views[i], views[j])
        parts = [(HOST, x, bool(w), str(k)) for k, (x, w) in enumerate(zip(views, written, strict=True))]
        if shared:
            refused += 1
            with pytest.raises(ValueError, match="got memory of"):
                check_apart(parts)
        else:
            check_apart(parts)
    assert 75 < refused < 425
