"""A program like one that a user writes. tests/test_typing.py checks that mypy --strict and pyright accept each line.

Each of the last four functions has one mistake, with a comment that ignores the error. An unnecessary comment is an
error too (warn_unused_ignores).
"""

from __future__ import annotations

from typing import assert_type

import numpy as np

import islices
from islices import IndexedSlices, optim


def gradient() -> IndexedSlices:
    return IndexedSlices(np.ones((2, 3)), np.array([1, 1]), (4, 3))


def operations() -> None:
    assert_type(islices.coalesce(gradient()), IndexedSlices)
    assert_type(islices.scale({"table": gradient()}, 0.5), dict[str, IndexedSlices])
    assert_type(islices.concat([gradient(), gradient()]), IndexedSlices)
    assert_type(islices.drop_rows(gradient(), [1]), IndexedSlices)
    assert_type(islices.clip_by_norm(gradient(), 1.0, semantics="tensorflow", nonfinite="zero"), IndexedSlices)


def half(g: IndexedSlices) -> IndexedSlices:
    return g * 0.5


def arithmetic() -> None:
    assert_type(gradient() + gradient(), IndexedSlices)
    assert_type(-gradient() / 2, IndexedSlices)
    assert_type(gradient().astype("float32").replace(dense_shape=(9, 3)), IndexedSlices)
    assert_type(islices.top_k_rows([gradient()], 3), list[IndexedSlices])


def clipping() -> list[IndexedSlices]:
    clipped, norm = islices.clip_by_global_norm([gradient(), gradient()], 1.0, semantics="torch")
    print(float(norm))
    return clipped


def training(table: np.ndarray) -> np.ndarray:
    optimizer = optim.adam(1e-3, rows="touched", semantics="torch")
    assert_type(optimizer, optim.Optimizer)
    state: dict[str, np.ndarray] = optimizer.init(table)
    table, state = assert_type(optimizer.step(table, gradient(), state), tuple[np.ndarray, dict[str, np.ndarray]])
    return islices.scatter(table, gradient())


def files(path: str) -> None:
    islices.save(path, {"table": gradient()})
    loaded = islices.load(path, backend="numpy")
    found = islices.diff(loaded["table"], gradient())
    assert_type(found, islices.porting.Difference)
    print(found)


def over_ranks() -> None:
    islices.distributed.all_reduce(gradient(), "mean", islices.distributed.Alone(), strategy="gather")


def misspelt() -> None:
    islices.coalesse(gradient())  # type: ignore[attr-defined]


def no_such_property() -> None:
    print((gradient() + gradient()).nvalues)  # type: ignore[attr-defined]


def no_such_table() -> None:
    optimizer, table = optim.sgd(0.1), np.ones((4, 3))
    optimizer.step(table, gradient(), optimizer.init(table))[0].numpy()  # type: ignore[attr-defined]


def meant_otherwise() -> None:
    islices.clip_by_norm(gradient(), 1.0, semantics="pytorch")  # type: ignore[arg-type]
