"""islices.backends.torch.optim beside the same steps written with islices.optim, and beside torch.optim's classes.

torch's kernels differ from one rounding an operation by FMA and by MKL's root, as the test of its presets has it: this
file, run as a script without either, compares bits; here, as torch comes, the bound of docs/optimizers.md holds.
"""

from __future__ import annotations

import copy
import doctest
import functools
import importlib
import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import islices  # noqa: E402
from islices.backends.torch import optim  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
ROWS, DIM, STEPS = 40, 4, 12
#: class -> (function of islices.optim, hyperparameters as torch names them, as islices does)
CLASSES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "SGD": ("sgd", {"lr": 0.1}, {"lr": 0.1}),
    "SGD momentum": ("sgd", {"lr": 0.02, "momentum": 0.9, "nesterov": True},
                     {"lr": 0.02, "momentum": 0.9, "nesterov": True}),
    "Adagrad": ("adagrad", {"lr": 0.1, "initial_accumulator_value": 0.2, "lr_decay": 0.1},
                {"lr": 0.1, "initial_accumulator": 0.2, "lr_decay": 0.1}),
    "RowwiseAdagrad": ("rowwise_adagrad", {"lr": 0.1, "weight_decay": 0.1}, {"lr": 0.1, "weight_decay": 0.1}),
    "RMSprop": ("rmsprop", {"alpha": 0.9, "momentum": 0.5, "centered": True},
                {"lr": 0.01, "rho": 0.9, "momentum": 0.5, "centered": True}),
    "Adam": ("adam", {"betas": (0.8, 0.99)}, {"lr": 1e-3, "beta1": 0.8, "beta2": 0.99}),
    "AdamW": ("adamw", {"lr": 0.1}, {"lr": 0.1}),
    "Ftrl": ("ftrl", {"lr": 0.1, "l1": 0.01, "lr_power": -1}, {"lr": 0.1, "l1": 0.01, "lr_power": -1}),
}  # fmt: skip


