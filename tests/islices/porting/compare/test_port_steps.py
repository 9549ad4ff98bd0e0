"""Test steps that differ between two frameworks: reports name one cause, two causes, and causes after many steps."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ported import STEPS, Batch, summed, torch_step

import islices
from islices.backends.torch import state_of
from islices.porting.compare import Step, explain_steps


@pytest.mark.parametrize("name", STEPS)
def test_what_makes_a_step_another_is_named(name: str) -> None:
    d = Batch(2)
    one, other, names = STEPS[name]
    g = summed(d)
    found = explain_steps(*(Step(d.tables, side(d, g), d.raw) for side in (one, other)))
    assert [set(e.names) for e in found.causes] == [names], str(found)


def test_an_optimizer_that_keeps_nothing_beside_one_that_does() -> None:
    """Check plain SGD, whose state is an empty dict, against momentum, whose state has an array per table after step
    two."""
    d = Batch(2)
    g = summed(d)

    def second(momentum: float) -> tuple[Any, Any]:
        parameters = {n: torch.nn.Parameter(torch.tensor(x)) for n, x in d.tables.items()}
        sgd = torch.optim.SGD(parameters.values(), 0.1, momentum=momentum)
        for k in range(2):
            for n, p in parameters.items():
                with torch.no_grad():
                    p.copy_(torch.tensor(d.tables[n]))
                p.grad = torch.tensor(g[n])
            state = copy.deepcopy(state_of(sgd, parameters)) if k else {}
            sgd.step()
        return {n: p.detach().numpy() for n, p in parameters.items()}, state

    (plain, none), (heavy, state) = second(0.0), second(0.9)
    assert none == {}
    found = explain_steps(Step(d.tables, plain, g, none), Step(d.tables, heavy, g, state))
    assert [e.names for e in found.causes] == [("momentum",)], str(found)


def described(name: str, **numbers: float) -> dict[str, Any]:
    return {"name": name, "semantics": "torch", "rows": "all", **numbers}


#: One side by torch, its description, and what it differs in from Adam by 1e-3.
DESCRIBED = {
    "decoupled decay and epsilon": (
        lambda p: torch.optim.AdamW(p, 1e-3, eps=1e-5, weight_decay=0.1),
        described("adamw", lr=1e-3, eps=1e-5, weight_decay=0.1), {"weight_decay", "step_epsilon"},
    ),
    "sign": (
        lambda p: torch.optim.Adam(p, 1e-3, maximize=True), {**described("adam", lr=1e-3), "maximize": True}, {"sign"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DESCRIBED)
def test_what_is_described_in_full_is_what_steps(name: str) -> None:
    """Check that the description decides between Adagrad from zeros and Adam, whose first steps are equal."""
    make, description, names = DESCRIBED[name]
    d = Batch(2)
    g = summed(d)
    sides = [
        Step(d.tables, torch_step(d, by, g), g, optimizer=x)
        for by, x in ((lambda p: torch.optim.Adam(p, 1e-3), described("adam", lr=1e-3)), (make, description))
    ]
    found = explain_steps(*sides)
    assert [set(e.names) for e in found.causes] == [names], str(found)


def test_a_state_on_one_side_does_not_hide_what_its_sums_began_with() -> None:
    """Check the initial accumulator. MXNet makes Adagrad's state in the first step, optax before it."""
    d = Batch(2)
    table, g = d.tables["u"], summed(d)["u"]
    sides = []
    for semantics, state in (("mxnet", None), ("optax", {"": {"accumulator": np.full_like(table, 0.1)}})):
        adagrad = islices.optim.adagrad(0.1, semantics=semantics, rows="all")  # type: ignore[arg-type]
        after, _ = adagrad.step(table.copy(), g, adagrad.init(table))
        sides.append(Step(table, after, g, state, optimizer={"semantics": semantics}))
    found = explain_steps(*sides)
    assert [e.names for e in found.causes] == [("initial_accumulator",)], str(found)


def test_a_class_that_is_not_known_is_not_taken_for_another() -> None:
    """Check that torch's RAdam, whose first steps are gradient descent, is not mistaken for it."""
    d = Batch(2)
    g = summed(d)
    a, b = (torch_step(d, lambda p, make=make: make(p, 1e-2), g) for make in (torch.optim.RAdam, torch.optim.Adam))
    found = explain_steps(Step(d.tables, a, g, optimizer={"class": "torch.optim.RAdam"}), Step(d.tables, b, g))
    assert not any("step" in c.details for e in found.causes for c in e.causes), str(found)


@pytest.mark.parametrize("make", [lambda p: torch.optim.Adam(p, 1e-3), lambda p: torch.optim.SGD(p, 0.1)])
def test_of_one_optimizer_from_other_tables_no_cause_is_named(make: Any) -> None:
    """Check that the report names no cause if one recipe explains both sides."""
    steps = []
    for d in (Batch(2), Batch(5)):
        g = summed(d)
        steps.append(Step(d.tables, torch_step(d, make, g), g))
    found = explain_steps(*steps)
    assert not found.equal
    assert not found.causes, str(found)
