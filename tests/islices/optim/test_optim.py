"""Test properties of optimizers: steps in place, steps that raise, several tables, frozen rows, checkpoints,
warnings."""

from __future__ import annotations

import copy
import importlib
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same, host

import islices
from islices import optim
from tests.shared.tables import KINDS, TABLES, of, tensorflow_variable, torch_parameter

ROWS, DIM = 12, 3
START = (np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM) - 17) / 8
RNG = np.random.default_rng(0)
BATCHES = [
    (RNG.integers(0, ROWS, n), RNG.standard_normal((n, DIM)).astype(np.float32)) for n in (9, 4, 0, 1, 9, 6, 3, 9)
]
BACKENDS = islices.list_backends()


#: the tests of the Keras module cover steps on Keras variables
KINDS = [kind for kind in KINDS if kind != "Keras variable"]
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "rowwise_adagrad": lambda **o: optim.rowwise_adagrad(0.1, **o),
    "adam": lambda **o: optim.adam(0.1, weight_decay=0.01, **o),
}


def gradient(name: str, batch: tuple[np.ndarray, np.ndarray], rows: int | None = ROWS, **options: Any) -> Any:
    B = islices.get_backend(name)
    ids, values = batch
    return islices.IndexedSlices(B.asarray(values), B.asarray(ids), (rows, DIM), **options)


def contents(table: Any, state: dict[str, Any]) -> dict[str, np.ndarray]:
    return {"table": host(table)} | {key: host(x) for key, x in state.items()}


def train(
    name: str, table: Any, optimizer: optim.Optimizer, batches: Any = BATCHES, state: Any = None
) -> tuple[Any, Any]:
    state = optimizer.init(table) if state is None else state
    for batch in batches:
        table, state = optimizer.step(table, gradient(name, batch), state)
    return table, state


# ---------------------------------------------------------------------- results
@pytest.mark.parametrize("kind", KINDS)
def test_in_place_where_the_framework_is(kind: str) -> None:
    name, make, in_place = TABLES[kind]
    own = make(START)
    given = islices.Table(own, padding_idx=0)
    optimizer = optim.adam(0.1)
    state = optimizer.init(given)
    assert [type(x) is type(own) for x in state.values()] == [kind != "torch Parameter"] * 3
    table, after = train(name, given, optimizer, state=state)
    assert (table is given) is in_place
    assert all((after[key] is state[key]) is in_place for key in state)
    assert table.padding_idx == 0
    wanted = train("numpy", START.copy(), optimizer)
    assert_same(contents(table, after), contents(*wanted))
    np.testing.assert_array_equal(host(own), wanted[0] if in_place else START)


def test_the_users_parameter_keeps_its_flags() -> None:
    pytest.importorskip("torch")
    table = torch_parameter(START)
    out, state = train("torch", table, optim.adam(0.1))
    assert out is table
    assert table.is_leaf
    assert table.requires_grad
    assert table.grad is None
    assert not any(x.requires_grad for x in state.values())


@pytest.mark.parametrize("name", BACKENDS)
def test_native_gradients_dense_gradients_and_none(name: str) -> None:
    B, optimizer = islices.get_backend(name), optim.adam(0.1)
    batch = BATCHES[0]
    wanted = contents(*train("numpy", START.copy(), optimizer, [batch]))
    for grad in (islices.to_native(gradient(name, batch)), gradient(name, batch, rows=None)):
        table = B.asarray(START)
        assert_same(contents(*optimizer.step(table, grad, optimizer.init(table))), wanted)
    table = B.asarray(START)
    state = optimizer.init(table)
    for grad, options in ((None, {}), (gradient(name, batch), {"apply": False})):
        same, after = optimizer.step(table, grad, state, **options)
        assert same is table
        assert after == state
    dense = islices.to_dense(gradient(name, batch))
    assert_same(
        contents(*optimizer.step(table, dense, state)),
        contents(*train("numpy", START.copy(), optim.adam(0.1, rows="all"), [batch])),
    )