class Bags(torch.nn.Module):
    """A sparse table of bags with padding and weights, a dense head, and a scalar without dimensions."""

    def __init__(self, dtype: torch.dtype = torch.float32, *, sparse: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.table = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=sparse, padding_idx=0, dtype=dtype)
        self.head = torch.nn.Linear(DIM, 2, dtype=dtype)
        self.scale = torch.nn.Parameter(torch.ones((), dtype=dtype))
        self.unused = torch.nn.Parameter(torch.ones(3, dtype=dtype))
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))

    def loss(self, seed: int, *, most: int = 16, duplicates: bool = True) -> torch.Tensor:
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, ROWS // 2, most) if duplicates else rng.permutation(ROWS)[:most]
        weights = torch.from_numpy(rng.standard_normal(most)).to(self.scale.dtype)
        offsets = torch.tensor([0, most // 4, most // 4, most // 2])
        bags = self.table(torch.from_numpy(ids), offsets, per_sample_weights=weights)
        return (self.scale * self.head(bags)).square().mean()


def train(model: Any, optimizer: Any, steps: range = range(STEPS), **how: Any) -> None:
    for step in steps:
        optimizer.zero_grad()
        model.loss(step, **how).backward()
        optimizer.step()


def train_by_hand(model: Any, optimizer: Any, steps: int = STEPS, **how: Any) -> dict[str, Any]:
    """The same with functions of islices; the state of each parameter."""
    states: dict[str, Any] = {}
    for step in range(steps):
        model.zero_grad()
        model.loss(step, **how).backward()
        for name, p in model.named_parameters():
            if p.grad is None:
                continue
            table, grad = (p, p.grad) if p.ndim else (p.detach().view(1), p.grad.view(1))
            if name not in states:
                states[name] = optimizer.init(table)
            optimizer.step(table, grad, states[name])
    return states


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_examples_in_docstrings() -> None:
    for name in ("nn_utils", "optim", "amp"):
        results = doctest.testmod(importlib.import_module(f"islices.backends.torch.{name}"))
        assert (results.failed, results.attempted > 5) == (0, True)


@pytest.mark.parametrize("rows", ["touched", "all"])
@pytest.mark.parametrize("case", CLASSES)
def test_steps_are_those_of_islices_optim(case: str, rows: str) -> None:
    function, hyper, in_islices = CLASSES[case]
    model, twin = Bags(), Bags()
    start = Bags()
    explicit = {"rows": rows} if rows == "all" else {}  # "touched" would refuse the dense parameters
    optimizer = getattr(optim, case.split()[0])(model.parameters(), **hyper, **explicit)
    train(model, optimizer)
    states = train_by_hand(twin, getattr(islices.optim, function)(**in_islices, rows=rows))
    assert same(model, twin)
    for name, p in model.named_parameters():
        held = optimizer.state.get(p, {})
        mine, theirs = list(held.values()), list(states.get(name, {}).values())
        assert len(mine) == len(theirs)
        assert all(torch.equal(x.reshape(y.shape), y) for x, y in zip(mine, theirs, strict=True)), name
    never = torch.arange(ROWS // 2, ROWS)
    decayed = rows == "all" and hyper.get("weight_decay", 0.01 if case == "AdamW" else 0)
    stayed = torch.equal(model.table.weight[never], start.table.weight[never])
    assert stayed == (not decayed and (rows, case) != ("all", "Ftrl"))
    assert torch.equal(model.table.weight[0], start.table.weight[0]) == stayed
    assert torch.equal(model.unused, start.unused)


@pytest.mark.parametrize("semantics", ["islices", "torch", "keras", "mxnet", "optax", "tensorflow", "fbgemm"])
def test_semantics_and_their_defaults(semantics: str) -> None:
    """The dense formula for dense gradients, where the semantics has one."""
    rows = "touched" if semantics in ("islices", "torch", "mxnet", "tensorflow", "fbgemm") else "all"
    name = "Adagrad" if semantics == "fbgemm" else "Adam"
    model, twin = Bags(), Bags()
    explicit = {"rows": rows} if rows == "all" else {}
    train(model, getattr(optim, name)(model.parameters(), lr=0.1, semantics=semantics, **explicit))
    make = getattr(islices.optim, name.lower())
    sparse = make(0.1, semantics=semantics, rows=rows)
    dense = sparse if semantics == "fbgemm" else make(0.1, semantics=semantics, rows="all")

    class Both:
        init = staticmethod(sparse.init)

        @staticmethod
        def step(table: Any, grad: Any, state: Any) -> Any:
            return (sparse if grad.is_sparse else dense).step(table, grad, state)

    train_by_hand(twin, Both)
    assert same(model, twin)


# ---------------------------------------------------------------------- beside torch.optim
#: class, hyperparameters, rows, torch's class for the sparse table (None: it refuses), whether ids may repeat
BESIDE: dict[str, tuple[str, dict[str, Any], str, str | None, bool]] = {
    "SGD": ("SGD", {"lr": 0.1}, "touched", "SGD", False),
    "SGD momentum, dense": ("SGD", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01}, "all", None, True),
    "Adagrad": ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "eps": 1e-3}, "touched", "Adagrad", True),
    "Adam": ("Adam", {"lr": 0.1}, "touched", "SparseAdam", True),
    "Adam, dense": ("Adam", {"lr": 0.1, "betas": (0.4, 0.9), "weight_decay": 0.1}, "all", None, True),
    "AdamW, dense": ("AdamW", {"lr": 0.1}, "all", None, True),
    "RMSprop, dense": ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True, "eps": 1e-2}, "all", None, True),
}  # fmt: skip


