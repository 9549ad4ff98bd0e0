"""Define calls that must raise an error on every rank. If the ranks differ, the error must name the difference. If
one rank fails, the errors of the other ranks must name this rank. After each call, the group must be usable by the next
call."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from islices.backend import Backend
from islices.conformance.data import Array, Slices
from islices.conformance.execute import to_backend
from islices.distributed import Group, ShardedTable, all_reduce, get_group, save_sharded
from islices.distributed.agree import agree

#: (rank, size) -> (name of the expected error's class, words of its message)
Expected = Callable[[int, int], tuple[str, tuple[str, ...]]]


class Mistake(NamedTuple):
    """A call that all ranks make, and that must not return a result on any rank.

    Attributes
    ----------
    id : str
    call : callable (backend, rank, size) -> callable of the group
    expected : callable (rank, size) -> (name of the error's class, words of its message)
    default : bool
        True if the call gets None as its group.
    wide, full, clause
        As in `Collective`.
    """

    id: str
    call: Callable[[Backend, int, int], Callable[[Any], Any]]
    expected: Expected
    default: bool = False
    wide: bool = False
    full: bool = False
    clause: str = "25"


MISTAKES: list[Mistake] = []


def slices(B: Backend, width: int = 2, dtype: str = "float32", index_type: str = "int32", rows: int | None = 9) -> Any:
    values = Array(dtype, (2, width), [0.5] * (2 * width) if "float" in dtype else [1] * (2 * width))
    return to_backend(B, Slices(values, Array(index_type, (2,), [4, 1]), (rows, width)))


def dense(B: Backend, *shape: int) -> Any:
    return to_backend(B, Array("float32", shape, [0.5] * math.prod(shape)))


def given(B: Backend, x: Any = None, **options: Any) -> Callable[..., Any]:
    """Return a call of all_reduce with these options, on `x` or, if `x` is None, on slices."""
    return partial(all_reduce, slices(B) if x is None else x, **options)


def reducing(x: Any) -> Callable[[Group], Any]:
    call = x if isinstance(x, partial) else partial(all_reduce, x)
    return lambda group: call(group=group)


def differing(id: str, make: Callable[[Backend, bool], Any], *words: str, **fields: Any) -> None:
    """Add a case in which an argument of the last rank differs from the same argument of all other ranks. All ranks
    must raise the same ValueError. `make(B, differs)` returns a rank's gradients, or a call from `given`."""

    def call(B: Backend, rank: int, size: int) -> Callable[[Group], Any]:
        return reducing(make(B, rank == size - 1))

    def expected(rank: int, size: int) -> tuple[str, tuple[str, ...]]:
        return "ValueError", (*words, "all_reduce", f"rank {size - 1}", "rank 0" if size == 2 else "ranks 0 ")

    MISTAKES.append(Mistake(f"ranks/differ/{id}", call, expected, **fields))


def first_raises(kind: str, *words: str) -> Expected:
    """Return an `Expected` function. Rank 0 must raise an error of the class `kind`. All other ranks must raise a
    RankError that names rank 0 and this class. All messages must contain `words`."""
    of_others = ("RankError", (*words, "rank 0", kind, "nothing was changed"))
    return lambda rank, size: of_others if rank else (kind, words)


def failing(id: str, make: Callable[[Backend], Any], kind: str, *words: str) -> None:
    """Add a case in which rank 0 passes a bad argument. All ranks must raise an error."""

    def call(B: Backend, rank: int, size: int) -> Callable[[Group], Any]:
        return reducing(make(B) if rank == 0 else slices(B))

    MISTAKES.append(Mistake(f"ranks/fails/{id}", call, first_raises(kind, *words)))


def endless() -> list[Any]:
    x: list[Any] = []
    x.append(x)
    return x


differing("shapes", lambda B, last: {"a": dense(B, 2), "w": slices(B, 3 if last else 2)}, "x.w", "(9, 3)", "(9, 2)")
differing("rows", lambda B, last: slices(B, rows=10 if last else 9), "(10, 2)", "(9, 2)")
differing("rows unknown", lambda B, last: slices(B, rows=None if last else 9), "(None, 2)", "(9, 2)")
differing("dtypes", lambda B, last: [slices(B, dtype="float16" if last else "float32")], "x.0", "float16", "float32")
differing(
    "index dtypes", lambda B, last: slices(B, index_type="int64" if last else "int32"), "int64", "int32", wide=True
)
differing("dense shapes", lambda B, last: dense(B, 2, 3 if last else 2), "(2, 3)", "(2, 2)")
differing("sparse and dense", lambda B, last: dense(B, 9, 2) if last else slices(B), "sparse", "dense")
differing("structure", lambda B, last: {"a": slices(B), "c" if last else "b": None}, "x.b", "x.c", "nothing")
differing("length", lambda B, last: [slices(B)] * (3 if last else 2), "x.2", "nothing")
differing("op", lambda B, last: given(B, op="mean" if last else "sum"), "op", "mean", "sum")
differing("strategy", lambda B, last: given(B, strategy="ranges" if last else "auto"), "strategy", "ranges", "auto")
failing("another framework's object", lambda B: {"w": object()}, "TypeError", "x.w", "object")
failing("a number", lambda B: 3.5, "TypeError", "float")
failing("op", lambda B: given(B, op="max"), "ValueError", "op", "'max'", "mean")
failing("strategy", lambda B: given(B, strategy=["ring"]), "ValueError", "strategy", "ring", "gather")
failing("mean of integers", lambda B: given(B, slices(B, dtype="int32"), op="mean"), "TypeError", "int32", "mean")
failing("within itself", lambda B: endless(), "ValueError", "within itself")
failing("two leaves of a name", lambda B: {"a.b": None, "a": {"b": None}}, "ValueError", "two leaves")


def another_call(B: Backend, rank: int, size: int) -> Callable[[Group], Any]:
    return reducing(slices(B)) if rank else lambda group: agree(group, "ShardedTable.lookup", {"dim": 4})


MISTAKES += [
    Mistake(
        "ranks/differ/call", another_call,
        lambda rank, size: ("ValueError", ("ShardedTable.lookup on rank 0", "all_reduce on rank")),
    ),
    Mistake(
        "ranks/fails/every rank its own way", lambda B, rank, size: reducing(rank + 0.5),
        lambda rank, size: ("TypeError", ("float",)),
    ),
]  # fmt: skip


# ---------------------------------------------------------------------- ranks without an array to find the engine
def refused(
    id: str, call: Callable[[Backend, bool, Group | None], Any], kind: str, *words: str, clause: str = "25"
) -> None:
    """Add a case in which rank 0 passes a bad argument. The bad argument contains no array from which islices could
    choose the engine."""

    def make(B: Backend, rank: int, size: int) -> Callable[[Group | None], Any]:
        return lambda group: call(B, rank == 0, group)

    expected = first_raises(kind, *words)
    MISTAKES.append(Mistake(f"ranks/refused/{id}", make, expected, default=True, clause=clause))


def reduced(wrong: Callable[[Backend], Any]) -> Callable[[Backend, bool, Group | None], Any]:
    return lambda B, here, group: all_reduce(wrong(B) if here else {"a": slices(B)}, group=group)


def weights(B: Backend, here: bool, wrong: Any) -> Any:
    """Return two rows of weights, or `wrong` if this rank makes the mistake (`here`)."""
    return wrong if here else dense(B, 2, 1)


def two_rows_a_rank(wrong: Any) -> Callable[[Backend, bool, Group | None], Any]:
    return lambda B, here, group: ShardedTable(weights(B, here, wrong), 2 * get_group(group, like=B).size, group)


refused("a text", reduced(lambda B: "weights"), "TypeError", "x: got str 'weights'")
refused("a text in a tree", reduced(lambda B: {"a": "weights"}), "TypeError", "x.a: got str 'weights'")
refused("a text beside None", reduced(lambda B: [None, "weights"]), "TypeError", "x.1: got str 'weights'")
refused("table of None", two_rows_a_rank(None), "TypeError", "weights: got None", clause="26")
refused("from_full", lambda B, here, group: ShardedTable.from_full(weights(B, here, "w"), group),
        "TypeError", "weights: got str 'w'", clause="26")  # fmt: skip
refused("create", lambda B, here, group: ShardedTable.create(
    5, (1,), lambda start, stop: np.ones((stop - start, 1), np.float32), group, like=None if here else B.name),
    "TypeError", "no backend knows None", clause="26")  # fmt: skip


def saved(B: Backend, here: bool, group: Group | None) -> None:
    table = ShardedTable.from_full(dense(B, 5, 1), group)
    with tempfile.TemporaryDirectory() as folder:  # nothing is written into the folder
        save_sharded(folder, None if here else table)  # type: ignore[arg-type]


refused("save_sharded", saved, "TypeError", "table: got None; accepted is a ShardedTable", clause="26")
