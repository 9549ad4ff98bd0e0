"""Hyperparameters that change by the step, defaults that drop in, names of semantics: what the vectors do not say."""

from __future__ import annotations

import copy
import pickle
import typing
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import islices
from islices import modes, optim
from islices.clip_formulas import BY_GLOBAL_NORM, BY_NORM, BY_VALUE
from islices.optim.operators import array_operators
from islices.optim.record import RECORDS

jax = pytest.importorskip("jax", reason="JAX is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

ROWS = 5
TABLE = np.linspace(-1, 1, ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
GRADS = [
    islices.IndexedSlices(np.array(v, np.float32), np.array(i), (ROWS, 2))
    for v, i in (([[1, -2], [0.5, 0.25]], [3, 3]), ([[0.5, 1]], [0]), ([[-1, 0.125], [2, 1]], [3, 1]))
]
Make = Callable[[Any], optim.Optimizer]


def by_step(step: Any) -> Any:
    """1/2, 3/4, 7/8: exact in every type and mode."""
    return (0.5, 0.75, 0.875)[step] if isinstance(step, int) else 1 - 0.5 ** (step + 1.0)


def steps(optimizer: optim.Optimizer, table: Any = None) -> dict[str, Any]:
    table = TABLE.copy() if table is None else table
    state = optimizer.init(table)
    for grad in GRADS:
        table, state = optimizer.step(table, islices.convert(grad, islices.get_backend(table).name), state)
    return {"table": table, **state}


def remade(make: Make) -> dict[str, Any]:
    """What an optimizer made anew for each step, of that step's number, comes to."""
    table = TABLE.copy()
    state = make(0.5).init(table)
    for k, grad in enumerate(GRADS):
        table, state = make(by_step(k)).step(table, grad, state)
    return {"table": table, **state}


def same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_array_equal(np.asarray(got[name]), np.asarray(x), err_msg=name)


# ---------------------------------------------------------------------- by the step
CASES: dict[str, Make] = {
    "lr": lambda x: optim.adam(x),
    "beta1": lambda x: optim.adam(0.1, beta1=x),
    "beta2": lambda x: optim.adamw(0.1, beta2=x, amsgrad=True),
    "weight_decay": lambda x: optim.adamw(0.1, weight_decay=x),
    "momentum": lambda x: optim.sgd(0.1, momentum=x, nesterov=True),
    "dampening": lambda x: optim.sgd(0.1, momentum=0.5, dampening=x),
    "rho": lambda x: optim.rmsprop(0.1, rho=x, centered=True),
    "eps": lambda x: optim.rowwise_adagrad(0.1, eps=x),
    "lr_decay": lambda x: optim.adagrad(0.1, lr_decay=x),
    "l1": lambda x: optim.ftrl(0.1, l1=x, l2=0.25, lr_power=-0.75),
    "l2_shrinkage": lambda x: optim.ftrl(0.1, l2_shrinkage=x),
    "torch beta1": lambda x: optim.adam(0.1, beta1=x, semantics="torch", rows="all"),
    "torch touched": lambda x: optim.adam(0.1, beta2=x, semantics="torch"),
    "torch rho": lambda x: optim.rmsprop(0.1, rho=x, centered=True, semantics="torch"),
    "keras beta2": lambda x: optim.adam(0.1, beta2=x, amsgrad=True, semantics="keras"),
    "keras momentum": lambda x: optim.sgd(0.1, momentum=x, semantics="keras"),
    "optax beta1": lambda x: optim.adamw(0.1, beta1=x, semantics="optax"),
    "mxnet beta1": lambda x: optim.adam(0.1, beta1=x, semantics="mxnet"),
    "tensorflow rho": lambda x: optim.rmsprop(0.1, rho=x, semantics="tensorflow"),
    "fbgemm eps": lambda x: optim.adagrad(0.1, eps=x, semantics="fbgemm"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.repeats_where(lambda name: name not in ("lr", "momentum", "torch beta1"))
@pytest.mark.one_in(4)
def test_a_function_of_the_step_is_the_number_of_the_step(name: str) -> None:
    make = CASES[name]
    expected = remade(make)
    same(steps(make(by_step)), expected)
    same(steps(make(lambda step: np.array([by_step(step)]))), expected)
    traced = jax.jit(lambda table: steps(make(by_step), table))(TABLE)
    if name in ("torch beta1", "torch touched", "keras beta2"):  # whose power is Python's where the step is known
        for key, x in expected.items():
            np.testing.assert_allclose(np.asarray(traced[key]), x, rtol=1e-6, atol=1e-7)
    else:
        same(traced, expected)


def test_an_array_is_read_at_each_step() -> None:
    momentum, table = np.array([0.5]), TABLE.copy()
    optimizer = optim.sgd(0.1, momentum=momentum)
    state = optimizer.init(table)
    for k, grad in enumerate(GRADS):
        momentum[0] = by_step(k)
        table, state = optimizer.step(table, grad, state)
    same({"table": table, **state}, remade(lambda x: optim.sgd(0.1, momentum=x)))


def test_a_schedule_of_keras_and_a_variable_in_a_graph() -> None:
    make, table = CASES["beta2"], tf.Variable(TABLE)
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.5, 0.75, 0.875])
    same(steps(make(schedule), table), remade(make))
    now, table = tf.Variable(0.0), tf.Variable(TABLE)
    optimizer = make(now)
    state = optimizer.init(table)

    @tf.function  # type: ignore[untyped-decorator]
    def step(values: Any, indices: Any) -> Any:
        return optimizer.step(table, tf.IndexedSlices(values, indices, tf.constant([ROWS, 2])), state)[1]["step"]

    for k, g in enumerate(GRADS):
        now.assign(by_step(k))
        step(tf.constant(g.values), tf.constant(g.indices))
    same({"table": table, **state}, remade(make))


def test_a_number_that_leaves_its_range_writes_nothing() -> None:
    optimizer, table = optim.adam(0.1, beta1=lambda step: 0.5 + step), TABLE.copy()
    table, state = optimizer.step(table, GRADS[0], optimizer.init(table))
    before = copy.deepcopy({"table": table, **state})
    with pytest.raises(ValueError, match=r"beta1: got 1\.5; accepted is 0 <= value < 1"):
        optimizer.step(table, GRADS[1], state)
    with pytest.raises(TypeError, match=r"eps: got .*; accepted is a number, or a function of the step that returns"):
        optim.adam(0.1, eps=lambda step: np.ones(2)).step(table, GRADS[1], state)
    same({"table": table, **state}, before)


@pytest.mark.parametrize(
    ("name", "lr", "error", "message"),
    [
        ("sgd", lambda step: -1.0, ValueError, "lr: got -1.0; accepted is a finite number >= 0"),
        ("sgd", np.array(-1.0), ValueError, "lr: got -1.0; accepted is a finite number >= 0"),
        ("adam", lambda step: np.array([np.nan]), ValueError, "lr: got nan; accepted is a finite number >= 0"),
        ("ftrl", lambda step: 0.0, ValueError, "lr: got 0.0; accepted is a finite number above 0, since FTRL divides"),
        ("ftrl", np.zeros(1), ValueError, "lr: got 0.0; accepted is a finite number above 0"),
        ("sgd", lambda step: True, TypeError, "lr: got bool True; accepted is a number"),
        ("sgd", lambda step: np.array(True), TypeError, "lr: got .*bool.*; accepted is a number"),
    ],
)
def test_a_rate_out_of_its_range_writes_nothing(name: str, lr: Any, error: type[Exception], message: str) -> None:
    optimizer, table = getattr(optim, name)(lr), TABLE.copy()
    state = optimizer.init(table)
    before = copy.deepcopy({"table": table, **state})
    with pytest.raises(error, match=f"^{message}"):
        optimizer.step(table, GRADS[0], state)
    same({"table": table, **state}, before)


def test_a_rate_that_warms_up_from_0() -> None:
    optimizer, table = optim.sgd(lambda step: 0.5 * step), TABLE.copy()
    table, state = optimizer.step(table, GRADS[0], optimizer.init(table))
    np.testing.assert_array_equal(table, TABLE)
    table, _ = optimizer.step(table, GRADS[1], state)
    np.testing.assert_array_equal(table[0], TABLE[0] - [0.25, 0.5])


def test_in_traced_code_a_rate_that_is_known_is_looked_at() -> None:
    optimizer = optim.sgd(lambda step: -1.0)
    with pytest.raises(ValueError, match=r"^lr: got -1.0; accepted is a finite number >= 0"):
        jax.jit(lambda table: steps(optimizer, table))(TABLE)


@pytest.mark.parametrize("x", [Fraction(999, 1000), np.longdouble(0.999), lambda step: Fraction(999, 1000)])
def test_any_real_number_is_a_float(x: Any) -> None:
    same(steps(optim.adam(Fraction(1, 10), beta2=x)), steps(optim.adam(0.1, beta2=0.999)))


def test_a_decimal_is_no_number() -> None:
    for beta in (Decimal("0.999"), lambda step: Decimal("0.999")):
        with pytest.raises(TypeError, match=r"^beta2: got decimal\.Decimal; accepted is a number"):
            steps(optim.adam(0.1, beta2=beta))


def test_numbers_of_numpy_are_taken_as_they_are() -> None:
    """1 - float32(0.9) is formed in float64, as clause 16 has it."""
    table = TABLE.astype(np.float64)
    grad = islices.IndexedSlices(np.ones((1, 2)), np.array([1]), (ROWS, 2))
    ends = []
    for beta in (np.float32(0.9), float(np.float32(0.9))):
        optimizer = optim.adam(0.1, beta1=beta)
        ends.append(optimizer.step(table.copy(), grad, optimizer.init(table)))
    same({"table": ends[0][0], **ends[0][1]}, {"table": ends[1][0], **ends[1][1]})


def test_what_pickles() -> None:
    made = optim.adam(by_step, beta1=by_step, amsgrad=True)
    same(steps(pickle.loads(pickle.dumps(made))), steps(made))


# ---------------------------------------------------------------------- which rows, whose semantics
@pytest.mark.parametrize("name", RECORDS)
def test_the_default_takes_the_only_kind_there_is(name: str) -> None:
    make = getattr(optim, name)
    for semantics in typing.get_args(islices.Semantics):
        if semantics not in RECORDS[name].presets:
            message = f"semantics: got '{semantics}'; {name} has {', '.join(RECORDS[name].presets)}"
            with pytest.raises(ValueError, match=message):
                make(0.1, semantics=semantics)
            continue
        made = make(0.1, semantics=semantics)
        if made.rows == "all":
            with pytest.raises(ValueError, match=r"rows: got 'touched'; .* has 'all'"):
                make(0.1, semantics=semantics, rows="touched")
        expected = make(0.1, semantics=semantics, rows=made.rows)
        assert made.rows == pickle.loads(pickle.dumps(made)).rows
        same(steps(made), steps(expected))


def test_the_names_of_all_semantics_are_one_type() -> None:
    of_clips = {*BY_GLOBAL_NORM, *BY_NORM, *BY_VALUE}
    of_optimizers = {semantics for record in RECORDS.values() for semantics in record.presets}
    assert set(typing.get_args(islices.Semantics)) == of_clips | of_optimizers
    for function in (islices.clip_by_norm, islices.clip_by_value, islices.clip_by_global_norm, optim.sgd, optim.ftrl):
        assert typing.get_type_hints(function)["semantics"] == islices.Semantics


# ---------------------------------------------------------------------- numbers that others state
def test_amsgrad_follows_keras_on_the_gradients_of_its_own_test() -> None:
    """keras/src/optimizers/adam_test.py: ten weights of 1, a gradient of 0.01, then of 0.1 to 1."""
    table, theirs = tf.Variable(np.ones((10, 1), np.float32)), keras.Variable(np.ones((10, 1), np.float32))
    optimizer, native = optim.adam(semantics="keras", amsgrad=True), keras.optimizers.Adam(amsgrad=True)
    state = optimizer.init(table)
    grads = [np.full(10, 0.01, np.float32), *[np.arange(0.1, 1.1, 0.1, np.float32)] * 4]
    # test_correctness_with_golden has amsgrad=True; its numbers and their bound
    for g, golden in zip(grads, (0.999, 0.9982, 0.9974, 0.9965, 0.9955), strict=True):
        table, state = optimizer.step(table, tf.constant(g[:, None]), state)
        native.apply([tf.constant(g[:, None])], [theirs])
        np.testing.assert_array_equal(table.numpy(), theirs.numpy())
        np.testing.assert_allclose(table.numpy()[:, 0], golden, rtol=5e-4, atol=5e-4)


#: tensorflow/python/training/ftrl_test.py, learning rate 3: (arguments, start, steps, the weights then)
FTRL_TEST: list[tuple[dict[str, float], list[list[float]], int, list[list[float]]]] = [
    ({}, [[0, 0], [0, 0]], 3, [[-2.60260963, -4.29698515], [-0.28432083, -0.56694895]]),
    ({}, [[1, 2], [4, 3]], 3, [[-2.55607247, -3.98729396], [-0.28232238, -0.56096673]]),
    ({"l1": 0.001}, [[1, 2], [4, 3]], 10, [[-7.66718769, -10.91273689], [-0.93460727, -1.86147261]]),
    ({"l1": 0.001, "l2": 2.0}, [[1, 2], [4, 3]], 10, [[-0.24059935, -0.46829352], [-0.02406147, -0.04830509]]),
    (
        {"l1": 0.001, "l2": 2.0, "l2_shrinkage": 0.1},
        [[1, 2], [4, 3]],
        10,
        [[-0.22578995, -0.44345796], [-0.14378493, -0.13229476]],
    ),
]


@pytest.mark.parametrize("semantics", ["tensorflow", "keras"])
@pytest.mark.parametrize(("hyper", "start", "count", "expected"), FTRL_TEST, ids=range(len(FTRL_TEST)))
def test_the_numbers_of_tensorflows_own_test_of_ftrl(
    hyper: dict[str, Any], start: Any, count: int, expected: Any, semantics: Any
) -> None:
    optimizer = optim.ftrl(3.0, **hyper, semantics=semantics)
    table = np.array(start, np.float32)
    state = optimizer.init(table)
    for _ in range(count):
        table, state = optimizer.step(table, np.array([[0.1, 0.2], [0.01, 0.02]], np.float32), state)
    np.testing.assert_allclose(table, expected, rtol=2e-6)


@pytest.mark.parametrize("power", [0.0, -1.0, -0.1, -0.75])
def test_any_power_follows_tensorflow(power: float) -> None:
    """tf.compat.v1.train.FtrlOptimizer on a dense gradient and on slices; its pow is not correctly rounded."""
    for sparse in (False, True):
        table, weights = tf.Variable(TABLE), tf.Variable(TABLE)
        optimizer = optim.ftrl(0.3, lr_power=power, l1=0.01, l2_shrinkage=0.1, semantics="tensorflow")
        native = tf.compat.v1.train.FtrlOptimizer(
            0.3,
            learning_rate_power=power,
            l1_regularization_strength=0.01,
            l2_shrinkage_regularization_strength=0.1,
        )
        state = optimizer.init(table)
        for grad in GRADS:
            g: Any = islices.to_native(islices.convert(grad, "tensorflow"))
            g = g if sparse else tf.convert_to_tensor(g)
            table, state = optimizer.step(table, g, state)
            native.apply_gradients([(g, weights)])
        np.testing.assert_allclose(table.numpy(), weights.numpy(), rtol=2e-5, atol=1e-6)


def test_a_power_is_within_three_units_in_the_last_place() -> None:
    """Each root halves the error so far: six roundings at most count."""
    raised = array_operators(modes.HOST)["power"]
    x = 10.0 ** np.random.default_rng(0).uniform(-30, 30, (1000, 1))
    for dtype in (np.float32, np.float64):
        values = x.astype(dtype)
        for exponent in (0.1, 0.25, 0.3, 0.7, 0.9, 0.001):
            p = dtype(exponent)
            got = raised(values, np.full((1, 1), p), np.ones((1, 1), dtype))
            assert got.dtype == dtype
            exact = values.astype(np.longdouble) ** np.longdouble(p)
            digits = 2.0**-32 * np.abs(np.log(values.astype(np.float64))) if dtype is np.float32 else 0.0
            assert np.all(np.abs(got - exact) <= 3 * np.spacing(exact.astype(dtype)) + digits * exact), exponent