class RoundedRoot(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """torch with a root that is correctly rounded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.sqrt.default:
            return torch.from_numpy(np.asarray(np.sqrt(args[0].numpy())))
        if func is torch.ops.aten.sqrt_.default:
            return args[0].copy_(torch.from_numpy(np.asarray(np.sqrt(args[0].numpy()))))
        return func(*args, **(kwargs or {}))


def beside_torch(case: str, dtype: Any, root: Callable[[], Any] = nullcontext) -> float:
    """The largest difference of a weight from torch's, both fed the gradients of torch's course, in units of eps * (its
    largest size so far + the sum of its changes)."""
    name, hyper, rows, sparse, duplicates = BESIDE[case]
    how = {"most": 16, "duplicates": duplicates}
    mine, theirs = Bags(dtype), Bags(dtype, sparse=sparse is not None)
    explicit = {"rows": rows} if rows == "all" else {}
    optimizer = getattr(optim, name)(mine.parameters(), **hyper, **explicit, semantics="torch")
    rest = [p for p in theirs.parameters() if p is not theirs.table.weight]
    own = [getattr(torch.optim, name)(rest, **hyper)]
    own.append(getattr(torch.optim, sparse or name)([theirs.table.weight], **hyper))
    worst, largest, changes = 0.0, {}, {}
    for step in range(STEPS):
        theirs.zero_grad()
        theirs.loss(step, **how).backward()
        before = {n: p.detach().clone() for n, p in theirs.named_parameters()}
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
            p.grad = None if q.grad is None else q.grad.clone()
        with root():
            for one in own:
                one.step()
        optimizer.step()
        for (n, p), q in zip(theirs.named_parameters(), mine.parameters(), strict=True):
            b = p.detach().double()
            largest[n] = torch.maximum(largest.get(n, before[n].double().abs()), b.abs())
            changes[n] = changes.get(n, before[n].double().abs()) + (b - before[n]).abs()
            scale = torch.finfo(dtype).eps * (largest[n] + changes[n])
            assert bool(b.isfinite().all())
            worst = max(worst, ((q.detach().double() - b).abs() / torch.where(scale > 0, scale, 1)).max().item())
    return worst


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", BESIDE)
@pytest.mark.repeats_where(lambda dtype: dtype == "float64")
def test_torch_semantics_follow_torch(case: str, dtype: str) -> None:
    """FMA and MKL's root: to the 8 units of docs/optimizers.md."""
    assert beside_torch(case, getattr(torch, dtype)) <= 8.0


@pytest.fixture(scope="module")
def exact() -> dict[str, Any]:
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.outside
@pytest.mark.parametrize("case", BESIDE)
@pytest.mark.one_in(3)
def test_bits_of_torch_where_it_rounds_once(exact: dict[str, Any], case: str) -> None:
    """x86-64; other processors may have FMA in torch's default kernels: the bound then."""
    assert not (exact["contracts"] and platform.machine() in ("x86_64", "AMD64"))
    assert max(exact[case]) <= (8.0 if exact["contracts"] else 0.0), exact[case]


# ---------------------------------------------------------------------- groups and hyperparameters
def test_groups_have_hyperparameters_of_their_own() -> None:
    model, twin = Bags(), Bags()
    groups = [
        {"params": model.table.parameters(), "lr": 0.5, "rows": "all"},
        {"params": [model.scale], "weight_decay": 0.3},
        {"params": model.head.parameters(), "semantics": "keras", "rows": "all", "maximize": True},
    ]
    optimizer = optim.Adam(groups, lr=0.1, betas=(0.5, 0.9))
    assert [g["eps"] for g in optimizer.param_groups] == [1e-8, 1e-8, 1e-8]
    model.loss(0).backward()
    twin.loss(0).backward()
    optimizer.step()
    betas = {"beta1": 0.5, "beta2": 0.9, "eps": 1e-8}
    by = {
        "table.weight": islices.optim.adam(0.5, **betas, rows="all"),
        "scale": islices.optim.adam(0.1, **betas, weight_decay=0.3),
        "head.weight": islices.optim.adam(0.1, **betas, semantics="keras", rows="all", maximize=True),
    }
    by["head.bias"] = by["head.weight"]
    for name, p in twin.named_parameters():
        if p.grad is not None:
            table, grad = (p, p.grad) if p.ndim else (p.detach().view(1), p.grad.view(1))
            by[name].step(table, grad, by[name].init(table))
    assert same(model, twin)


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
            optimizer.param_groups[0]["momentum"] = 0.5  # a buffer begins with zeros, then
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
        ("Adam", {"lr": -1.0}, ValueError, r"^lr: got -1\.0; accepted is a finite number >= 0"),
        ("Adam", {"lr": float("nan")}, ValueError, "^lr: got nan"),
        ("Adam", {"lr": torch.tensor([1.0, 2.0])}, TypeError, r"^lr: got torch.Tensor .* a Tensor of one$"),
        ("Adam", {"lr": torch.tensor(-1.0)}, ValueError, r"^lr: got -1\.0"),
        ("Adam", {"lr": lambda step: 0.1}, TypeError, r"^lr: got function.*torch\.optim\.lr_scheduler"),
        ("Adam", {"betas": (1.0, 0.9)}, ValueError, r"^betas\[0\]: got 1\.0; accepted is 0 <= value < 1"),
        ("Adam", {"betas": (0.9, -0.1)}, ValueError, r"^betas\[1\]: got -0\.1"),
        ("Adam", {"betas": 0.9}, TypeError, r"^betas: got 0\.9; accepted are two numbers"),
        ("Adam", {"eps": -1e-8}, ValueError, "^eps: got -1e-08"),
        ("Adam", {"weight_decay": -1}, ValueError, "^weight_decay: got -1"),
        (
            "Adam",
            {"amsgrad": True, "semantics": "mxnet"},
            ValueError,
            "^amsgrad: got True; adam with sem",
        ),
        ("Adam", {"differentiable": True}, ValueError, "^differentiable: got True; accepted is False: .*no gradient"),
        ("Adam", {"capturable": True}, ValueError, "^capturable: got True; accepted is False: .*CUDA graph"),
        ("Adam", {"decoupled_weight_decay": True}, ValueError, "^decoupled_weight_decay: got True; .*AdamW has it"),
        ("Adam", {"momentum": 0.9}, TypeError, "momentum"),
        ("Adam", {"rows": "some"}, ValueError, "^rows: got 'some'"),
        ("Adam", {"semantics": "theano"}, ValueError, "^semantics: got 'theano'; adam has islices, keras"),
        ("Adam", {"master": "yes"}, TypeError, "^master: got 'yes'"),
        ("AdamW", {"semantics": "torch", "rows": "touched"}, ValueError, "^rows: got 'touched'; adamw .* has 'all'"),
        ("RMSprop", {"alpha": 1.5}, ValueError, r"^alpha: got 1\.5"),
        ("SGD", {"momentum": -0.1}, ValueError, r"^momentum: got -0\.1"),
        ("SGD", {"nesterov": True, "semantics": "torch", "rows": "all"}, ValueError, "^nesterov: got True"),
        ("Adagrad", {"initial_accumulator_value": -1}, ValueError, "^initial_accumulator_value: got -1"),
        ("Adagrad", {"lr_decay": 0.1, "semantics": "mxnet"}, ValueError, "^lr_decay: got 0.1; adagrad with sem"),
        ("Ftrl", {"lr": 0.0}, ValueError, "^lr: got 0.0; accepted is a finite number above 0, since FTRL div"),
        ("Ftrl", {}, TypeError, "^lr: got none; ftrl with semantics='islices' has no default"),
        ("RowwiseAdagrad", {"lr": 0.1, "semantics": "torch"}, ValueError, "^semantics: got 'torch'; rowwise_adagrad"),
    ],
)
def test_bad_hyperparameters(cls: str, given: dict[str, Any], error: type[Exception], message: str) -> None:
    p = torch.nn.Parameter(torch.ones(2, 1))
    with pytest.raises(error, match=message):
        getattr(optim, cls)([p], **given)
    if error is ValueError and cls != "Ftrl" and "semantics" not in given and "rows" not in given:
        optimizer = getattr(optim, cls)([p])
        with pytest.raises((TypeError, ValueError)):  # a group of its own is looked at no less
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], **given})
        assert len(optimizer.param_groups) == 1


