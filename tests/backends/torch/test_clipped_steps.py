"""Test the argument `max_norm` of the optimizers for torch. A step with `max_norm` has the bits of a call of
`clip_grad_norm_` and then a step without `max_norm`, but leaves gradients unchanged."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from comparing import assert_same

import islices
from islices.backends.torch import clip_grad_norm_, optim


def parameters(dtype: str = "float32") -> list[Any]:
    """Return two tables, a bias, a scalar, and a parameter that never gets a gradient."""
    generator = torch.Generator().manual_seed(0)
    shapes: list[tuple[int, ...]] = [(20, 6), (9, 2, 3), (7,), (), (2,)]
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to(getattr(torch, dtype))) for s in shapes]


def give_gradients(params: list[Any], seed: int, slots: int = 30) -> None:
    """Set the gradients of the first four parameters. Tables get sparse gradients, and the other parameters get dense
    gradients. With more than two slots, sparse gradients contain large values that cancel in one row."""
    generator = torch.Generator().manual_seed(seed)
    for p in params[:2]:
        ids = torch.randint(0, len(p), (1, slots), generator=generator)
        values = torch.randn(slots, *p.shape[1:], generator=generator)
        if slots > 2:
            ids[0, 1], values[0], values[1] = ids[0, 0], 100.0, -100.0
        p.grad = torch.sparse_coo_tensor(ids, values.to(p.dtype), p.shape, check_invariants=False)
    for p in params[2:4]:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


@pytest.mark.parametrize(
    ("semantics", "dtype", "kernels"),
    [
        ("islices", "float32", True),
        ("islices", "bfloat16", False),
        ("torch", "float32", False),
        ("optax", "float32", False),
    ],
)
def test_same_bits_as_clipping_first(semantics: str, dtype: str, kernels: bool) -> None:
    for options in ({}, {"rows": "all", "frozen": [1, 5], "maximize": True}):
        for limit in (0.5, 0.0, float("inf")):
            got, expected = parameters(dtype), parameters(dtype)
            if "frozen" in options:  # `frozen` lists rows of every parameter of the group
                got, expected = got[:2], expected[:2]
            together = optim.Adam(got, lr=0.1, semantics=semantics, max_norm=limit, **options)
            apart = optim.Adam(expected, lr=0.1, semantics=semantics, **options)
            with islices.config.use_kernels(kernels):
                for seed in range(2):
                    for params in (got, expected):
                        give_gradients(params, seed, 30 if seed else 1)
                        if seed and limit == 0.5:
                            params[0].grad._values()[3, 0] = torch.nan
                    norm = clip_grad_norm_(expected, limit, semantics=semantics)
                    apart.step()
                    together.step()
                    assert_same([*got, together.total_norm], [*expected, norm], (options, limit, seed))


def test_gradients_stay_and_the_limit_may_change() -> None:
    params = parameters()
    optimizer = optim.SGD(params, lr=0.5, max_norm=None)
    give_gradients(params, 1)
    before = [p.grad.clone() for p in params[:4]]
    for limit, named in ((None, False), (1.0, True), (torch.tensor(2.0), True), (None, False)):
        optimizer.max_norm = limit
        optimizer.step()
        assert (optimizer.total_norm is not None) is named
    for p, grad in zip(params, before, strict=False):
        same = (grad._values(), p.grad._values()) if grad.is_sparse else (grad, p.grad)
        assert torch.equal(*same)


def test_copies_and_checkpoints() -> None:
    params = parameters()
    optimizer = optim.Adam(params, max_norm=3.0)
    give_gradients(params, 1)
    optimizer.step()
    for copied in copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)):
        assert (copied.max_norm, copied.total_norm) == (3.0, optimizer.total_norm)
    saved = optimizer.state_dict()
    assert all("max_norm" not in group for group in saved["param_groups"])
    other = optim.Adam(parameters(), max_norm=5.0)
    other.load_state_dict(saved)
    assert other.max_norm == 5.0
    none = optim.Adam([torch.nn.Parameter(torch.ones(2))], max_norm=1.0)
    none.step()
    assert none.total_norm == 0


@pytest.mark.parametrize(
    ("options", "error", "statement"),
    [
        ({"max_norm": float("nan")}, ValueError, "max_norm: got nan"),
        ({"max_norm": "1"}, TypeError, "max_norm: got str '1'; accepted is a real number"),
        ({"max_norm": 1.0, "semantics": "fbgemm"}, ValueError, "semantics: got 'fbgemm'; max_norm has islices"),
    ],
)
def test_what_does_not_fit(options: dict[str, Any], error: type[Exception], statement: str) -> None:
    with pytest.raises(error, match=statement):
        optim.SGD(parameters(), lr=0.1, **options)
    params = parameters()
    optimizer = optim.SGD(params, lr=0.1, semantics=options.get("semantics", "islices"))
    give_gradients(params, 0)
    before = [p.detach().clone() for p in params]
    optimizer.max_norm = options["max_norm"]
    with pytest.raises(error, match=statement):
        optimizer.step()
    assert_same(params, before, "nothing is written")
