"""Test operations under torch.func, torch.jit.trace and make_fx. Test tensors as factors and divisors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import islices
from islices import IndexedSlices

VALUES = torch.tensor([[1.0, -2.0], [3.0, 0.5], [2.0, 1.0]])
IDS = torch.tensor([2, 0, 2])


def slices(values: Any) -> IndexedSlices:
    return IndexedSlices(values, IDS, (5, 2))


@pytest.mark.parametrize(
    ("op", "slope"),
    [(lambda s, c: s * c, 5.5), (lambda s, c: c * s, 5.5), (lambda s, c: s / c, -5.5 / 4.0)],
    ids=["times", "times-from-the-left", "over"],
)
def test_a_factor_and_a_divisor_have_gradients(op: Callable[[Any, Any], Any], slope: float) -> None:
    c = torch.tensor(2.0, requires_grad=True)
    (found,) = torch.autograd.grad(op(slices(VALUES), c).values.sum(), c)
    assert float(found) == slope


# ---------------------------------------------------------------------- torch.func
TABLE = torch.arange(10.0).reshape(5, 2)
BAGS = torch.tensor([[0, 2], [0, 0]])


def weighted(x: Any) -> Any:
    """Return a loss with a different weight for each number in `x`."""
    values = x.values if isinstance(x, IndexedSlices) else x
    return (values * torch.arange(1.0, 1.0 + values.numel()).reshape(values.shape)).sum()


#: Functions from values to a loss. torch.func.grad must give the gradient that autograd gives in eager code.
LOSSES: dict[str, Callable[[Any], Any]] = {
    "scale": lambda v: weighted(slices(v) * 2.0),
    "norm": lambda v: islices.norm(slices(v)),
    "global-norm": lambda v: islices.global_norm([slices(v), v]),
    "coalesce-computed-ids": lambda v: weighted(islices.coalesce(IndexedSlices(v, IDS + 1, (5, 2)))),
    "to-dense": lambda v: weighted(islices.to_dense(slices(v))),
    "clip-by-norm": lambda v: weighted(islices.clip_by_norm(slices(v), 1.0)),
    "clip-by-global-norm": lambda v: weighted(islices.clip_by_global_norm([slices(v), v], 1.0)[0][0]),
    "lookup-mean": lambda v: (islices.lookup(v, BAGS, combiner="mean") ** 2).sum(),
    "lookup-max": lambda v: (islices.lookup(v, BAGS, combiner="max") ** 2).sum(),
    "lookup-weights": lambda w: (islices.lookup(TABLE, w.new_ones(3, 2).long(), weights=w, combiner="sum") ** 2).sum(),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_transforms_of_torch_give_the_gradients_of_eager_code(loss: Callable[[Any], Any]) -> None:
    x = VALUES.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(x), x)
    second = torch.autograd.functional.hessian(loss, VALUES)
    direction = torch.tensor([[0.5, 1.0], [-2.0, 0.25], [1.0, 3.0]])
    found = {
        "grad": torch.func.grad(loss)(VALUES),
        "vjp": torch.func.vjp(loss, VALUES)[1](torch.tensor(1.0))[0],
        "jacrev": torch.func.jacrev(loss)(VALUES),
        "vmap of grad": torch.func.vmap(torch.func.grad(loss))(VALUES[None])[0],
    }
    for name, got in found.items():
        torch.testing.assert_close(got, expected, msg=lambda text, name=name: f"{name}: {text}")
    value, tangent = torch.func.jvp(loss, (VALUES,), (direction,))
    torch.testing.assert_close(value, loss(VALUES), rtol=0, atol=0)
    torch.testing.assert_close(tangent, (expected * direction).sum())
    torch.testing.assert_close(torch.func.hessian(loss)(VALUES), second)


def test_what_a_transform_cannot_know_raises() -> None:
    with pytest.raises(TypeError, match="vmap maps over"):
        torch.func.vmap(lambda ids: islices.coalesce(IndexedSlices(VALUES, ids, (5, 2))).values)(IDS[None])


# ---------------------------------------------------------------------- tracers


def by_make_fx(fn: Callable[[Any], Any]) -> Any:
    return make_fx(fn, pre_dispatch=True)(VALUES)


def by_jit(fn: Callable[[Any], Any]) -> Any:
    return torch.jit.trace(fn, (VALUES,), check_trace=False)


def step(values: Any) -> Any:
    optimizer, table = islices.optim.sgd(0.1), TABLE.clone()
    return weighted(optimizer.step(table, slices(values), optimizer.init(table))[0])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("tracer", [by_make_fx, by_jit])
def test_no_tracer_takes_its_inputs_for_constants(tracer: Callable[..., Any]) -> None:
    """Check that a traced graph computes from its inputs, or that tracing raises."""
    refused = []
    for name, loss in LOSSES.items():
        try:
            graph = tracer(loss)
        except TypeError as error:
            refused.append(name)
            if "would be constants of its graph" not in str(error):
                raise
        else:
            torch.testing.assert_close(graph(3.0 * VALUES), loss(3.0 * VALUES))
    assert {"norm", "clip-by-norm"} <= {*refused}
    with pytest.raises(TypeError, match="would be constants of its graph"):
        tracer(step)


def test_constants_of_a_traced_function_are_read() -> None:
    known = slices(VALUES.clone())
    graph = by_make_fx(lambda v: v * islices.norm(known))
    torch.testing.assert_close(graph(VALUES), VALUES * islices.norm(known))