# ---------------------------------------------------------------------- which rows move
def stepped(make: Callable[..., Any], steps: int = 3, *, sparse: bool = True) -> list[int]:
    """Return the rows that some steps on row 2 move."""
    layer = torch.nn.Embedding.from_pretrained(torch.ones(5, 1), freeze=False, sparse=sparse)
    optimizer = make(layer.named_parameters())
    for row in [3, *[2] * steps]:
        optimizer.zero_grad()
        layer(torch.tensor([row])).sum().backward()
        before = layer.weight.detach().clone()
        optimizer.step()
    return (layer.weight != before).flatten().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("cls", "given", "moved"),
    [
        ("AdamW", {"semantics": "torch"}, [0, 1, 2, 3, 4]),
        ("RMSprop", {"semantics": "torch", "momentum": 0.5}, [2, 3]),
        ("SGD", {"semantics": "torch", "momentum": 0.5}, [2, 3]),
        ("Adam", {"semantics": "optax"}, [2, 3]),
    ],
)
def test_a_sparse_gradient_that_moves_all_rows_warns_once(cls: str, given: dict[str, Any], moved: list[int]) -> None:
    def make(params: Any, **options: Any) -> Any:
        return getattr(optim, cls)(params, lr=0.1, **given, **options)

    with pytest.warns(
        UserWarning, match=r"\(weight\): a sparse gradient moves all rows.*rows='all'.*'islices'"
    ) as found:
        assert stepped(make) == moved
    assert [(x.category, x.filename) for x in found] == [(UserWarning, __file__)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stepped(functools.partial(make, rows="all")) == moved
        if cls == "AdamW":
            assert stepped(make, sparse=False) == moved


@pytest.mark.parametrize(
    ("cls", "given", "raises"),
    [
        ("Adam", {}, True),
        ("Adam", {"semantics": "torch"}, True),
        ("SparseAdam", {}, True),  # as torch's
        ("SGD", {"momentum": 0.5}, True),
        ("SGD", {"weight_decay": 0.5}, True),
        ("SGD", {}, False),
        ("Adagrad", {"semantics": "torch"}, False),
    ],
)
def test_rows_touched_that_is_asked_for_refuses_a_dense_gradient_that_moves_others(
    cls: str, given: dict[str, Any], raises: bool
) -> None:
    rows = {} if cls == "SparseAdam" else {"rows": "touched"}

    def make(params: Any) -> Any:
        return getattr(optim, cls)(params, lr=0.1, **rows, **given)

    assert stepped(make) == [2]
    if not raises:
        assert stepped(make, sparse=False) == [2]
        return
    words = r"\['params'\]\[0\] \(weight\): rows: got 'touched' and a dense gradient.*sparse=True\)\), or rows left out"
    with pytest.raises(ValueError, match=words):
        stepped(make, sparse=False)


def test_sparse_adam_is_torchs() -> None:
    pair = [torch.nn.Embedding.from_pretrained(torch.ones(5, 2), freeze=False, sparse=True) for _ in range(2)]
    ours = optim.SparseAdam(pair[0].parameters(), 0.1, (0.8, 0.9), 1e-3, maximize=True)
    theirs = torch.optim.SparseAdam(list(pair[1].parameters()), 0.1, (0.8, 0.9), 1e-3, maximize=True)
    for step in range(8):
        if step == 4:  # each goes on from the other's state
            held = copy.deepcopy(ours.state_dict())
            ours.load_state_dict(theirs.state_dict())
            theirs.load_state_dict(held)
        for layer, optimizer in zip(pair, (ours, theirs), strict=True):
            optimizer.zero_grad()
            layer(torch.tensor([step % 3, 3, 3])).square().sum().backward()
            optimizer.step()
    assert torch.allclose(pair[0].weight, pair[1].weight, rtol=1e-6, atol=0)
    assert pair[0].weight[4].tolist() == [1.0, 1.0]


def test_names_of_torch_optim() -> None:
    """The module stands in the place of torch.optim."""
    schedule = optim.lr_scheduler.StepLR(optim.SGD([torch.nn.Parameter(torch.ones(1))]), 1)
    assert isinstance(schedule.optimizer, optim.Optimizer)
    with pytest.raises(AttributeError, match=r"^optim\.LBFGS: .* accepted are SparseAdam, .*torch\.optim\.LBFGS"):
        _ = optim.LBFGS  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = optim.Nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("frozen", [[500], torch.zeros(1000, dtype=torch.bool)], ids=["rows", "mask"])
def test_frozen_over_a_whole_model_names_the_parameter(frozen: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 2, sparse=True), torch.nn.Linear(2, 1))
    optimizer = optim.Adam(model.named_parameters(), frozen=frozen)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(
        (IndexError, ValueError), match=r"\(1\.weight\): frozen: got .*; .* give this one another group$"
    ):
        optimizer.step()
    groups = [{"params": model[0].parameters(), "frozen": frozen}, {"params": model[1].parameters()}]
    optim.Adam(groups).step()


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad", "RMSprop"])
def test_defaults_are_those_of_torch(name: str) -> None:
    p = [torch.nn.Parameter(torch.ones(1))]
    mine, theirs = getattr(optim, name)(p).defaults, getattr(torch.optim, name)(p).defaults
    hyper = [k for k in mine if k in theirs]
    assert {"lr", "maximize", "weight_decay"} <= set(hyper)
    assert [mine[k] for k in hyper] == [theirs[k] for k in hyper]


