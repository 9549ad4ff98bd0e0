"""Test checkpoints of islices.backends.torch.optim. An interrupted run ends with the bits of an uninterrupted one, and
optimizers load torch's states."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch_models import Bags, train

import islices
from islices.backends.torch import adapter, optim, start_from, state_of

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD momentum": ("SGD", {"lr": torch.tensor(0.01), "momentum": 0.9, "dampening": 0.2}),
    "RowwiseAdagrad": ("RowwiseAdagrad", {"lr": 0.1}),
    "Adam torch": ("Adam", {"lr": 0.1, "semantics": "torch"}),
    "AdamW keras": ("AdamW", {"semantics": "keras", "rows": "all", "maximize": True}),
    "Ftrl": ("Ftrl", {"lr": 0.1, "frozen": [1]}),
}


def made(model: Bags, case: str) -> Any:
    name, hyper = CASES[case]
    tables = model.head.weight if "frozen" in hyper else model.parameters()
    return getattr(optim, name)([tables] if "frozen" in hyper else tables, **copy.deepcopy(hyper))


def assert_same_state(a: Any, b: Any) -> None:
    assert [list(s) for s in a.state.values()] == [list(s) for s in b.state.values()]
    for x, y in zip(a.state.values(), b.state.values(), strict=True):
        for name in x:
            assert (x[name].dtype, x[name].shape) == (y[name].dtype, y[name].shape), name
            assert torch.equal(x[name], y[name]), name
            assert x[name].data_ptr() != y[name].data_ptr()


def written(*objects: Any) -> list[Any]:
    """Return the objects' state dicts after torch.save and torch.load(weights_only=True)."""
    file = io.BytesIO()
    torch.save([x.state_dict() for x in objects], file)
    file.seek(0)
    return torch.load(file, weights_only=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, torch.float32) for case in CASES), ("RowwiseAdagrad", torch.bfloat16)], ids=str
)
def test_an_interrupted_run_ends_with_the_same_bits(case: str, dtype: torch.dtype) -> None:
    whole, part = Bags(dtype), Bags(dtype)
    optimizer, before = made(whole, case), made(part, case)
    if dtype is torch.bfloat16:
        for o in (optimizer, before):
            o.param_groups[0]["master"] = True
    train(whole, optimizer, 0, 9)
    train(part, before, 0, 4)
    saved = written(part, before)
    twin, its = copy.deepcopy((part, before))
    rest = Bags(dtype)
    after = made(rest, case)
    rest.load_state_dict(saved[0])
    after.load_state_dict(saved[1])
    assert_same_state(before, after)
    assert after.param_groups[0].keys() == before.param_groups[0].keys()
    for model, o in ((rest, after), (twin, its)):
        train(model, o, 4, 9)
        assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), model.parameters(), strict=True))
        assert_same_state(optimizer, o)
    assert {x.dtype for held in after.state.values() for x in held.values()} == {torch.int32, torch.float32}


# ---------------------------------------------------------------------- torch's states


def test_momentum_of_sparse_gradients_is_given_as_a_dense_array() -> None:
    layer = torch.nn.Embedding(5, 2, sparse=True)
    sgd = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    layer(torch.tensor([3, 1, 3])).sum().backward()
    sgd.step()
    assert sgd.state[layer.weight]["momentum_buffer"].layout is torch.sparse_coo
    named = state_of(sgd, layer)
    assert named["weight"]["momentum"].layout is torch.strided
    ours = optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    start_from(ours, layer, named, semantics="torch")
    assert ours.state[layer.weight]["momentum_buffer"].tolist() == [[0, 0], [1, 1], [0, 0], [2, 2], [0, 0]]


def saved_of(name: str, steps: int = 2, **hyper: Any) -> Any:
    model = Bags(sparse=False)
    optimizer = getattr(torch.optim, name)(model.parameters(), **hyper)
    train(model, optimizer, 0, steps)
    return optimizer.state_dict()


@pytest.mark.parametrize("name", ["Adagrad", "Adam", "AdamW", "NAdam", "RMSprop", "SGD"])
def test_a_state_from_before_the_first_step_loads(name: str) -> None:
    options = {"lr": 0.25, "weight_decay": 0.125}
    optimizer = getattr(optim, name)(Bags(sparse=False).parameters(), 0.1)
    optimizer.load_state_dict(saved_of(name, steps=0, **options))
    assert {k: optimizer.param_groups[0][k] for k in options} == options


def spoiled(**changes: Any) -> Any:
    saved = saved_of("Adam")
    saved["state"][4] |= changes
    return saved


