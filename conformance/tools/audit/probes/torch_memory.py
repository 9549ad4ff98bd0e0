"""What torch makes of indices that contradict the shape, and what its sparse kernels write where they must not.

Memory is watched by giving torch a part of a larger buffer: what changes outside of it was not torch's to write. What
may end the process runs in one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from islices.conformance.own_calls.torch import invalid_gradients
from islices.conformance.tools.audit.probe import Ask, CorruptionError, probe
from islices.conformance.tools.audit.probes.torch import dense, refused, sparse

CHECKED = "islices.from_native(x), or any function of islices: a native gradient is checked first"
UPDATE = "islices.scatter_add(table, x)"


# ---------------------------------------------------------------------- what is accepted
@probe(
    "torch", "torch.sparse_coo_tensor, indices outside of the shape", "2", instead=CHECKED,
    issue="pytorch/pytorch#124168", claim="it accepts indices that are negative, or not below rows",
)  # fmt: skip
def accepted() -> Iterator[Ask]:
    for label in ("index out of range", "negative index"):
        yield Ask(label, partial(refused, invalid_gradients()[label][0]), "refused")


@probe(
    "torch", "torch.sparse_coo_tensor(is_coalesced=True)", "2", instead=CHECKED,
    claim="it believes that slices are coalesced which are unsorted, or have duplicates",
)  # fmt: skip
def claimed() -> Iterator[Ask]:
    for label in ("falsely coalesced, unsorted", "falsely coalesced, duplicates"):
        yield Ask(label, partial(refused, invalid_gradients()[label][0]), "refused")


@probe(
    "torch", "torch.norm, slices falsely claimed to be coalesced", "7", instead=CHECKED,
    claim="it does not sum duplicates that are claimed not to be there: 1.41 for 2",
)  # fmt: skip
def claimed_norm() -> Iterator[Ask]:
    x = sparse([1, 1], [[1.0], [1.0]], is_coalesced=True)
    yield Ask("[1] twice in one row", lambda: float(x.norm()), 2.0)


@probe(
    "torch", "torch.sparse_coo_tensor, indices of other types", "2", instead=CHECKED,
    claim="it takes indices of floats, which it cuts off, and of bools",
)  # fmt: skip
def other_types() -> Iterator[Ask]:
    for indices in ([1.7, 2.0], [True, False]):
        yield Ask(str(indices), partial(refused, sparse, indices, [[1.0], [1.0]]), "refused")


@probe(
    "torch", "torch.sparse_coo_tensor(check_invariants=True)", "2", trap="", instead=CHECKED,
    claim="it refuses indices out of range, negative ones, and false claims",
)  # fmt: skip
def checked() -> Iterator[Ask]:
    rows = [[1.0], [1.0]]
    for indices, claim in (([0, 4], None), ([0, -1], None), ([2, 1], True), ([1, 1], True)):
        call = partial(refused, sparse, indices, rows, check_invariants=True, is_coalesced=claim)
        yield Ask(f"{indices}, is_coalesced={claim}", call, "refused")


@probe(
    "torch", "torch.sparse_coo_tensor, int32 indices", "1", instead="islices.IndexedSlices, which keeps them",
    claim="indices become int64: twice the memory",
)  # fmt: skip
def widened() -> Iterator[Ask]:
    indices = torch.tensor([1, 2], dtype=torch.int32)
    yield Ask("int32", lambda: str(sparse(indices, [[1.0], [1.0]])._indices().dtype), "torch.int32")


@probe(
    "torch", "dense.add_(sparse), indices outside of the shape", "15", instead=UPDATE,
    claim="uncoalesced slices whose index is outside of the table are dropped without a word",
)  # fmt: skip
def dropped() -> Iterator[Ask]:
    for index in (5, -2):
        x = sparse([1, index], [[1.0], [2.0]])
        yield Ask(f"rows 1 and {index} of 4", partial(refused, torch.zeros(4, 1).add_, x), "refused")


# ---------------------------------------------------------------------- what is written elsewhere
def within(buffer: torch.Tensor, rows: slice, write: Any) -> Any:
    """What write(buffer[rows]) makes of those rows; CorruptionError where anything beside them changed."""
    before = buffer.clone()
    write(buffer[rows])
    changed = (buffer != before).reshape(len(buffer), -1).any(1)
    changed[rows] = False
    if changed.any():
        at = [k - rows.start for k in changed.nonzero()[:, 0].tolist()]
        raise CorruptionError(f"memory beside the table changed: where its rows {at} would be")
    return dense(buffer[rows])


@probe(
    "torch", "dense.add_(coalesced sparse), indices outside of the shape", "15", trap="corrupts", instead=UPDATE,
    claim="slices known to be coalesced, or a single one, are written to memory before and behind the table",
)  # fmt: skip
def written_outside() -> Iterator[Ask]:
    for indices in ([5], [-2], [1, 5]):
        x = sparse(indices, [[1.0, 1.0]] * len(indices), is_coalesced=True)
        call = partial(within, torch.zeros(12, 2), slice(4, 8), lambda table, x=x: table.add_(x))
        yield Ask(f"rows {indices} of 4", partial(refused, call), "refused")


@probe(
    "torch", "torch.optim.SGD, indices outside of the shape", "16", trap="corrupts",
    instead="islices.optim.sgd(lr).step(table, grad, state)",
    claim="a step writes to memory before and behind the table",
)  # fmt: skip
def stepped_outside() -> Iterator[Ask]:
    def step(table: torch.Tensor, x: torch.Tensor) -> None:
        parameter = torch.nn.Parameter(table)
        parameter.grad = x
        torch.optim.SGD([parameter], lr=1.0).step()

    for index in (5, -2):
        call = partial(within, torch.zeros(12, 2), slice(4, 8), partial(step, x=sparse([index], [[1.0, 1.0]])))
        yield Ask(f"row {index} of 4", partial(refused, call), "refused")


@probe(
    "torch", "dense.add_(coalesced sparse), a table of numbers inside a larger tensor", "15", trap="corrupts",
    instead=UPDATE,
    claim="valid slices of a one-dimensional table are written to another place: the offset of the table in its "
    "storage is counted twice",
)  # fmt: skip
def offset_twice() -> Iterator[Ask]:
    x = sparse([1, 2], [1.0, 2.0], check_invariants=True).coalesce()
    call = partial(within, torch.zeros(12), slice(4, 8), lambda table: table.add_(x))
    yield Ask("rows 1 and 2 of 4, tables of shape (4,)", call, [0.0, 1.0, 2.0, 0.0])
    uncoalesced = sparse([1, 2], [1.0, 2.0])
    call = partial(within, torch.zeros(12), slice(4, 8), lambda table: table.add_(uncoalesced))
    yield Ask("the same, uncoalesced", call, [0.0, 1.0, 2.0, 0.0])


@probe(
    "torch", "torch.Tensor.coalesce, a negative index", "2", trap="corrupts", isolated=True, instead=CHECKED,
    issue="pytorch/pytorch#124168", claim="it writes before its own memory: the process may end",
)  # fmt: skip
def coalesced_negative() -> Iterator[Ask]:
    def call() -> str:
        answers = [refused(sparse([1, -1], [[1.0, 1.0]] * 2).coalesce) for _ in range(100)]
        return answers[0]

    yield Ask("rows 1 and -1 of 4, a hundred times", call, "refused")


@probe(
    "torch", "torch.Tensor.to_dense, a huge index", "2", trap="corrupts", isolated=True, instead=CHECKED,
    issue="pytorch/pytorch#182662", claim="it writes where the index points: the process ends",
)  # fmt: skip
def dense_huge() -> Iterator[Ask]:
    for index in (-(2**40), 2**40):
        yield Ask(f"row {index} of 4", partial(refused, sparse([index], [[1.0, 1.0]]).to_dense), "refused")
