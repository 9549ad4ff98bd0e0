"""Compare islices.backends.torch.optim with steps of islices.optim, and with the classes of torch.optim."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_models import ROWS, Bags, same_parameters, train

import islices
from islices.backends.torch import optim

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

#: class, hyperparameters with torch's names, function of islices.optim, hyperparameters with the names of islices.optim
CLASSES: list[tuple[str, dict[str, Any], Callable[..., Any], dict[str, Any]]] = [
    ("SGD", {"lr": 0.02, "momentum": 0.9, "nesterov": True}, islices.optim.sgd,
     {"lr": 0.02, "momentum": 0.9, "nesterov": True}),
    ("RowwiseAdagrad", {"lr": 0.1, "weight_decay": 0.1}, islices.optim.rowwise_adagrad,
     {"lr": 0.1, "weight_decay": 0.1}),
    ("RMSprop", {"alpha": 0.9, "momentum": 0.5, "centered": True}, islices.optim.rmsprop,
     {"lr": 0.01, "rho": 0.9, "momentum": 0.5, "centered": True}),
    ("Adam", {"betas": (0.8, 0.99), "rows": "all"}, islices.optim.adam,
     {"lr": 1e-3, "beta1": 0.8, "beta2": 0.99, "rows": "all"}),
    ("Adam", {"semantics": "torch"}, islices.optim.adam, {"semantics": "torch"}),
    ("Adam", {"semantics": "keras", "duplicates": "raw", "rows": "all"}, islices.optim.adam,
     {"semantics": "keras", "duplicates": "raw", "rows": "all"}),
    ("Ftrl", {"lr": 0.1, "l1": 0.01, "lr_power": -1}, islices.optim.ftrl, {"lr": 0.1, "l1": 0.01, "lr_power": -1}),
]  # fmt: skip


def train_by_hand(model: Any, optimizer: Any, steps: int) -> dict[str, Any]:
    """Train with an optimizer of islices.optim, and return a dict from parameter names to states."""
    states: dict[str, Any] = {}
    for step in range(steps):
        model.zero_grad()
        model.loss(step).backward()
        for name, p in model.named_parameters():
            if p.grad is None:
                continue
            table, grad = (p, p.grad) if p.ndim else (p.detach().view(1), p.grad.view(1))
            if name not in states:
                states[name] = optimizer.init(table)
            optimizer.step(table, grad, states[name])
    return states


@pytest.mark.parametrize(("name", "hyper", "function", "in_islices"), CLASSES)
def test_steps_are_those_of_islices_optim(name: str, hyper: Any, function: Any, in_islices: Any) -> None:
    """Compare steps with islices.optim. For dense gradients, islices.optim gets `rows="all"` if the case names a
    semantics."""
    model, twin, start = Bags(), Bags(), Bags()
    optimizer = getattr(optim, name)(model.parameters(), **hyper)
    train(model, optimizer, 0, 12)
    sparse = function(**in_islices)
    dense = function(**{**in_islices, "rows": "all"}) if "semantics" in hyper else sparse

    class Both:
        init = staticmethod(sparse.init)

        @staticmethod
        def step(table: Any, grad: Any, state: Any) -> Any:
            return (sparse if grad.is_sparse else dense).step(table, grad, state)

    states = train_by_hand(twin, Both, 12)
    assert same_parameters(model, twin)
    if "semantics" not in hyper:
        for p, theirs in zip((p for p in model.parameters() if p.grad is not None), states.values(), strict=True):
            mine = optimizer.state[p]
            assert all(torch.equal(x.reshape(y.shape), y) for x, y in zip(mine.values(), theirs.values(), strict=True))
    never = torch.arange(ROWS // 2, ROWS)
    assert torch.equal(model.table.weight[never], start.table.weight[never])
    assert torch.equal(model.unused, start.unused)


# ---------------------------------------------------------------------- groups and hyperparameters


def test_a_group_changed_and_another_added_in_mid_training() -> None:
    model, twin = Bags(), Bags()
    optimizer = optim.SGD(model.table.parameters(), lr=0.1)
    theirs = torch.optim.SGD(twin.table.parameters(), lr=0.1)
    for step in range(6):
        if step == 2:
            for m, o in ((model, optimizer), (twin, theirs)):
                o.param_groups[0]["lr"] = 0.05
                o.add_param_group({"params": m.head.parameters(), "momentum": 0.9, "lr": torch.tensor(0.01)})
        if step == 4:
            optimizer.param_groups[0]["momentum"] = 0.5  # a momentum buffer then starts with zeros
        for m, o in ((model, optimizer), (twin, theirs)):
            o.zero_grad()
            m.loss(step, duplicates=False).backward()
            o.step()
        if step == 3:
            torch.testing.assert_close(model.table.weight, twin.table.weight, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(model.head.weight, twin.head.weight, rtol=1e-5, atol=1e-6)
    assert set(optimizer.state[model.table.weight]) == {"step", "momentum_buffer"}
    assert optimizer.state[model.table.weight]["step"].tolist() == [6]
    assert optimizer.state[model.head.weight]["step"].tolist() == [4]


@pytest.mark.parametrize(
    ("cls", "given", "error", "message"),
    [
        ("Adam", {"lr": torch.tensor([1.0, 2.0])}, TypeError, r"^lr: got torch.Tensor .* a Tensor of one$"),
        ("Adam", {"lr": lambda step: 0.1}, TypeError, r"^lr: got function.*torch\.optim\.lr_scheduler"),
        ("Adam", {"betas": (0.9, -0.1)}, ValueError, r"^betas\[1\]: got -0\.1"),
        ("Adam", {"betas": 0.9}, TypeError, r"^betas: got 0\.9; accepted are two numbers"),
        ("Adam", {"rows": "some"}, ValueError, "^rows: got 'some'"),
        ("Adam", {"master": "yes"}, TypeError, "^master: got 'yes'"),
        ("RMSprop", {"alpha": 1.5}, ValueError, r"^alpha: got 1\.5"),
    ],
)
def test_bad_hyperparameters(cls: str, given: dict[str, Any], error: type[Exception], message: str) -> None:
    """Check that bad values raise in a new optimizer, in a new group, and in a changed group. A step that raises
    changes no weight."""
    one, two = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    with pytest.raises(error, match=message):
        getattr(optim, cls)([one], **given)
    optimizer = getattr(optim, cls)([one])
    with pytest.raises(error):
        optimizer.add_param_group({"params": [two], **given})
    optimizer.add_param_group({"params": [two]})
    optimizer.param_groups[1].update(given)
    one.grad, two.grad = torch.ones(2), torch.ones(2)
    with pytest.raises(error, match=r"^param_groups\[1\]: " + message[1:]):
        optimizer.step()
    assert one.tolist() == [1.0, 1.0]


def test_flags_of_torch_that_it_refuses() -> None:
    for flag in ("differentiable", "capturable", "decoupled_weight_decay"):
        with pytest.raises(ValueError, match=rf"^{flag}: got True; accepted"):
            optim.Adam([torch.nn.Parameter(torch.ones(2))], **{flag: True})


@pytest.mark.parametrize(
    ("rows", "message"), [([1, 5], "got 5 at position 1"), ([2, 1], "claimed coalesced")], ids=["range", "order"]
)
def test_a_bad_gradient_changes_nothing_in_any_group(rows: list[int], message: str) -> None:
    good, first, bad = (torch.nn.Parameter(torch.ones(5, 2)) for _ in range(3))
    optimizer = optim.Adam([{"params": [("good", good)]}, {"params": [("first", first), ("bad", bad)]}], lr=0.1)
    for p in (good, first, bad):
        p.grad = torch.ones(5, 2)
    optimizer.step()
    before = {p: (p.detach().clone(), {k: x.clone() for k, x in optimizer.state[p].items()}) for p in (good, first)}
    bad.grad = torch.sparse_coo_tensor([rows], torch.ones(2, 2), (5, 2), is_coalesced=True, check_invariants=False)
    with pytest.raises((IndexError, ValueError), match=rf"^param_groups\[1\]\['params'\]\[1\] \(bad\): .*{message}"):
        optimizer.step()
    for p, (weights, state) in before.items():
        assert torch.equal(p, weights)
        assert all(torch.equal(optimizer.state[p][k], x) for k, x in state.items())
    fresh = optim.Adam([good, bad])  # the optimizer must not create states either
    with pytest.raises((IndexError, ValueError)):
        fresh.step()
    assert len(fresh.state) == 0


# ---------------------------------------------------------------------- rows that steps change
def stepped(make: Callable[..., Any], steps: int = 3, *, sparse: bool = True) -> list[int]:
    """Return the rows that the last step changes. The first gradient touches row 3, and `steps` more gradients touch
    row 2."""
    layer = torch.nn.Embedding.from_pretrained(torch.ones(5, 1), freeze=False, sparse=sparse)
    optimizer = make(layer.named_parameters())
    for row in [3, *[2] * steps]:
        optimizer.zero_grad()
        layer(torch.tensor([row])).sum().backward()
        before = layer.weight.detach().clone()
        optimizer.step()
    return (layer.weight != before).flatten().nonzero().flatten().tolist()


def test_a_sparse_gradient_that_moves_all_rows_warns_once() -> None:
    make = functools.partial(optim.AdamW, lr=0.1, semantics="torch")
    words = r"\(weight\): a sparse gradient moves all rows.*rows='all'.*'islices'"
    with pytest.warns(UserWarning, match=words) as found:
        assert stepped(make) == [0, 1, 2, 3, 4]
    assert [(x.category, x.filename) for x in found] == [(UserWarning, __file__)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stepped(functools.partial(make, rows="all"))
        stepped(make, sparse=False)


@pytest.mark.parametrize(
    ("cls", "given", "raises"),
    [
        ("Adam", {"rows": "touched", "semantics": "torch"}, True),
        ("SparseAdam", {}, True),  # torch's class does the same
        ("SGD", {"rows": "touched", "weight_decay": 0.5}, True),
        ("SGD", {"rows": "touched"}, False),
    ],
)
def test_rows_touched_that_is_asked_for_refuses_a_dense_gradient(cls: str, given: Any, raises: bool) -> None:
    make = functools.partial(getattr(optim, cls), lr=0.1, **given)
    assert stepped(make) == [2]
    if not raises:
        assert stepped(make, sparse=False) == [2]
        return
    words = r"\['params'\]\[0\] \(weight\): rows: got 'touched' and a dense gradient.*sparse=True\)\), or rows left out"
    with pytest.raises(ValueError, match=words):
        stepped(make, sparse=False)


def test_names_of_torch_optim() -> None:
    schedule = optim.lr_scheduler.StepLR(optim.SGD([torch.nn.Parameter(torch.ones(1))]), 1)
    assert isinstance(schedule.optimizer, optim.Optimizer)
    with pytest.raises(AttributeError, match=r"^optim\.LBFGS: .* accepted are SGD, .*torch\.optim\.LBFGS"):
        _ = optim.LBFGS  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = optim.Nothing  # type: ignore[attr-defined]


def test_frozen_over_a_whole_model_names_the_parameter() -> None:
    frozen = [500]
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 2, sparse=True), torch.nn.Linear(2, 1))
    optimizer = optim.Adam(model.named_parameters(), frozen=frozen)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(IndexError, match=r"\(1\.weight\): frozen: got .*; .* give this one another group$"):
        optimizer.step()
    groups = [{"params": model[0].parameters(), "frozen": frozen}, {"params": model[1].parameters()}]
    optim.Adam(groups).step()


@pytest.mark.parametrize("kind", ["mask", "list"])
def test_frozen_rows_may_thaw_in_place(kind: str) -> None:
    table = torch.nn.Parameter(torch.zeros(4, 1))
    frozen: Any = {"mask": torch.tensor([True, True, False, False]), "list": [0, 1]}
    optimizer = optim.SGD([table], lr=1.0, frozen=frozen[kind])
    table.grad = torch.ones(4, 1)
    optimizer.step()
    frozen[kind][0] = 0 if kind == "mask" else 1
    optimizer.step()
    assert table.flatten().tolist() == [-1.0, 0.0, -2.0, -2.0]


# ---------------------------------------------------------------------- stock arguments
DECAY: dict[str, Any] = {"weight_decay": 0.1}
DOUBLE = functools.partial(torch.tensor, dtype=torch.float64)

#: Arguments of torch's classes. A Tensor stands for its number.
STOCK: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": torch.tensor(0.75), "nesterov": True, **DECAY},
    "Adagrad": {"lr": 0.1, "lr_decay": 0.5, "initial_accumulator_value": 0.1, "maximize": True},
    "RMSprop": {**DECAY, "centered": True, "momentum": 0.1, "foreach": True},
    "Adam": {"betas": (DOUBLE(0.75), DOUBLE(0.875)), "amsgrad": True, "foreach": False, "fused": None},
    "AdamW": {**DECAY, "maximize": True},
    "Adamax": {"betas": (0.3, 0.9)},
    "NAdam": {**DECAY},
    "SparseAdam": {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "maximize": True},
}


@pytest.mark.parametrize("name", STOCK)
def test_stock_arguments(name: str) -> None:
    """Compare optimizers of islices in semantics "torch" with torch's classes, for torch's arguments. After half of the
    steps, each optimizer loads the state of the other."""
    given = STOCK[name]
    torch.manual_seed(0)
    sparse = name == "SparseAdam"
    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    model = (torch.nn.Embedding(5, 2, sparse=True) if sparse else model).double()
    twin, batch = copy.deepcopy(model), torch.tensor([1, 3, 3]) if sparse else torch.randn(7, 4).double()
    pair = [
        (model, getattr(optim, name)(model.parameters(), **{} if sparse else {"semantics": "torch"}, **given)),
        (twin, getattr(torch.optim, name)(list(twin.parameters()), **given)),
    ]
    for step in range(8):
        if step == 4:  # each optimizer continues from the other's state
            held = copy.deepcopy(pair[0][1].state_dict())
            pair[0][1].load_state_dict(pair[1][1].state_dict())
            pair[1][1].load_state_dict(held)
        for network, optimizer in pair:
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
    mine, theirs = (getattr(o, name)([torch.ones(1)]).defaults for o in (optim, torch.optim))
    assert mine.items() >= {k: theirs[k] for k in mine.keys() & theirs.keys()}.items()
