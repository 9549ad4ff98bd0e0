"""Calls within torch.compile(fullgraph=True): eager's values, gradients and errors, in one graph for all batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo

import islices
from islices import IndexedSlices, Table, optim
from islices.backends.torch.adapter import backend
from islices.optim.record import RECORDS

ROWS, DIM = 9, 3
DTYPES = ("float16", "bfloat16", "float32", "float64")
#: Dynamo's own graphs after autograd and functionalization, run operation by operation: the user's own arithmetic keeps
#: its bits, which no compiler promises.
BACKEND = "aot_eager"


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    yield
    torch._dynamo.reset()


def weights(dtype: str = "float32", seed: int = 0) -> torch.Tensor:
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        getattr(torch, dtype)
    )


def slices(dtype: str = "float32", ids: str = "int64", *, n: int = 6, **flags: Any) -> IndexedSlices:
    """Slices with duplicates, some of which cancel."""
    values = weights(dtype)[:n].clone()
    values[2] = -values[1]
    return IndexedSlices(values, torch.tensor([4, 1, 1, 0, 4, 4][:n], dtype=getattr(torch, ids)), (ROWS, DIM), **flags)


def graph(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, **{"fullgraph": True, "backend": BACKEND, **options})


def flat(x: Any) -> list[torch.Tensor]:
    if isinstance(x, IndexedSlices):
        return [x.values, x.indices]
    if isinstance(x, Table):
        return [x.weights]
    if isinstance(x, (list, tuple)):
        return [y for z in x for y in flat(z)]
    return flat(list(x.values())) if isinstance(x, dict) else [x]


def same(got: Any, expected: Any) -> None:
    one, other = flat(got), flat(expected)
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)), (a, b)


# ---------------------------------------------------------------------- a whole step
def training_step(optimizer: Any, **options: Any) -> Callable[..., Any]:
    def loss(table: Any, head: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return (islices.lookup(table, ids, **options) * head).sum()

    def step(table: Any, head: torch.Tensor, ids: torch.Tensor, state: Any) -> Any:
        value, (g, d) = islices.value_and_grad(loss, (0, 1))(table, head, ids)
        (g, d), norm = islices.clip_by_global_norm((g, d), 0.5)
        table, state = optimizer.step(table, g, state)
        return value, norm, d, g, table, state

    return step


def check_steps(optimizer: Any, dtype: str, ids: str, *, master: bool = False, **options: Any) -> None:
    step = training_step(optimizer, **options)
    compiled = graph(step)
    tables = [Table(weights(dtype)) for _ in range(2)]
    states = [optimizer.init(table, master=master) for table in tables]
    head = torch.linspace(-1, 1, DIM).to(getattr(torch, dtype))
    for seed in range(3):
        batch = torch.randint(0, ROWS, (4, 3), generator=torch.Generator().manual_seed(seed))
        batch = batch.to(getattr(torch, ids))
        got, expected = (
            fn(table, head, batch, state) for fn, table, state in zip((compiled, step), tables, states, strict=True)
        )
        same(got, expected)
        assert got[-2] is tables[0]
        assert got[3].dense_shape == (ROWS, DIM)
        torch._dynamo.config.error_on_recompile = True
    same((tables[0], states[0]), (tables[1], states[1]))


@pytest.fixture(autouse=True)
def recompiles() -> Any:
    with torch._dynamo.config.patch(error_on_recompile=False):
        yield


def test_a_training_step() -> None:
    check_steps(optim.adam(0.1), "float32", "int64", combiner="sum")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_training_step_without_kernels(dtype: str) -> None:
    """The graph in NumPy, and the eager step by kernels."""
    optimizer = optim.adam(0.1)
    step = training_step(optimizer, combiner="sum")
    compiled, tables = graph(step), [Table(weights(dtype)) for _ in range(2)]
    states = [optimizer.init(table) for table in tables]
    head, batch = torch.linspace(-1, 1, DIM).to(getattr(torch, dtype)), torch.tensor([[4, 1, 4], [0, 1, 8]])
    for _ in range(2):
        with islices.use_kernels(False):
            got = compiled(tables[0], head, batch, states[0])
        same(got, step(tables[1], head, batch, states[1]))
    same((tables[0], states[0]), (tables[1], states[1]))


@pytest.mark.repeats
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ids", ["int32", "int64"])
@pytest.mark.parametrize("combiner", [None, "mean", "sqrtn"])
@pytest.mark.one_in(5)
def test_training_steps_of_all_types(dtype: str, ids: str, combiner: str | None) -> None:
    check_steps(optim.adagrad(0.1), dtype, ids, combiner=combiner)


@pytest.mark.repeats
@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.one_in(3)
def test_training_steps_of_all_optimizers(name: str) -> None:
    check_steps(getattr(optim, name)(0.1), "float32", "int64", combiner="sum", padding_idx=0)


@pytest.mark.repeats
@pytest.mark.parametrize(
    ("optimizer", "dtype", "master"),
    [
        (optim.adam(0.1, frozen=[1, 4]), "float32", False),
        (optim.adam(0.1, rows="all"), "float32", False),
        (optim.adam(lambda step: 0.1 / (step + 1)), "float64", False),
        (optim.adam(0.1), "bfloat16", True),
        (optim.adagrad(0.1, semantics="keras", duplicates="raw"), "float32", False),
    ],
    ids=["frozen", "all rows", "schedule", "master", "raw"],
)
def test_training_steps_of_all_kinds(optimizer: Any, dtype: str, master: bool) -> None:
    check_steps(optimizer, dtype, "int32", master=master)


def test_trees_aux_and_constants() -> None:
    """Two tables, one of them not looked up, a variable in a dict, what is passed on, and rows that are constants."""

    def loss(tables: Any, extra: Any, ids: torch.Tensor) -> Any:
        rows = islices.lookup(tables[0], ids)
        with torch.no_grad():
            fixed = tables[0][ids]
        return (rows * fixed * extra["w"]).sum(), {"rows": rows, "n": 3}

    def run(tables: Any, extra: Any, ids: torch.Tensor) -> Any:
        return islices.value_and_grad(loss, (0, 1), has_aux=True)(tables, extra, ids)

    arguments = [Table(weights()), Table(weights(seed=1))], {"w": torch.ones(DIM), "k": 4}, torch.tensor([2, 2, 5])
    (value, aux), (tables, extra) = graph(run)(*arguments)
    (value_, aux_), (tables_, extra_) = run(*arguments)
    same((value, aux["rows"], tables, extra["w"]), (value_, aux_["rows"], tables_, extra_["w"]))
    assert (aux["n"], extra["k"], extra_["k"], tables[1].coalesced) == (3, None, None, True)


# ---------------------------------------------------------------------- single calls
CALLS: dict[str, Callable[[Any], Any]] = {
    "coalesce": islices.coalesce,
    "to_dense": islices.to_dense,
    "norm": islices.norm,
    "global_norm": lambda s: islices.global_norm({"a": [s, None], "b": s.values}, 1),
    "clip_by_norm": lambda s: islices.clip_by_norm(s, 0.5),
    "clip_by_norm, within": lambda s: islices.clip_by_norm(s, 1e4),
    "clip_by_row_norm": lambda s: islices.clip_by_row_norm([s, s.values], 0.25),
    "clip_by_value": lambda s: islices.clip_by_value(s, -0.5, 0.5),
    "clip_by_value, torch's": lambda s: islices.clip_by_value(s, -0.5, 0.5, semantics="keras"),
    "clip_by_global_norm": lambda s: islices.clip_by_global_norm((s, {"d": s.values}), 0.5),
    "clip_by_global_norm, torch's": lambda s: islices.clip_by_global_norm([s], 0.5, semantics="torch"),
    "zeros for NaN": lambda s: islices.clip_by_global_norm([s, s.values / 0], 0.5, nonfinite="zero"),
}


@pytest.mark.repeats_where(lambda name, dtype, ids: (dtype, ids) != ("float32", "int64") or name != "coalesce")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("dtype", "ids"), [("float32", "int64"), ("bfloat16", "int32"), ("float64", "int32")])
@pytest.mark.one_in(3)
def test_calls(name: str, dtype: str, ids: str) -> None:
    compiled = graph(CALLS[name])
    for n in (6, 5, 1):  # the second makes a graph for any number of them
        same(compiled(slices(dtype, ids, n=max(n, 3))), CALLS[name](slices(dtype, ids, n=max(n, 3))))
    known = slices(dtype, ids, padded=True)
    same(graph(CALLS[name])(known), CALLS[name](known))


def test_without_slices() -> None:
    empty = IndexedSlices(torch.zeros(0, DIM), torch.zeros(0, dtype=torch.int64), (ROWS, DIM))
    same(graph(islices.coalesce)(empty), islices.coalesce(empty))


# ---------------------------------------------------------------------- errors
def raised(fn: Callable[..., Any], *arguments: Any) -> tuple[type[BaseException], str]:
    with pytest.raises((TypeError, ValueError, IndexError, FloatingPointError)) as caught:
        fn(*arguments)
    return caught.type, str(caught.value)


def test_errors_are_those_of_eager_code_and_leave_nothing_behind() -> None:
    optimizer = optim.adam(0.1)
    step = training_step(optimizer, combiner="sum")
    table, head = Table(weights()), torch.ones(DIM)
    state, ids = optimizer.init(table), torch.tensor([[1, 2], [3, 3]])
    before = table.weights.clone()
    compiled = graph(step)
    bad = torch.tensor([[1, 2], [3, ROWS]])
    for _ in range(2):
        assert raised(compiled, table, head, bad, state) == raised(step, table, head, bad, state)
        assert torch.is_grad_enabled()
        assert torch.equal(table.weights, before)
    state_ = optimizer.init(table)
    twin = Table(before.clone())
    same(compiled(table, head, ids, state), step(twin, head, ids, state_))


def nan_slices() -> IndexedSlices:
    s = slices()
    s.values[0, 0] = float("nan")
    return s


STEPPED = optim.sgd(0.1)
STATE = STEPPED.init(weights())


@pytest.mark.repeats
@pytest.mark.parametrize(
    "call",
    [
        lambda s: islices.clip_by_norm(s, -1.0),
        lambda s: islices.clip_by_global_norm([s], 0.5, semantics="nobody's"),
        lambda s: islices.clip_by_global_norm([s], 0.5, nonfinite="raise"),
        lambda s: islices.clip_by_value(s, 1.0, 2.0),
        lambda s: islices.norm(s, 0),
        lambda s: islices.coalesce([s, 3.5]),
        lambda s: STEPPED.step(s.values, s, STATE),
    ],
)
def test_errors_of_single_calls(call: Callable[[Any], Any]) -> None:
    assert raised(graph(call, fullgraph=False), nan_slices()) == raised(call, nan_slices())


def parts_of_a_gradient_of_bags(table: Table, ids: torch.Tensor) -> list[Any]:
    def loss(table: Any) -> torch.Tensor:
        return (islices.lookup(table, ids, combiner="mean") ** 2).sum()

    grad = islices.value_and_grad(loss)(table)[1]
    clipped = islices.clip_by_norm(grad, 0.5)
    return [grad.values, clipped.values, grad.indices + grad.shape[0], grad.indices.to(grad.dtype)]


def test_parts_of_a_gradient_of_bags_are_read_in_the_graph() -> None:
    args = TABLE, torch.tensor([[4, 0, 1], [1, 1, 2]])
    got, expected = (f(*args) for f in (graph(parts_of_a_gradient_of_bags), parts_of_a_gradient_of_bags))
    for x, y in zip(got, expected, strict=True):
        assert torch.equal(x, y)


# ---------------------------------------------------------------------- what stays a graph break
def of_the_norm(s: IndexedSlices, w: torch.Tensor) -> torch.Tensor:
    return islices.norm(w * 2)


def of_a_dense_table(s: IndexedSlices, w: torch.Tensor) -> torch.Tensor:
    return islices.lookup(w, s.indices).sum()


def of_weights(s: IndexedSlices, w: torch.Tensor) -> torch.Tensor:
    return islices.lookup(TABLE, s.indices[None, :3], combiner="sum", weights=w[:1]).sum()


def of_a_maximum(s: IndexedSlices, w: torch.Tensor) -> torch.Tensor:
    def loss(table: Any) -> torch.Tensor:
        return islices.lookup(table, s.indices[None], combiner="max").sum()

    return islices.value_and_grad(loss)(TABLE)[1].values.sum() * w.sum()


TABLE = Table(weights())


@pytest.mark.repeats_where(lambda fn: fn is not of_the_norm)
@pytest.mark.parametrize("fn", [of_the_norm, of_a_dense_table, of_weights, of_a_maximum])
def test_gradients_that_pass_through_calls_break_the_graph(fn: Callable[..., Any]) -> None:
    w = weights().requires_grad_()
    compiled = graph(fn, fullgraph=False)
    (got,), (expected,) = (torch.autograd.grad(f(slices(), w), w) for f in (compiled, fn))
    assert torch.equal(got, expected)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="islices: "):
        graph(fn)(slices(), w)
    assert torch.is_grad_enabled()


# ---------------------------------------------------------------------- from outside
@pytest.mark.parametrize("of", ["step", "graph"])
def test_while_another_thread_compiles(of: str) -> None:
    """torch.compiler.is_compiling() is true in all threads then; changing amid a call, it left one unclipped."""
    optimizer = optim.adam(0.1)
    step = training_step(optimizer, combiner="sum")
    fn = graph(step) if of == "graph" else step
    head, ids = torch.ones(DIM), torch.tensor([[1, 2], [3, 3]])
    begun, done = threading.Event(), threading.Event()

    def held_up(module: torch.fx.GraphModule, examples: Any) -> Any:
        begun.set()
        done.wait(60)
        return module

    def trained() -> Any:
        table = Table(weights())
        state = optimizer.init(table)
        return [fn(table, head, ids, state) for _ in range(3)][-1]

    expected = trained()
    thread = threading.Thread(target=torch.compile(lambda x: x.sin(), backend=held_up), args=(torch.ones(3),))
    thread.start()
    try:
        assert begun.wait(60)
        assert torch.compiler.is_compiling()
        assert not backend.is_traced(head)
        assert backend.look([head, ids]).views is not None
        got = trained()
    finally:
        done.set()
        thread.join()
    same(got, expected)


@pytest.mark.outside
def test_threads_and_inductor() -> None:
    """Compiled once by Inductor, called by four threads on tables of their own."""
    optimizer = optim.adam(0.1)
    step = training_step(optimizer, combiner="sum")
    compiled = graph(step, backend="inductor")
    head, ids = torch.ones(DIM), torch.tensor([[1, 2], [3, 3]])
    first = Table(weights())
    compiled(first, head, ids, optimizer.init(first))
    found: list[Any] = [None] * 4

    def train(k: int) -> None:
        table = Table(weights(seed=k))
        state = optimizer.init(table)
        for _ in range(20):
            compiled(table, head, ids, state)
        found[k] = table, state

    threads = [threading.Thread(target=train, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        table = Table(weights(seed=k))
        state = optimizer.init(table)
        for _ in range(20):
            step(table, head, ids, state)
        same(found[k], (table, state))