@pytest.mark.parametrize(
    ("name", "options", "saved", "message"),
    [
        ("Adam", {}, lambda: optim.AdamW(Bags().parameters()).state_dict(), ": got True; accepted by optim.AdamW"),
        ("NAdam", {}, lambda: saved_of("Adam"), r"param_groups\[0\]: got 'amsgrad'; accepted by NAdam are 'lr'"),
        ("Adam", {}, lambda: saved_of("RMSprop"), r"'square_avg'; Adam with semantics='islices' has 'step', 'exp_avg'"),
        ("RowwiseAdagrad", {"lr": 0.1}, lambda: saved_of("Adagrad"), r"sum: got shape \(40, 4\); .* is \(40,\)"),
        ("SGD", {"semantics": "keras"}, lambda: saved_of("SGD", momentum=0.9), "torch's momentum_buffer for semantics"),
        ("Adam", {}, lambda: spoiled(exp_avg=7), r"\[4\]: exp_avg: got int 7; accepted is a Tensor of floats"),
        ("Adam", {}, lambda: spoiled(master=torch.zeros(2)), r"\[4\]: master: got one for a parameter of float32"),
        ("AdamW", {}, lambda: saved_of("SGD", steps=0), r"'momentum', .*'nesterov'; accepted by AdamW are 'lr'"),
        ("Ftrl", {"lr": 0.1}, lambda: {"state": {}, "param_groups": [{"params": [*range(5)], "lr": 0}]}, "lr: got 0"),
    ],
)  # fmt: skip
def test_a_state_that_does_not_fit_changes_nothing(
    name: str, options: dict[str, Any], saved: Any, message: str
) -> None:
    model = Bags(sparse=False)
    optimizer = getattr(optim, name)(model.parameters(), **{"rows": "all", **options})
    if "keras" not in options.values():
        train(model, optimizer, 0, 1)
    before = copy.deepcopy(optimizer)
    with pytest.raises((TypeError, ValueError), match=message):
        optimizer.load_state_dict(saved())
    assert_same_state(before, optimizer)
    rest = [{k: v for k, v in o.param_groups[0].items() if k != "params"} for o in (before, optimizer)]
    assert rest[0] == rest[1]


def test_hooks_of_the_user_see_tensors() -> None:
    model = Bags()
    optimizer = optim.Adam(model.parameters())
    train(model, optimizer, 0, 1)
    seen: list[Any] = []
    other = optim.Adam(Bags().parameters())
    other.register_load_state_dict_pre_hook(lambda o, s: seen.append(s["state"][0]["exp_avg"]))
    other.register_load_state_dict_post_hook(lambda o: seen.append(next(iter(o.state.values()))["exp_avg"]))
    other.load_state_dict(optimizer.state_dict())
    other.load_state_dict(optimizer.state_dict())
    assert len(seen) == 4
    assert all(torch.equal(x, seen[0]) for x in seen)


def test_what_a_hook_puts_beside_the_states_of_parameters_is_kept() -> None:
    layer = torch.nn.Embedding(4, 2, sparse=True)
    saving, loading = (optim.Adam(layer.parameters()) for _ in range(2))
    saving.register_state_dict_pre_hook(lambda optimizer: optimizer.state.update(note=1))
    layer(torch.tensor([1, 1])).sum().backward()
    saving.step()
    saved = saving.state_dict()
    assert saved["state"]["note"] == 1
    loading.load_state_dict(saved)
    assert loading.state["note"] == 1
    torch.testing.assert_close(loading.state[layer.weight], saving.state[layer.weight], rtol=0, atol=0)


def test_a_large_state_is_torch_s_own_in_all_but_its_pages() -> None:
    shape = (adapter.HUGE // 64, 64)
    table = torch.ones(shape)
    state = islices.optim.adam(0.1).init(table)
    for x in (state["m"], state["v"]):
        assert (x.dtype, tuple(x.shape), x.data_ptr() % 64) == (torch.float32, shape, 0)
        assert not x.any()
    whole = io.BytesIO()
    torch.save(state, whole)
    whole.seek(0)
    state = torch.load(whole) | {"v": copy.deepcopy(state["v"]).share_memory_()}
    s = islices.IndexedSlices(torch.ones(2, 64), torch.tensor([3, 3]), shape)
    got, state = islices.optim.adam(0.1).step(table, s, state)
    assert got is table
    assert state["v"].is_shared()
    assert sorted(set(torch.nonzero(state["m"])[:, 0].tolist())) == [3]


@pytest.mark.parametrize(
    ("theirs", "ours", "options", "warns"),
    [
        (torch.optim.SGD, optim.SGD, {"momentum": 0.9}, True),
        (torch.optim.SparseAdam, optim.Adam, {}, True),
        (torch.optim.SGD, optim.SGD, {}, False),
        (torch.optim.Adagrad, optim.Adagrad, {}, False),
        (torch.optim.SparseAdam, optim.SparseAdam, {}, False),
    ],
)
def test_a_state_of_torch_that_another_formula_continues_warns(
    theirs: Any, ours: Any, options: dict[str, Any], warns: bool, recwarn: Any
) -> None:
    table = torch.nn.Embedding(5, 2, sparse=True)
    before, after = theirs(table.parameters(), lr=0.1, **options), ours(table.parameters(), lr=0.1, **options)
    table(torch.tensor([1])).sum().backward()
    before.step()
    after.load_state_dict(before.state_dict())
    recwarn.clear()
    for _ in range(2):
        after.step()
    texts = [str(w.message) for w in recwarn if "the loaded state is of torch's class" in str(w.message)]
    assert len(texts) == warns
