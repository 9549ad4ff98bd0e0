"""Test calls in torch.compile(fullgraph=True). One graph must serve all batches, and give the results and errors of
eager calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from comparing import assert_same

import islices
from islices import IndexedSlices, Table, optim
from islices.backends.torch.adapter import backend

ROWS, DIM = 9, 3
#: This backend runs Dynamo's graphs operation by operation, after autograd and functionalization. Compiled backends may
#: change bits, but this one may not.
BACKEND = "aot_eager"


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    with torch._dynamo.config.patch(error_on_recompile=False):
        yield
    torch._dynamo.reset()


def weights(dtype: str = "float32", seed: int = 0) -> torch.Tensor:
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        getattr(torch, dtype)
    )


def slices(dtype: str = "float32", ids: str = "int64", *, n: int = 6, **flags: Any) -> IndexedSlices:
    """Return slices with duplicates. Two of the slices cancel."""
    values = weights(dtype)[:n].clone()
    values[2] = -values[1]
    return IndexedSlices(values, torch.tensor([4, 1, 1, 0, 4, 4][:n], dtype=getattr(torch, ids)), (ROWS, DIM), **flags)


def graph(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, **{"fullgraph": True, "backend": BACKEND, **options})


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
        assert_same(got, expected)
        assert got[-2] is tables[0]
        assert got[3].dense_shape == (ROWS, DIM)
        torch._dynamo.config.error_on_recompile = True
    assert_same((tables[0], states[0]), (tables[1], states[1]))


@pytest.mark.parametrize(
    ("optimizer", "dtype", "options"),
    [
        (optim.adam(0.1), "float32", {"combiner": "sum", "padding_idx": 0}),
        (optim.sgd(lambda step: 0.1 / (step + 1), frozen=[1, 4]), "float64", {}),
        (optim.adam(0.1), "bfloat16", {"combiner": "mean", "master": True}),
    ],
    ids=["sum", "schedule", "master"],
)
def test_a_training_step(optimizer: Any, dtype: str, options: dict[str, Any]) -> None:
    with islices.config.use_kernels(dtype == "float32"):
        check_steps(optimizer, dtype, "int32" if "master" in options else "int64", **options)


def test_leaves_without_a_gradient_stay_none() -> None:
    def run(s: IndexedSlices) -> Any:
        return islices.clip_by_global_norm({"a": s, "b": None}, 0.5)

    (clipped, norm), (clipped_, norm_) = graph(run)(slices()), run(slices())
    assert_same((clipped["a"], norm), (clipped_["a"], norm_))
    assert clipped["b"] is None


def test_trees_aux_and_constants() -> None:
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
    assert_same((value, aux["rows"], tables, extra["w"]), (value_, aux_["rows"], tables_, extra_["w"]))
    assert (aux["n"], extra["k"], extra_["k"], tables[1].coalesced) == (3, None, None, True)


# ---------------------------------------------------------------------- single calls
def test_one_graph_for_any_number_of_slots() -> None:
    compiled = graph(islices.coalesce)
    for n in (6, 5):
        assert_same(compiled(slices(n=n)), islices.coalesce(slices(n=n)))


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
    assert_same(compiled(table, head, ids, state), step(twin, head, ids, state_))


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


# ---------------------------------------------------------------------- calls that remain graph breaks
def of_the_norm(s: IndexedSlices, w: torch.Tensor) -> torch.Tensor:
    return islices.norm(w * 2)


def of_a_dense_table(s: IndexedSlices, w: torch.Tensor) -> torch.Tensor:
    return islices.lookup(w, s.indices).sum()


TABLE = Table(weights())


@pytest.mark.parametrize("fn", [of_the_norm, of_a_dense_table])
def test_gradients_that_pass_through_calls_break_the_graph(fn: Callable[..., Any]) -> None:
    w = weights().requires_grad_()
    compiled = graph(fn, fullgraph=False)
    (got,), (expected,) = (torch.autograd.grad(f(slices(), w), w) for f in (compiled, fn))
    assert torch.equal(got, expected)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="islices: "):
        graph(fn)(slices(), w)
    assert torch.is_grad_enabled()


# ---------------------------------------------------------------------- compilation in another thread
def test_while_another_thread_compiles() -> None:
    """Check that islices does not treat eager calls as traced while another thread compiles. During that time,
    torch.compiler.is_compiling() is True in all threads."""
    optimizer = optim.adam(0.1)
    step = training_step(optimizer, combiner="sum")
    fn = graph(step)
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
    assert_same(got, expected)
