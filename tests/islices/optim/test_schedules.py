"""Test hyperparameters that change from step to step, and names of semantics, in more cases than the golden vectors
have."""

from __future__ import annotations

import copy
import typing
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from comparing import assert_same

import islices
from islices import optim
from islices.norms.clip_formulas import BY_GLOBAL_NORM, BY_NORM, BY_VALUE
from islices.optim.record import RECORDS

jax = pytest.importorskip("jax")
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

ROWS = 5
TABLE = np.linspace(-1, 1, ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
GRADS = [
    islices.IndexedSlices(np.array(v, np.float32), np.array(i), (ROWS, 2))
    for v, i in (([[1, -2], [0.5, 0.25]], [3, 3]), ([[0.5, 1]], [0]), ([[-1, 0.125], [2, 1]], [3, 1]))
]
Make = Callable[[Any], optim.Optimizer]


def by_step(step: Any) -> Any:
    """Return 1 - 2^-(step + 1), which is exact in every type. The parameter `step` may be an int or a traced array."""
    return (0.5, 0.75, 0.875)[step] if isinstance(step, int) else 1 - 0.5 ** (step + 1.0)


def steps(optimizer: optim.Optimizer, table: Any = None) -> dict[str, Any]:
    table = TABLE.copy() if table is None else table
    state = optimizer.init(table)
    for grad in GRADS:
        table, state = optimizer.step(table, islices.convert(grad, islices.get_backend(table).name), state)
    return {"table": table, **state}


def remade(make: Make) -> dict[str, Any]:
    """Take each step with a new optimizer, in which the hyperparameter is a constant with the value of that step.
    Return the table and the state."""
    table = TABLE.copy()
    state = make(0.5).init(table)
    for k, grad in enumerate(GRADS):
        table, state = make(by_step(k)).step(table, grad, state)
    return {"table": table, **state}


# ---------------------------------------------------------------------- hyperparameters of a step
CASES: dict[str, Make] = {
    "torch beta1": lambda x: optim.adam(0.1, beta1=x, semantics="torch", rows="all"),
    "keras beta2": lambda x: optim.adam(0.1, beta2=x, amsgrad=True, semantics="keras"),
    "optax beta1": lambda x: optim.adamw(0.1, beta1=x, semantics="optax"),
    "mxnet beta1": lambda x: optim.adam(0.1, beta1=x, semantics="mxnet"),
    "tensorflow rho": lambda x: optim.rmsprop(0.1, rho=x, semantics="tensorflow"),
    "fbgemm eps": lambda x: optim.adagrad(0.1, eps=x, semantics="fbgemm"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_of_the_step_is_the_number_of_the_step(name: str) -> None:
    make = CASES[name]
    expected = remade(make)
    assert_same(steps(make(by_step)), expected)
    traced = jax.jit(lambda table: steps(make(by_step), table))(TABLE)
    if name in ("torch beta1", "keras beta2"):  # Python computes the power if the step is known
        for key, x in expected.items():
            np.testing.assert_allclose(np.asarray(traced[key]), x, rtol=1e-6, atol=1e-7)
    else:
        assert_same(traced, expected)


def test_an_array_is_read_at_each_step() -> None:
    momentum, table = np.array([0.5]), TABLE.copy()
    optimizer = optim.sgd(0.1, momentum=momentum)
    state = optimizer.init(table)
    for k, grad in enumerate(GRADS):
        momentum[0] = by_step(k)
        table, state = optimizer.step(table, grad, state)
    assert_same({"table": table, **state}, remade(lambda x: optim.sgd(0.1, momentum=x)))


def test_a_schedule_of_keras_and_a_variable_in_a_graph() -> None:
    make, table = CASES["keras beta2"], tf.Variable(TABLE)
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.5, 0.75, 0.875])
    assert_same(steps(make(schedule), table), remade(make))
    now, table = tf.Variable(0.0), tf.Variable(TABLE)
    optimizer = make(now)
    state = optimizer.init(table)

    @tf.function  # type: ignore[untyped-decorator]
    def step(values: Any, indices: Any) -> Any:
        return optimizer.step(table, tf.IndexedSlices(values, indices, tf.constant([ROWS, 2])), state)[1]["step"]

    for k, g in enumerate(GRADS):
        now.assign(by_step(k))
        step(tf.constant(g.values), tf.constant(g.indices))
    assert_same({"table": table, **state}, remade(make))


def test_a_number_that_leaves_its_range_writes_nothing() -> None:
    optimizer, table = optim.adam(0.1, beta1=lambda step: 0.5 + step), TABLE.copy()
    table, state = optimizer.step(table, GRADS[0], optimizer.init(table))
    before = copy.deepcopy({"table": table, **state})
    with pytest.raises(ValueError, match=r"beta1: got 1\.5; accepted is 0 <= value < 1"):
        optimizer.step(table, GRADS[1], state)
    with pytest.raises(TypeError, match=r"eps: got .*; accepted is a number, or a function of the step that returns"):
        optim.adam(0.1, eps=lambda step: np.ones(2)).step(table, GRADS[1], state)
    assert_same({"table": table, **state}, before)


def test_in_traced_code_a_rate_that_is_known_is_looked_at() -> None:
    optimizer = optim.sgd(lambda step: -1.0)
    with pytest.raises(ValueError, match=r"^lr: got -1.0; accepted is a finite number >= 0"):
        jax.jit(lambda table: steps(optimizer, table))(TABLE)


@pytest.mark.parametrize("x", [Fraction(999, 1000), np.longdouble(0.999), lambda step: Fraction(999, 1000)])
def test_any_real_number_is_a_float(x: Any) -> None:
    assert_same(steps(optim.adam(Fraction(1, 10), beta2=x)), steps(optim.adam(0.1, beta2=0.999)))


def test_numbers_of_numpy_are_taken_as_they_are() -> None:
    """Check that np.float32(0.9) gives the bits of the Python float with the same value, as clause 16 requires."""
    table = TABLE.astype(np.float64)
    grad = islices.IndexedSlices(np.ones((1, 2)), np.array([1]), (ROWS, 2))
    ends = []
    for beta in (np.float32(0.9), float(np.float32(0.9))):
        optimizer = optim.adam(0.1, beta1=beta)
        ends.append(optimizer.step(table.copy(), grad, optimizer.init(table)))
    assert_same({"table": ends[0][0], **ends[0][1]}, {"table": ends[1][0], **ends[1][1]})


# ---------------------------------------------------------------------- rows and semantics
@pytest.mark.parametrize("name", RECORDS)
def test_the_default_takes_the_only_kind_there_is(name: str) -> None:
    make = getattr(optim, name)
    for semantics in typing.get_args(islices.norms.Semantics):
        if semantics not in RECORDS[name].presets:
            message = f"semantics: got '{semantics}'; {name} has {', '.join(RECORDS[name].presets)}"
            with pytest.raises(ValueError, match=message):
                make(0.1, semantics=semantics)
            continue
        if make(0.1, semantics=semantics).rows == "all":
            with pytest.raises(ValueError, match=r"rows: got 'touched'; .* has 'all'"):
                make(0.1, semantics=semantics, rows="touched")


def test_the_names_of_all_semantics_are_one_type() -> None:
    of_clips = {*BY_GLOBAL_NORM, *BY_NORM, *BY_VALUE}
    of_optimizers = {semantics for record in RECORDS.values() for semantics in record.presets}
    assert set(typing.get_args(islices.norms.Semantics)) == of_clips | of_optimizers
    for function in (islices.clip_by_norm, islices.clip_by_value, islices.clip_by_global_norm, optim.sgd, optim.ftrl):
        assert typing.get_type_hints(function)["semantics"] == islices.norms.Semantics