# ---------------------------------------------------------------------- what a step looks at first
def bad_gradients() -> Iterator[tuple[str, Callable[[Any], Any], type[Exception], str]]:
    def sparse(rows: list[int], shape: tuple[int, ...] = (5, 2), **how: Any) -> Any:
        values = torch.ones(len(rows), *shape[1:])
        return torch.sparse_coo_tensor([rows], values, shape, check_invariants=False, **how)

    yield "out of range", lambda: sparse([1, 5]), IndexError, "got 5 at position 1"
    yield "negative", lambda: sparse([-1]), IndexError, "got -1 at position 0"
    yield "falsely coalesced", lambda: sparse([2, 1], is_coalesced=True), ValueError, "claimed coalesced"
    yield "two sparse dimensions", lambda: torch.ones(5, 2).to_sparse(), ValueError, "2 sparse dimensions"


@pytest.mark.parametrize(
    ("make", "error", "message"), [b[1:] for b in bad_gradients()], ids=[b[0] for b in bad_gradients()]
)
def test_a_bad_gradient_changes_nothing_in_any_group(make: Any, error: type[Exception], message: str) -> None:
    good, first, bad = (torch.nn.Parameter(torch.ones(5, 2)) for _ in range(3))
    optimizer = optim.Adam([{"params": [("good", good)]}, {"params": [("first", first), ("bad", bad)]}], lr=0.1)
    for p in (good, first, bad):
        p.grad = torch.ones(5, 2)
    optimizer.step()
    before = {
        p: (p.detach().clone(), {k: x.clone() for k, x in optimizer.state[p].items()}) for p in (good, first, bad)
    }
    bad.grad = make()
    with pytest.raises(error, match=rf"^param_groups\[1\]\['params'\]\[1\] \(bad\): .*{message}"):
        optimizer.step()
    for p, (weights, state) in before.items():
        assert torch.equal(p, weights)
        assert all(torch.equal(optimizer.state[p][k], x) for k, x in state.items())
    fresh = optim.Adam([good, bad])  # nor is a state begun
    with pytest.raises(error):
        fresh.step()
    assert len(fresh.state) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", -1.0), ("betas", (2.0, 0.9)), ("rows", "none"), ("master", 3), ("eps", torch.ones(2)), ("lr", None)],
    ids=str,
)
def test_a_group_made_bad_between_steps(name: str, value: Any) -> None:
    one, two = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = optim.Adam([{"params": [one]}, {"params": [two]}], lr=0.1)
    one.grad, two.grad = torch.ones(2), torch.ones(2)
    optimizer.param_groups[1][name] = value
    with pytest.raises((TypeError, ValueError), match=r"^param_groups\[1\]: " + name):
        optimizer.step()
    assert one.tolist() == [1.0, 1.0]