# ---------------------------------------------------------------------- nothing written by a call that raises


@pytest.mark.parametrize("part", ["table", "v"])
def test_read_only_arrays_are_found_before_anything_is_written(part: str) -> None:
    optimizer = optim.adam(0.1)
    table, state = train("numpy", START.copy(), optimizer, BATCHES[:1])
    before = contents(table, state)
    ({"table": table} | state)[part].flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        optimizer.step(table, gradient("numpy", BATCHES[1]), state)
    assert_same(contents(table, state), before)


@pytest.mark.parametrize("name", [name for name in ("numpy", "torch") if name in BACKENDS])
def test_elements_that_share_memory_are_found_before_anything_is_written(name: str) -> None:
    optimizer, part = optim.adam(0.1), "v"
    table, state = train(name, of(name, START), optimizer, BATCHES[:1])
    parts = {"table": table, **state}
    strided = np.lib.stride_tricks.as_strided(host(parts[part]).copy(), (ROWS, DIM), (4, 4))
    parts[part] = strided if name == "numpy" else importlib.import_module("torch").from_numpy(strided)
    before = {key: host(x) for key, x in parts.items()}
    with pytest.raises(ValueError, match="share memory"):
        optimizer.step(parts["table"], gradient(name, BATCHES[1]), {k: parts[k] for k in state})
    assert_same({key: host(x) for key, x in parts.items()}, before)


def test_inference_tensors_are_found_before_anything_is_written() -> None:
    torch = pytest.importorskip("torch")
    optimizer, table = optim.adam(0.1), torch.from_numpy(START.copy())
    with torch.inference_mode():
        state = optimizer.init(table)
    with pytest.raises(ValueError, match=r"state\['step'\]: got an inference tensor"):
        optimizer.step(table, gradient("torch", BATCHES[0]), state)
    np.testing.assert_array_equal(host(table), START)


def test_a_tensor_beside_a_variable_is_refused() -> None:
    """Check that a step on a tf.Variable with a state of tensors raises. In a tf.function, the variable would change
    and the state would not."""
    pytest.importorskip("tensorflow")
    optimizer, table = optim.adam(0.1), tensorflow_variable(START)
    state = islices.convert(optimizer.init(START.copy()), "tensorflow")
    with pytest.raises(TypeError, match=r"state\['step'\]: got EagerTensor.*tf.Variable"):
        optimizer.step(table, gradient("tensorflow", BATCHES[0]), state)
    np.testing.assert_array_equal(host(table), START)


def test_a_state_of_numpy_arrays_says_how_to_convert_it() -> None:
    name = next(iter(set(BACKENDS) - {"numpy"}))
    optimizer = optim.adam(0.1)
    with pytest.raises(TypeError, match=rf"islices.convert\(state, '{name}'\)"):
        optimizer.step(of(name, START), gradient(name, BATCHES[0]), optimizer.init(START))


@pytest.mark.parametrize("apply", [0.5, None, np.ones(2, bool)])
def test_apply_that_is_no_flag(apply: Any) -> None:
    table = START.copy()
    with pytest.raises((TypeError, ValueError), match="apply"):
        optim.sgd(0.1).step(table, gradient("numpy", BATCHES[0]), optim.sgd(0.1).init(table), apply=apply)
    np.testing.assert_array_equal(table, START)


# ---------------------------------------------------------------------- several tables
def test_a_structure_of_tables_is_stepped_together() -> None:
    optimizer = optim.adam(0.1)
    tables = {"a": START.copy(), "b": [START.copy(), START[:, 0].copy()]}
    state = optimizer.init(tables)
    grads = {"b": [None, START[:, 0]], "a": gradient("numpy", BATCHES[0])}
    new, after = optimizer.step(tables, grads, state)
    assert new["a"] is tables["a"]
    assert_same(contents(new["a"], after["a"]), contents(*train("numpy", START.copy(), optimizer, BATCHES[:1])))
    assert_same(contents(new["b"][0], after["b"][0]), contents(START, optimizer.init(START)))
    assert (new["b"][1] != START[:, 0]).all()
    assert int(after["b"][1]["step"][0]) == 1


