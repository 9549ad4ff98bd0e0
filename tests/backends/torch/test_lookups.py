"""value_and_grad on torch: autograd's modes, modules by closure, checkpoints, transforms, compiled code."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import islices  # noqa: E402
from islices import Table, lookup, value_and_grad  # noqa: E402

ROWS, DIM = 5, 3
IDS = torch.tensor([[0, 1, 1], [2, 0, 1]])


def whole(*shape: int, seed: int = 0) -> Any:
    """Multiples of 12, so that means over up to four members do not round."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)) * 12.0


def table(**options: Any) -> Table:
    return Table(whole(ROWS, DIM), **options)


def same(got: Any, expected: Any) -> None:
    got = islices.to_dense(got) if isinstance(got, islices.IndexedSlices) else got
    expected = expected.to_dense()
    assert torch.equal(got, expected), f"got {got}\nexpected {expected}"


# ---------------------------------------------------------------------- value_and_grad
def test_arguments_that_depend_on_one_another_are_apart() -> None:
    w = nn.Parameter(torch.tensor([2.0, 3.0]))
    product = value_and_grad(lambda a, b: (a * a * b).sum(), (0, 1))
    for second in (w, w * 1):
        _, (a, b) = product(w, second)
        assert (a.tolist(), b.tolist()) == ([8, 18], [4, 9])
    # what a nested fn takes from around it is a constant to it
    _, g = value_and_grad(lambda q: value_and_grad(lambda v: (v * q).sum())(q)[1].sum())(w)
    assert g.tolist() == [1, 1]
    assert w.grad is None


def test_modules_by_closure_keep_their_gradients_to_themselves() -> None:
    model = nn.Linear(DIM, 1)
    model.weight.grad = torch.full((1, DIM), 7.0)
    _, (t, p) = value_and_grad(lambda t, p: model(lookup(t, IDS)).sum(), (0, 1))(
        table(), dict(model.named_parameters())
    )
    assert torch.equal(t.values, model.weight.detach().expand(6, DIM))
    assert p["bias"].tolist() == [6]
    assert model.weight.grad.flatten().tolist() == [7, 7, 7]
    assert model.bias.grad is None


@pytest.mark.parametrize("weights", ["view", "transposed", "expanded", "recorded"])
def test_tables_on_any_memory(weights: str) -> None:
    w = {"view": whole(ROWS + 2, DIM)[1:-1], "transposed": whole(DIM, ROWS).T,
         "expanded": whole(1, DIM).expand(ROWS, DIM),
         "recorded": whole(ROWS, DIM).requires_grad_() * 1}[weights]  # fmt: skip
    value, g = value_and_grad(lambda t: (lookup(t, IDS) ** 2).sum())(Table(w))
    assert value.item() == (w[IDS] ** 2).sum().item()
    same(g, torch.zeros(ROWS, DIM).index_add_(0, IDS.flatten(), 2 * w.detach()[IDS.flatten()]))


@pytest.mark.parametrize("combiner", [None, "sum", "mean", "sqrtn", "max"])
def test_second_derivatives(combiner: Any) -> None:
    """Of rows and of bags, beside torch's own through plain indexing."""
    w = whole(ROWS, DIM).double() / 12 + torch.arange(ROWS)[:, None] / 8
    directions = torch.linspace(-1, 1, 6 * DIM, dtype=torch.float64).reshape(6, DIM)
    reduce: Any = {None: lambda x: x, "sum": lambda x: x.sum(1), "mean": lambda x: x.mean(1),
                   "sqrtn": lambda x: x.sum(1) / 3**0.5, "max": lambda x: x.amax(1)}[combiner]  # fmt: skip
    ids = torch.tensor([[0, 1, 4], [2, 0, 3]])

    def inner(t: Any) -> Any:
        return (lookup(t, ids, combiner=combiner) ** 3).sum()

    _, g = value_and_grad(lambda t: (value_and_grad(inner)(t)[1].values * directions).sum())(Table(w))
    rows = w[ids].clone().requires_grad_()
    (first,) = torch.autograd.grad((reduce(rows) ** 3).sum(), rows, create_graph=True)
    (second,) = torch.autograd.grad((first.reshape(6, DIM) * directions).sum(), rows)
    expected = torch.zeros_like(w).index_add_(0, ids.flatten(), second.reshape(6, DIM))
    torch.testing.assert_close(islices.to_dense(g), expected)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "autocast", "anomaly", "saved_tensors", "checkpoint"])