def test_rows_may_be_frozen_and_parameters_too() -> None:
    model, start = Bags(), Bags()
    model.head.bias.requires_grad_(False)
    frozen = torch.zeros(ROWS, dtype=torch.bool)
    frozen[:10] = True
    groups = [{"params": model.table.parameters(), "frozen": frozen}, {"params": model.head.parameters()}]
    optimizer = optim.AdamW(groups, lr=0.1)
    train(model, optimizer)
    assert torch.equal(model.table.weight[:10], start.table.weight[:10])
    assert not torch.equal(model.table.weight[10:20], start.table.weight[10:20])
    assert torch.equal(model.head.bias, start.head.bias)
    assert model.head.bias not in optimizer.state
    assert not torch.equal(model.head.weight, start.head.weight)
    between = copy.deepcopy(model)
    optimizer.param_groups[0]["frozen"] = torch.arange(10, ROWS)  # all rows but those
    train(model, optimizer)
    assert torch.equal(model.table.weight[10:], between.table.weight[10:])
    assert not torch.equal(model.table.weight[1:10], between.table.weight[1:10])


@pytest.mark.parametrize("kind", ["mask", "Tensor", "list"])
def test_frozen_rows_may_thaw_in_place(kind: str) -> None:
    table = torch.nn.Parameter(torch.zeros(4, 1))
    frozen: Any = {"mask": torch.tensor([True, True, False, False]), "Tensor": torch.tensor([0, 1]), "list": [0, 1]}
    optimizer = optim.SGD([table], lr=1.0, frozen=frozen[kind])
    table.grad = torch.ones(4, 1)
    optimizer.step()
    frozen[kind][0] = 0 if kind == "mask" else 1
    optimizer.step()
    assert table.flatten().tolist() == [-1.0, 0.0, -2.0, -2.0]


