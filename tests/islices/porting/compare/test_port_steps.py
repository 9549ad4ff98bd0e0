"""Test reports on pairs of steps that differ for one or two causes. Reports must name all causes, but no cause for
unrelated steps."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ported import STEPS, Batch, summed, torch_step

import islices
from islices.backends.torch import state_of
from islices.porting.compare.steps.explain import explain_step
from islices.porting.compare.steps.side import TableStep


@pytest.mark.parametrize("name", STEPS)
def test_what_makes_a_step_another_is_named(name: str) -> None:
    d = Batch(2)
    one, other, names = STEPS[name]
    g = summed(d)
    found = explain_step(*(TableStep(d.tables["u"], side(d, g)["u"], d.raw["u"]) for side in (one, other)))
    assert [set(e.names) for e in found.causes] == [names], str(found)


def test_an_optimizer_that_keeps_nothing_beside_one_that_does() -> None:
    """Compare the second step of plain SGD, whose state is empty, with that of SGD with momentum."""
    d = Batch(2)
    table, g = d.tables["u"], summed(d)["u"]

    def second(momentum: float) -> TableStep:
        parameter = torch.nn.Parameter(torch.tensor(table))
        sgd = torch.optim.SGD([parameter], 0.1, momentum=momentum)
        for k in range(2):
            with torch.no_grad():
                parameter.copy_(torch.tensor(table))
            parameter.grad = torch.tensor(g)
            state = copy.deepcopy(state_of(sgd, {"u": parameter})) if k else {}
            sgd.step()
        return TableStep(table, parameter.detach(), g, state.get("u", {}))

    plain, heavy = second(0.0), second(0.9)
    assert not plain.state
    found = explain_step(plain, heavy)
    assert [e.names for e in found.causes] == [("momentum",)], str(found)


def described(name: str, **numbers: float) -> dict[str, Any]:
    return {"name": name, "semantics": "torch", "rows": "all", **numbers}


#: name -> (torch's optimizer, its description, causes of the difference from Adam with rate 1e-3)
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
    """Check that reports use the descriptions of the optimizers, because the first steps of different optimizers may be
    equal."""
    make, description, names = DESCRIBED[name]
    d = Batch(2)
    g = summed(d)
    sides = [
        TableStep(d.tables["u"], torch_step(d, by, g)["u"], g["u"], optimizer=x)
        for by, x in ((lambda p: torch.optim.Adam(p, 1e-3), described("adam", lr=1e-3)), (make, description))
    ]
    found = explain_step(*sides)
    assert [set(e.names) for e in found.causes] == [names], str(found)


def test_a_state_on_one_side_does_not_hide_what_its_sums_began_with() -> None:
    """Check that the report names the initial accumulator. Only optax's side has a state, because MXNet creates
    Adagrad's state later."""
    d = Batch(2)
    table, g = d.tables["u"], summed(d)["u"]
    sides = []
    for semantics, state in (("mxnet", {}), ("optax", {"accumulator": np.full_like(table, 0.1)})):
        adagrad = islices.optim.adagrad(0.1, semantics=semantics, rows="all")  # type: ignore[arg-type]
        after, _ = adagrad.step(table.copy(), g, adagrad.init(table))
        sides.append(TableStep(table, after, g, state, optimizer={"semantics": semantics}))
    found = explain_step(*sides)
    assert [e.names for e in found.causes] == [("initial_accumulator",)], str(found)


def test_raw_duplicates_are_named_if_the_description_does_not_name_them() -> None:
    d = Batch(2)
    table, sides = d.tables["u"], []
    numbers: dict[str, Any] = {"semantics": "keras", "rows": "all", "lr": 1e-3, "eps": 3e-7}
    for duplicates in ("sum", "raw"):
        adam = islices.optim.adam(**numbers, duplicates=duplicates)
        after, _ = adam.step(table.copy(), d.raw["u"], adam.init(table))
        sides.append(TableStep(table, after, d.raw["u"], optimizer={"name": "adam", **numbers}))
    found = explain_step(*sides)
    assert [e.names for e in found.causes] == [("step_duplicates",)], str(found)


def test_a_class_that_is_not_known_is_not_taken_for_another() -> None:
    """Check that the first step of torch's RAdam is not reported as a step of gradient descent, although the two are
    equal."""
    d = Batch(2)
    g = summed(d)
    a, b = (torch_step(d, lambda p, make=make: make(p, 1e-2), g)["u"] for make in (torch.optim.RAdam, torch.optim.Adam))
    table, grad = d.tables["u"], g["u"]
    found = explain_step(TableStep(table, a, grad, optimizer={"class": "torch.optim.RAdam"}), TableStep(table, b, grad))
    assert not any("step" in c.details for e in found.causes for c in e.causes), str(found)


@pytest.mark.parametrize("make", [lambda p: torch.optim.Adam(p, 1e-3), lambda p: torch.optim.SGD(p, 0.1)])
def test_of_one_optimizer_from_other_tables_no_cause_is_named(make: Any) -> None:
    steps = []
    for d in (Batch(2), Batch(5)):
        g = summed(d)
        steps.append(TableStep(d.tables["u"], torch_step(d, make, g)["u"], g["u"]))
    found = explain_step(*steps)
    assert not found.equal
    assert not found.causes, str(found)