def test_autograds_modes(mode: str) -> None:
    around: Any = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode,
                   "autocast": lambda: torch.autocast("cpu"), "anomaly": torch.autograd.detect_anomaly,
                   "saved_tensors": torch.autograd.graph.save_on_cpu,
                   "checkpoint": torch.enable_grad}[mode]  # fmt: skip

    def part(t: Any, a: Any) -> Any:
        return lookup(t, IDS) ** 2 * a

    def loss(t: Any, a: Any) -> Any:
        return (checkpoint(part, t, a, use_reentrant=False) if mode == "checkpoint" else part(t, a)).sum()

    with warnings.catch_warnings(action="ignore"), around():  # anomaly mode says that it is slow
        weights, a = whole(ROWS, DIM), torch.full((DIM,), 2.0)
        value, (g, d) = value_and_grad(loss, (0, 1))(Table(weights), a)
        assert torch.equal(g.values, 4 * weights[IDS].reshape(6, DIM))
        assert torch.equal(d, (weights[IDS] ** 2).sum((0, 1)))
        if mode != "saved_tensors":  # torch.func refuses these itself
            _, samples = value_and_grad(lambda a, x: (a * x.clone()).sum(1), per_sample=True)(a, weights)
            assert torch.equal(samples, weights)
    assert value.dtype == torch.float32


def test_rows_read_without_gradient_are_constants() -> None:
    def loss(t: Any) -> Any:
        with torch.no_grad():
            scale = lookup(t, torch.tensor([4]))
        return (lookup(t, IDS) * scale).sum()

    _, g = value_and_grad(loss)(table())
    assert torch.equal(g.values, whole(ROWS, DIM)[4].expand(6, DIM))
    value, g = value_and_grad(lambda t: (lookup(t, IDS), torch.tensor(3.0))[1])(table())
    assert (value.item(), g.values.any().item(), g.indices.shape) == (3, False, (6,))


@pytest.mark.parametrize("where", ["fn", "step"])
def test_compiled_functions(where: str) -> None:
    def loss(t: Any, a: Any) -> Any:
        return (lookup(t, IDS) * a).sum()

    step = torch.compile(value_and_grad(loss, (0, 1)), backend="eager")
    if where == "fn":
        step = value_and_grad(torch.compile(loss, backend="eager"), (0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells what it leaves to Python
        _, (g, d) = step(table(), torch.full((DIM,), 2.0))
    assert torch.equal(g.values, torch.full((6, DIM), 2.0))
    assert torch.equal(d, whole(ROWS, DIM)[IDS].sum((0, 1)))


# ---------------------------------------------------------------------- refused, where it would be wrong
def changes_rows(t: Any) -> Any:
    return lookup(t, IDS).mul_(2).sum()


def changes_an_argument(t: Any) -> Any:
    return value_and_grad(lambda a: a.mul_(3).sum())(lookup(t, IDS) * 2)[1].sum()


def within_vmap(t: Any) -> Any:
    return torch.func.vmap(lambda i: lookup(t, i))(IDS).sum()


def samples_within(t: Any) -> Any:
    return value_and_grad(lambda a, x: (a * x).sum(1), per_sample=True)(lookup(t, IDS[0, 0]), torch.ones(2, DIM))[
        1
    ].sum()


def reentrant(t: Any) -> Any:
    return checkpoint(lambda a: (lookup(t, IDS) * a).sum(), torch.ones(1, requires_grad=True), use_reentrant=True)


@pytest.mark.parametrize(
    ("fn", "kind", "words"),
    [
        (changes_rows, RuntimeError, "in-?place"),
        (changes_an_argument, TypeError, "fn: changed an argument in place"),
        (within_vmap, NotImplementedError, r"lookup: got a Table .* inside torch\.func\.vmap"),
        (samples_within, NotImplementedError, "per_sample: gradients of dense arrays inside value_and_grad"),
        (reentrant, NotImplementedError, "use_reentrant=True, where its gradient"),
    ],
)
def test_what_is_refused_within(fn: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        value_and_grad(fn)(table())
    assert value_and_grad(lambda t: lookup(t, IDS).sum())(table())[1].indices.shape == (6,)


def test_what_is_refused_around() -> None:
    words = table()

    def step(a: Any) -> Any:
        return value_and_grad(lambda t, a: (lookup(t, IDS) * a).sum(), (0, 1))(words, a)[0]

    a = torch.ones(DIM)
    mapped = torch.func.vmap(step)
    for transform in (torch.func.grad(step), mapped, lambda a: torch.func.jvp(step, (a,), (a,))):
        with pytest.raises(NotImplementedError, match=r"value_and_grad inside torch\.func"):
            transform(torch.ones(2, DIM) if transform is mapped else a)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="value_and_grad of dual tensors"):
        step(forward_ad.make_dual(a, a))


@pytest.mark.parametrize("name", ["int8", "int16", "uint8", "uint16", "uint32"])
def test_narrow_ids_are_widened(name: str) -> None:
    table, ids = torch.arange(12.0).reshape(6, 2), torch.tensor([4, 0]).to(getattr(torch, name))
    grad = islices.value_and_grad(lambda t: islices.lookup(t, ids).sum())(islices.Table(table))[1]
    assert grad.indices.dtype is (torch.int64 if name == "uint32" else torch.int32)
    torch.testing.assert_close(islices.lookup(table, ids), table[[4, 0]], rtol=0, atol=0)
