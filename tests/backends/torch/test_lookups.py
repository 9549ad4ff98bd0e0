"""Test value_and_grad on torch, with autograd's modes, modules in closures, checkpoints and torch.func."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_models import whole

from islices import Table, lookup, value_and_grad
from islices.testing import assert_equal

ROWS, DIM = 5, 3
IDS = torch.tensor([[0, 1, 1], [2, 0, 1]])


def table(**options: Any) -> Table:
    return Table(whole(ROWS, DIM), **options)


# ---------------------------------------------------------------------- value_and_grad
def test_arguments_that_depend_on_one_another_are_apart() -> None:
    w = nn.Parameter(torch.tensor([2.0, 3.0]))
    product = value_and_grad(lambda a, b: (a * a * b).sum(), (0, 1))
    for second in (w, w * 1):
        _, (a, b) = product(w, second)
        assert (a.tolist(), b.tolist()) == ([8, 18], [4, 9])
    # an inner fn treats outer variables as constants
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


@pytest.mark.parametrize("weights", ["transposed", "recorded"])
def test_tables_on_any_memory(weights: str) -> None:
    w = {"transposed": whole(DIM, ROWS).T, "recorded": whole(ROWS, DIM).requires_grad_() * 1}[weights]
    value, g = value_and_grad(lambda t: (lookup(t, IDS) ** 2).sum())(Table(w))
    assert value.item() == (w[IDS] ** 2).sum().item()
    assert_equal(g, torch.zeros(ROWS, DIM).index_add_(0, IDS.flatten(), 2 * w.detach()[IDS.flatten()]))


@pytest.mark.parametrize("mode", ["inference_mode", "autocast", "saved_tensors", "checkpoint"])
def test_autograds_modes(mode: str) -> None:
    around: Any = {"inference_mode": torch.inference_mode, "autocast": lambda: torch.autocast("cpu"),
                   "saved_tensors": torch.autograd.graph.save_on_cpu, "checkpoint": torch.no_grad}[mode]  # fmt: skip

    def part(t: Any, a: Any) -> Any:
        return lookup(t, IDS) ** 2 * a

    def loss(t: Any, a: Any) -> Any:
        return (checkpoint(part, t, a, use_reentrant=False) if mode == "checkpoint" else part(t, a)).sum()

    with around():
        weights, a = whole(ROWS, DIM), torch.full((DIM,), 2.0)
        value, (g, d) = value_and_grad(loss, (0, 1))(Table(weights), a)
        assert torch.equal(g.values, 4 * weights[IDS].reshape(6, DIM))
        assert torch.equal(d, (weights[IDS] ** 2).sum((0, 1)))
        if mode != "saved_tensors":  # torch.func raises for saved-tensor hooks
            _, samples = value_and_grad(lambda a, x: (a * x.clone()).sum(1), per_sample=True)(a, weights)
            assert torch.equal(samples, weights)
    assert value.dtype == torch.float32


# ---------------------------------------------------------------------- calls that raise instead of a wrong result


def changes_an_argument(t: Any) -> Any:
    return value_and_grad(lambda a: a.mul_(3).sum())(lookup(t, IDS) * 2)[1].sum()


def within_vmap(t: Any) -> Any:
    return torch.func.vmap(lambda i: lookup(t, i))(IDS).sum()


def reentrant(t: Any) -> Any:
    return checkpoint(lambda a: (lookup(t, IDS) * a).sum(), torch.ones(1, requires_grad=True), use_reentrant=True)


@pytest.mark.parametrize(
    ("fn", "kind", "words"),
    [
        (changes_an_argument, TypeError, "fn: changed an argument in place"),
        (within_vmap, NotImplementedError, r"lookup: got a Table .* inside torch\.func\.vmap"),
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