def test_a_learning_rate_of_zero_stops_ftrl_before_it_divides() -> None:
    table = torch.nn.Parameter(torch.ones(4, 1))
    optimizer = optim.Ftrl([table], lr=0.1)
    table.grad = torch.ones(4, 1)
    optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(ValueError, match=r"^param_groups\[0\]: lr: got 0.0; accepted is .* above 0"):
        optimizer.step()
    assert table.flatten().tolist() == [1.0] * 4


def test_a_parameter_stands_in_one_place() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    twice = pytest.raises(ValueError, match=r"^params: got one parameter twice")
    with twice, pytest.warns(UserWarning, match="duplicate parameters"):
        optim.SGD([p, p])
    optimizer = optim.SGD([p])
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": p})
    with pytest.raises(ValueError, match="empty parameter list"):
        optim.SGD([])
    with pytest.raises(TypeError, match="dict"):
        optimizer.add_param_group([p])
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_with_a_master(dtype: torch.dtype) -> None:
    model, twin = Bags(dtype), Bags(dtype)
    optimizer = optim.Adagrad([*model.table.parameters(), *model.head.parameters()], lr=1e-4, master=True)
    train(model, optimizer, range(5))
    by_hand = islices.optim.adagrad(1e-4)
    states = {p: by_hand.init(p, master=True) for p in (twin.table.weight, twin.head.weight, twin.head.bias)}
    for step in range(5):
        twin.zero_grad()
        twin.loss(step).backward()
        for p, state in states.items():
            by_hand.step(p, p.grad, state)
    assert same(model, twin)
    master = optimizer.state[model.table.weight]["master"]
    assert master.dtype == torch.float32
    assert torch.equal(master, states[twin.table.weight]["master"])
    assert not torch.equal(master, model.table.weight.float())


def all_exact() -> dict[str, Any]:
    a = torch.linspace(0, 1, 4099)
    kinds = (torch.float32, torch.float64)
    report: dict[str, Any] = {case: [beside_torch(case, kind, RoundedRoot) for kind in kinds] for case in BESIDE}
    return {**report, "contracts": not torch.equal(a.addcmul(a, a), a + a * a)}


if __name__ == "__main__":
    print(json.dumps(all_exact()))