def test_nothing_is_written_to_any_table_if_one_does_not_fit() -> None:
    optimizer = optim.adam(0.1)
    tables = [START.copy(), START.copy()]
    state = optimizer.init(tables)
    good = gradient("numpy", BATCHES[0])
    for grads, states in (
        ([good, gradient("numpy", BATCHES[0]).replace(values=np.ones((9, DIM)))], state),
        ([good], state),
        (good, state),
        ([good, good], state[:1]),
        ([good, good], {"a": state[0]}),
    ):
        with pytest.raises((TypeError, ValueError), match=r"grad|state"):
            optimizer.step(tables, grads, states)
    for table, own in zip(tables, state, strict=True):
        assert_same(contents(table, own), contents(START, optimizer.init(START)))


def test_a_function_that_raises_for_the_learning_rate_leaves_everything() -> None:
    def broken(step: int) -> float:
        raise RuntimeError("no rate")

    table = START.copy()
    state = optim.adam(0.1).init(table)
    with pytest.raises(RuntimeError, match="no rate"):
        optim.adam(broken).step(table, gradient("numpy", BATCHES[0]), state)
    with pytest.raises(TypeError, match="lr: got None"):
        optim.adam(lambda step: None).step(table, gradient("numpy", BATCHES[0]), state)
    assert_same(contents(table, state), contents(START, optim.adam(0.1).init(START)))


# ---------------------------------------------------------------------- rows, frozen rows, rates
def test_frozen_rows_are_rows_that_the_gradient_lacks() -> None:
    frozen = np.isin(np.arange(ROWS), [1, 5, 6, 11])
    dropped = [(i[~frozen[i]], v[~frozen[i]]) for i, v in BATCHES]
    expected = contents(*train("numpy", START.copy(), OPTIMIZERS["adam"](), dropped))
    for given in (frozen, np.flatnonzero(frozen), [11, 5, 6, 1, 5]):
        assert_same(contents(*train("numpy", START.copy(), OPTIMIZERS["adam"](frozen=given))), expected)


