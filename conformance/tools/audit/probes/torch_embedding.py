"""What torch's lookups, bags and autograd do with row-sparse gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding, embedding_bag

from islices.conformance import oracle, oracle_embedding
from islices.conformance.own_calls.torch import embedding_gradient
from islices.conformance.tools.audit.inputs import ROWS, plain
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.arithmetic import left_fold
from islices.conformance.tools.audit.probes.torch import dense, ones, refused, unruly

#: name -> ids of a lookup in a table of ROWS rows
IDS = {"unique": [2, 1], "duplicates": [1, 2, 1, 3], "one": [2], "none": []}
LOOKUP = "islices.lookup(table, ids) in islices.value_and_grad"
GRADIENT = "islices.embedding_grad(upstream, ids, num_rows)"


def table() -> Any:
    return torch.nn.Parameter(torch.arange(2.0 * ROWS).reshape(ROWS, 2) + 1)


def upstream(n: int) -> np.ndarray[Any, Any]:
    return np.arange(1, 2 * n + 1, dtype=np.float32).reshape(n, 2)


def looked_up(ids: Any, **options: Any) -> torch.Tensor:
    """The gradient of a lookup under upstream()."""
    weight = table()
    ids = torch.as_tensor(ids, dtype=torch.int64) if isinstance(ids, list) else ids
    embedding(ids, weight, **{"sparse": True, **options}).backward(torch.from_numpy(upstream(len(ids))))
    return weight.grad  # type: ignore[no-any-return]


def expected(ids: list[int], **options: Any) -> Any:
    given = plain(np.array(ids, np.int64))
    return oracle.to_dense(oracle.embedding_grad(plain(upstream(len(ids))), given, ROWS, **options))


# ---------------------------------------------------------------------- lookups
@probe(
    "torch", "torch.nn.functional.embedding(sparse=True)", "12", trap="", instead=LOOKUP,
    claim="the gradient has one slice for each id, in order",
)  # fmt: skip
def lookups() -> Iterator[Ask]:
    for name, ids in IDS.items():
        yield Ask(f"{name}: indices", lambda ids=ids: looked_up(ids)._indices()[0].numpy(), ids)
        yield Ask(f"{name}: values", lambda ids=ids: looked_up(ids)._values().numpy(), upstream(len(ids)))


@probe(
    "torch", "torch.nn.Embedding(sparse=True, padding_idx=p)", "12", trap="", instead="islices.Table(w, padding_idx=p)",
    claim="the gradient has no slice of padding_idx, a negative one counting from the end",
)  # fmt: skip
def padding() -> Iterator[Ask]:
    for name, ids in IDS.items():
        given = partial(embedding_gradient, np.array(ids, np.int32), upstream(len(ids)), ROWS)
        for p in (1, -3):
            call = partial(lambda given, p: dense(given(p)), given, p)
            yield Ask(f"{name}, padding_idx={p}", call, expected(ids, padding_idx=p))


@probe(
    "torch", "torch.nn.functional.embedding(sparse=True), int32 ids", "12", instead=LOOKUP,
    claim="the gradient's indices are int64 whatever the ids are",
)  # fmt: skip
def widened() -> Iterator[Ask]:
    ids = torch.tensor([1, 2], dtype=torch.int32)
    yield Ask("int32", lambda: str(looked_up(ids)._indices().dtype), "torch.int32")


@probe(
    "torch", "embedding(sparse=True), its indices", "12", instead=LOOKUP,
    claim="they are the caller's ids themselves: what is written there changes the gradient",
)  # fmt: skip
def shared_indices() -> Iterator[Ask]:
    def call() -> list[int]:
        ids = torch.tensor([1, 2])
        gradient = looked_up(ids)
        ids.fill_(3)  # the caller's next batch
        return gradient._indices()[0].tolist()

    yield Ask("ids [1, 2], afterwards overwritten by 3", call, [1, 2])


@probe(
    "torch", "embedding(sparse=True), its values", "12", instead=LOOKUP,
    claim="they are the incoming gradient itself: what is written there changes them",
)  # fmt: skip
def shared_values() -> Iterator[Ask]:
    def call() -> list[list[float]]:
        weight, arriving = table(), torch.ones(2, 2)
        embedding(torch.tensor([1, 2]), weight, sparse=True).backward(arriving)
        arriving.zero_()
        return weight.grad._values().tolist()  # type: ignore[no-any-return]

    yield Ask("ones, afterwards overwritten by 0", call, [[1.0, 1.0], [1.0, 1.0]])


@probe(
    "torch", "embedding(sparse=True, scale_grad_by_freq=True)", "12", trap="raises", issue="pytorch/pytorch#189720",
    instead="islices.embedding_grad(upstream, ids, num_rows, scale_by_freq=True)", claim="it refuses",
)  # fmt: skip
def frequency() -> Iterator[Ask]:
    for name, ids in IDS.items():
        call = partial(lambda ids: dense(looked_up(ids, scale_grad_by_freq=True)), ids)
        yield Ask(name, call, expected(ids, scale_by_freq=True))


@probe(
    "torch", "embedding(scale_grad_by_freq=True), dense", "12", trap="",
    claim="it divides by the number of occurrences",
    instead="islices.embedding_grad(upstream, ids, num_rows, scale_by_freq=True)",
)  # fmt: skip
def dense_frequency() -> Iterator[Ask]:
    for name, ids in IDS.items():
        call = partial(lambda ids: dense(looked_up(ids, sparse=False, scale_grad_by_freq=True)), ids)
        yield Ask(name, call, expected(ids, scale_by_freq=True))


@probe(
    "torch", "torch.nn.functional.embedding, ids outside of the table", "2", trap="", instead=LOOKUP,
    claim="on the CPU it refuses them, negative ones included",
)  # fmt: skip
def outside() -> Iterator[Ask]:
    for index in (-1, ROWS):
        yield Ask(f"id {index} of {ROWS}", partial(refused, looked_up, [index]), "refused")


@probe(
    "torch", "embedding, dense gradient, 16 bits", "3", instead=GRADIENT,
    claim="sums of 16-bit values stop growing: 4096 ones give 2048 and 256",
)  # fmt: skip
def saturated() -> Iterator[Ask]:
    def call(dtype: Any) -> Any:
        indices, values = ones(dtype)
        weight = torch.nn.Parameter(torch.zeros(2, 1, dtype=dtype))
        embedding(indices, weight).backward(values)
        return dense(weight.grad)

    for dtype in (torch.float16, torch.bfloat16):
        yield Ask(f"4096 ones, {str(dtype)[6:]}", partial(call, dtype), [[4096.0], [0.0]])


@probe(
    "torch", "embedding, dense gradient", "3", trap="", instead=GRADIENT, claim="it sums in order of occurrence",
)  # fmt: skip
def dense_order() -> Iterator[Ask]:
    def call(values: Any, indices: Any) -> Any:
        weight = torch.nn.Parameter(torch.zeros(ROWS, 2))
        embedding(torch.from_numpy(indices), weight).backward(torch.from_numpy(values))
        return dense(weight.grad)

    for n in (17, 1000):
        values, indices = unruly(n)
        yield Ask(f"{n} ids of 3 rows", partial(call, values, indices), left_fold(values, indices, ROWS))


@probe(
    "torch", "embedding(max_norm=1)", "12", instead="islices.renorm_rows(table, ids, max_norm)",
    claim="1e-7 is added to the norm of a row, so that rows come out shorter than max_norm",
)  # fmt: skip
def renormed() -> Iterator[Ask]:
    rows = np.array([[3, 4], [0.5, 0], [0.0009, 0.0012], [6, 8]], np.float32)

    def call(bound: float) -> Any:
        weight = torch.from_numpy(rows.copy())
        embedding(torch.tensor([0, 1, 2, 0]), weight, max_norm=bound)
        return weight.numpy()

    for bound in (1.0, 0.001):
        wanted = oracle_embedding.renorm_rows(plain(rows), plain(np.array([0, 1, 2])), bound)
        yield Ask(f"max_norm={bound}", partial(call, bound), wanted)


# ---------------------------------------------------------------------- bags
OFFSETS, MEMBERS = [0, 3, 3], [1, 2, 1, 3, 0]


def bag(mode: str, **options: Any) -> torch.Tensor:
    weight = table()
    out = embedding_bag(torch.tensor(MEMBERS), weight, torch.tensor(OFFSETS), mode=mode, **{"sparse": True, **options})
    out.backward(torch.from_numpy(upstream(len(OFFSETS))))
    return weight.grad  # type: ignore[no-any-return]


def expected_bag(mode: str, **options: Any) -> Any:
    got = oracle_embedding.lookup_gradient(
        plain(dense(table()).astype(np.float32)), plain(np.array(MEMBERS)), plain(upstream(len(OFFSETS))),
        combiner=mode, offsets=plain(np.array(OFFSETS)), **options,
    )  # fmt: skip
    return oracle.to_dense(got[0] if isinstance(got, tuple) else got)


def bags(trap: str, claim: str, mode: str, call: str, **options: Any) -> None:
    """A probe of bags of 3, 0 and 2 members."""
    weights = options.pop("weights", None)
    names = {"padding_idx": "padding_idx", "scale_grad_by_freq": "scale_by_freq"}
    ours = {names[k]: v for k, v in options.items() if k in names}

    more = "".join(f", {k}={v}" for k, v in ours.items()) + ("" if weights is None else ", weights=weights")
    instead = f'islices.lookup(table, ids, combiner="{mode}", offsets=offsets{more})'
    shown = f"EmbeddingBag(mode={mode!r}{call})" + ("" if weights is None else ", weighted")

    @probe("torch", shown, "19", claim=claim, trap=trap, instead=instead)
    def ask() -> Iterator[Ask]:
        own = options if weights is None else {**options, "per_sample_weights": torch.tensor(weights)}
        wanted = dict(ours)
        if weights is not None:
            wanted["weights"] = plain(np.array(weights, np.float32))
        yield Ask("bags of 3, 0 and 2", lambda: dense(bag(mode, **own)), expected_bag(mode, **wanted))


PARTS = [0.5, 2.0, 1.0, 4.0, 0.25]
bags("", "every member gets the bag's gradient", "sum", ", sparse=True")
bags("", "members get it divided by their number", "mean", ", sparse=True")
bags("", "members that are padding do not count", "mean", ", sparse=True, padding_idx=1", padding_idx=1)
bags("", "members get it times their weight", "sum", ", sparse=True", weights=PARTS)
bags("raises", "only sums are weighted", "mean", ", sparse=True", weights=PARTS)
bags("raises", "it has no sparse gradient", "max", ", sparse=True")
bags("", "the maximum's member gets it", "max", ", sparse=False", sparse=False)
bags(
    "raises", "it refuses", "sum", ", sparse=True, scale_grad_by_freq=True", scale_grad_by_freq=True,
)  # fmt: skip


# ---------------------------------------------------------------------- autograd
def layout(x: torch.Tensor) -> str:
    if x.layout is not torch.sparse_coo:
        return "dense"
    return "row-sparse" if x.sparse_dim() == 1 else f"sparse in {x.sparse_dim()} dimensions"


def stays(call: str, claim: str, read: Any, trap: str = "differs", clause: str = "12", **more: Any) -> None:
    """A probe of what form the gradient of read(table, ids) has."""

    @probe("torch", call, clause, claim=claim, trap=trap, **{"instead": LOOKUP, **more})
    def ask() -> Iterator[Ask]:
        def got() -> str:
            weight = table()
            read(weight, torch.tensor([1, 2, 1])).sum().backward()
            return layout(weight.grad)

        yield Ask("ids [1, 2, 1]", got, "row-sparse")


stays("table[ids]", "the gradient has the size of the table", lambda w, i: w[i])
stays("torch.index_select(table, 0, ids)", "the gradient has the size of the table", lambda w, i: w.index_select(0, i))
stays(
    "torch.gather(table, sparse_grad=True)", "each element has an index of its own: no rows",
    lambda w, i: torch.gather(w, 0, i[:, None].expand(-1, 2), sparse_grad=True), issue="pytorch/pytorch#63958",
)  # fmt: skip
stays("embedding(ids, 2 * table, sparse=True)", "it stays sparse", lambda w, i: embedding(i, w * 2, sparse=True), "")
stays(
    "embedding(ids, table[:3], sparse=True)", "a lookup in a part of a table cannot be differentiated",
    lambda w, i: embedding(i, w[:3], sparse=True), "raises", issue="pytorch/pytorch#39559",
)  # fmt: skip


@probe(
    "torch", "Tensor.backward, gradients that add up", "6", trap="", instead="islices.add(x, y)",
    claim="sparse and sparse stay sparse, sparse and dense are dense, and the sums are right",
)  # fmt: skip
def accumulated() -> Iterator[Ask]:
    def call(forms: tuple[bool, bool], at_once: bool, what: Any) -> Any:
        weight, ids = table(), torch.tensor([1, 2, 1])
        losses: list[Any] = [embedding(ids, weight, sparse=form).sum() for form in forms]
        total: Any = sum(losses)
        for loss in [total] if at_once else losses:
            loss.backward()
        return what(weight.grad)

    for forms in ((True, True), (True, False), (False, True)):
        form = "row-sparse" if all(forms) else "dense"
        for at_once in (False, True):
            given = f"sparse={forms}, {'one backward' if at_once else 'two'}"
            yield Ask(given, partial(call, forms, at_once, layout), form)
            yield Ask(given, partial(call, forms, at_once, dense), [[0, 0], [4, 4], [2, 2], [0, 0]])


@probe(
    "torch", "torch.autograd.grad, a table that is not looked up", "12", trap="raises", instead=LOOKUP,
    claim="it raises unless allow_unused=True, which gives None",
)  # fmt: skip
def unused() -> Iterator[Ask]:
    def call() -> Any:
        return dense(torch.autograd.grad(looked_up([1]).requires_grad_().sum(), table())[0])

    yield Ask("a loss of another table", call, np.zeros((ROWS, 2)))


@probe(
    "torch", "torch.autograd.grad, second derivatives", "12", trap="", instead=LOOKUP,
    claim="they are right through a sparse lookup",
)  # fmt: skip
def second() -> Iterator[Ask]:
    def call() -> Any:
        weight = table()
        loss = (embedding(torch.tensor([1, 1]), weight, sparse=True) ** 3).sum()
        (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
        return dense(torch.autograd.grad(torch.sparse.sum(gradient), weight)[0])

    wanted = np.zeros((ROWS, 2))
    wanted[1] = 2 * 6 * dense(table())[1]
    yield Ask("cubes of a row read twice", call, wanted)


@probe(
    "torch", "torch.func.vmap(torch.func.grad(...)), sparse lookups", "14", trap="raises",
    instead="islices.value_and_grad(fn, per_sample=True)", claim="gradients per sample cannot be sparse",
)  # fmt: skip
def per_sample() -> Iterator[Ask]:
    def loss(weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return embedding(ids, weight, sparse=True).sum()

    def call() -> Any:
        return dense(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(table(), torch.tensor([[1, 1], [2, 3]])))

    wanted = np.zeros((2, ROWS, 2))
    wanted[0, 1], wanted[1, 2:] = 2, 1
    yield Ask("two samples of two ids", call, wanted)