# ---------------------------------------------------------------------- stock arguments on a dense model
DECAY: dict[str, Any] = {"weight_decay": 0.1}
DOUBLE = functools.partial(torch.tensor, dtype=torch.float64)
STOCK: dict[str, list[dict[str, Any]]] = {
    "SGD": [{}, {"lr": torch.tensor(0.001)}, {**DECAY, "maximize": True}, {"momentum": 0.9, "dampening": 0.5, **DECAY},
            {"momentum": torch.tensor(0.75), "nesterov": True, **DECAY}],
    "Adagrad": [{}, {"initial_accumulator_value": 0.1, **DECAY}, {"lr": 0.1, "lr_decay": 0.5, "maximize": True}],
    "RMSprop": [{}, {**DECAY, "centered": True, "momentum": 0.1}, {"centered": True, "maximize": True}],
    "Adam": [{}, {**DECAY, "maximize": True}, {**DECAY, "amsgrad": True}, {"betas": (0.3, 0.9), "amsgrad": True},
             # torch computes with a Tensor of float32 in float32; here it is the number in it
             {"lr": DOUBLE(0.001), "betas": (DOUBLE(0.75), DOUBLE(0.875))}],
    "AdamW": [{}, {"lr": 0.01, "amsgrad": True}, {**DECAY, "maximize": True}],
}  # fmt: skip


@pytest.mark.parametrize("flags", [{}, {"foreach": True}, {"foreach": False, "fused": None}], ids=str)
@pytest.mark.parametrize("name", STOCK)
@pytest.mark.repeats_where(lambda flags: bool(flags))
@pytest.mark.one_in(3)
def test_stock_arguments_on_a_dense_model(name: str, flags: dict[str, Any]) -> None:
    """semantics="torch" and nothing else beside what torch's class takes; then either loads the other's state."""
    for given in STOCK[name]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
        twin = copy.deepcopy(model)
        theirs = getattr(torch.optim, name)(twin.parameters(), **given)
        ours = getattr(optim, name)(model.parameters(), semantics="torch", **given, **flags)
        batch = torch.randn(7, 4, dtype=torch.float64)
        for _ in range(5):
            for network, optimizer in ((model, ours), (twin, theirs)):
                optimizer.zero_grad()
                network(batch).square().mean().backward()
                optimizer.step()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-13)
        loaded = getattr(torch.optim, name)(twin.parameters(), **given)
        loaded.load_state_dict(ours.state_dict())
        for q, held in theirs.state.items():
            arrays = {key: x for key, x in held.items() if isinstance(x, torch.Tensor) and key != "step"}
            assert arrays.keys() <= loaded.state[q].keys()
            for key, x in arrays.items():
                torch.testing.assert_close(loaded.state[q][key], x, rtol=1e-11, atol=1e-13)
        ours.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("name", ["Adagrad", "Adam"])
def test_duplicates_squared_one_by_one(name: str) -> None:
    """Keras's on TensorFlow: the bits of islices.optim; a state_dict keeps it, dense gradients are stepped as ever."""
    model, twin = Bags(), Bags()
    options = {"semantics": "keras", "duplicates": "raw"}
    optimizer = getattr(optim, name)(model.parameters(), lr=0.1, **options)
    rule = getattr(islices.optim, name.lower())(0.1, rows="all" if name == "Adam" else None, **options)
    tables = {n: p.detach().reshape(-1, *p.shape[1:]).clone() for n, p in twin.named_parameters()}
    states = {n: rule.init(x) for n, x in tables.items()}
    for step in range(3):
        optimizer.zero_grad()
        model.loss(step).backward()
        for n, p in model.named_parameters():
            if p.grad is not None:
                grad = p.grad if p.ndim else p.grad.reshape(1)
                tables[n], states[n] = rule.step(tables[n], grad, states[n])
        optimizer.step()
        if step == 1:
            saved, optimizer = optimizer.state_dict(), getattr(optim, name)(model.parameters(), lr=0.1)
            optimizer.load_state_dict(saved)
    for n, p in model.named_parameters():
        assert torch.equal(p.detach().reshape(tables[n].shape), tables[n]), n
    with pytest.raises(ValueError, match=r"^duplicates: got 'twice'"):
        optim.Adam(model.parameters(), semantics="keras", duplicates="twice")
    with pytest.raises(ValueError, match=r"^duplicates: got 'raw'; adam .* has 'sum' only"):
        optim.Adam(model.parameters(), semantics="torch", duplicates="raw")