@pytest.mark.parametrize("label", ["adam", "rowwise_adagrad"])
def test_all_rows_in_blocks_are_the_dense_formula(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = OPTIMIZERS[label](rows="all", frozen=[0, 7])
    whole = contents(*train("numpy", START.copy(), optimizer))
    monkeypatch.setattr("islices.optim.row_steps.BLOCK", 5 * DIM)
    monkeypatch.setattr("islices.optim.row_steps.PIECE", 2 * DIM)
    assert_same(contents(*train("numpy", START.copy(), optimizer)), whole)


def test_rows_that_int32_cannot_name_may_be_frozen() -> None:
    """Check that rows can be frozen in a table of 2^31 + 20 rows. Only one row of the table's 4 GiB is written."""
    rows = 2**31 + 20
    try:
        table = np.zeros((rows,), np.float16)
    except MemoryError:
        pytest.skip("the system gives no address space it has no memory for")
    optimizer = optim.sgd(1.0, frozen=[4, 5, *range(2**31 + 1, 2**31 + 9)])
    grad = islices.IndexedSlices(np.ones(2, np.float16), np.array([5, 6], np.int32), (rows,))
    optimizer.step(table, grad, optimizer.init(table))
    assert table[:8].tolist() == [0, 0, 0, 0, 0, 0, -1, 0]


# ---------------------------------------------------------------------- checkpoints
def saved_by_torch(state: Any, folder: Path) -> Any:
    torch = importlib.import_module("torch")
    torch.save(state, folder / "state.pt")
    return torch.load(folder / "state.pt", weights_only=True)


def saved_by_tensorflow(state: Any, folder: Path) -> Any:
    tf = importlib.import_module("tensorflow")
    path = tf.train.Checkpoint(state=state).save(str(folder / "state"))
    fresh = optim.adam(0.1).init(tf.Variable(START))
    tf.train.Checkpoint(state=fresh).restore(path).assert_consumed()
    return fresh


SAVERS = {"torch tensor": saved_by_torch, "tf.Variable": saved_by_tensorflow}


@pytest.mark.parametrize("kind", [k for k in SAVERS if k in KINDS])
def test_each_frameworks_own_checkpoint_carries_a_training_on(kind: str, tmp_path: Path) -> None:
    name, make, _ = TABLES[kind]
    optimizer = optim.adam(0.1)
    table, state = train(name, make(START), optimizer, BATCHES[:4])
    restored = SAVERS[kind](state, tmp_path)
    assert {type(x) for x in restored.values()} == {type(x) for x in state.values()}
    done = train(name, table, optimizer, BATCHES[4:], state=restored)
    assert_same(contents(*done), contents(*train("numpy", START.copy(), optimizer)))


@pytest.mark.parametrize(("here", "there"), list(zip(BACKENDS, BACKENDS[1:] + BACKENDS[:1], strict=True)))
def test_a_state_goes_on_in_another_framework(here: str, there: str) -> None:
    optimizer = optim.rmsprop(0.1, momentum=0.9, centered=True)
    table, state = train(here, islices.get_backend(here).asarray(START), optimizer, BATCHES[:4])
    table, state = islices.convert(islices.convert((table, state), "numpy"), there)
    if there == "numpy":
        table, state = np.array(table), {key: np.array(x) for key, x in state.items()}
    done = train(there, table, optimizer, BATCHES[4:], state=state)
    assert_same(contents(*done), contents(*train("numpy", START.copy(), optimizer)))


def test_repr() -> None:
    assert repr(
        optim.ftrl(0.1, semantics="keras", rows="all", duplicates="raw", maximize=True, frozen=[1, 1, 2])
    ).endswith("rows='all', semantics='keras', duplicates='raw', maximize=True, frozen=2 rows)")


def test_a_sparse_gradient_that_moves_all_rows_warns_once() -> None:
    """Check that sparse gradients cause one warning per name of a table, and that dense gradients cause none."""
    table, slices = (
        np.ones((ROWS, 1), np.float32),
        islices.IndexedSlices(np.ones((1, 1), np.float32), np.array([1]), (ROWS, 1)),
    )
    made = optim.adam(0.1, semantics="keras")
    state = made.init(table)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        made.step(table, table.copy(), state)
        for _ in range(2):
            made.step(table, slices, state)
            made.step([table.copy(), table], [table.copy(), slices], [made.init(table), state])
    reported = [str(x.message).partition(",")[0] for x in found]
    assert reported == ["table: a sparse gradient moves all rows", "leaf 1: a sparse gradient moves all rows"]


def test_frozen_rows_of_several_tables_name_the_one_that_lacks_them() -> None:
    tables = {"table": np.ones((5, 1)), "head": np.ones((2, 1))}
    made = optim.adam(0.1, frozen=[3])
    with pytest.raises(IndexError, match=r"^leaf \d: frozen: got 3 for a table of 2 rows; .* another optimizer$"):
        made.step(tables, tables, made.init(tables))


def test_optimizers_do_not_change() -> None:
    made = optim.adam(0.1)
    with pytest.raises(AttributeError, match="rows: an Optimizer does not change"):
        made.rows = "all"  # type: ignore[misc]
    with pytest.raises(TypeError, match="does not support item assignment"):
        made.hyper["lr"] = 0.2  # type: ignore[index]


@pytest.mark.parametrize("frozen", [[1, 5], np.arange(ROWS) < 2])
def test_optimizers_pickle_and_copy(frozen: Any) -> None:
    frozen = copy.copy(frozen)
    made = optim.adam(0.1, rows="all", frozen=frozen, maximize=True)
    frozen[:] = [3] * len(frozen)  # the optimizer has copied the rows
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
        assert repr(again) == repr(made)
        assert_same(contents(*train("numpy", START.copy(), again)), contents(*train("numpy", START.copy(), made)))
